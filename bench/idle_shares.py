"""From which idle share functions pay: `auto`'s runs of `python -m bench.frontiers` beside machines of one's own.

    python -m bench.idle_shares --runs-folder runs --json idle_shares.json

A machine that is rented all the time costs the same whether it works or not; functions cost nothing between runs. A
cell is the part of the time for which the machine must be idle for functions to be cheaper, the median of the seeds and
their range (`marless.cost.billing.own`); "always": they are, even beside a machine that always works.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from bench import harness
from bench.frontiers import finished, folder_of
from bench.harness import Row
from marless.app.cli.recorded import from_folder
from marless.cost.billing.own import own_machines
from marless.jobs import prices as price_tables

MACHINES = ("c6a.large", "c6a.xlarge", "c6a.2xlarge", "c6a.4xlarge", "c6a.8xlarge")


def row(task: str, shares: dict[str, list[float]]) -> Row:
    """One line of the table, from idle shares by machine, one for each seed."""
    return {"task": task, "seeds": len(shares[MACHINES[0]]), **{name: cell(shares[name]) for name in MACHINES}}


def cell(shares: list[float]) -> str:
    """The median and the range of idle shares, in per cent."""
    if not any(shares):
        return "always"
    return f"{median(shares):.0%} ({min(shares):.0%} to {max(shares):.0%})"


def shares_of(runs: list[Path]) -> dict[str, list[float]]:
    """Idle shares by machine, one for each run."""
    found: dict[str, list[float]] = {name: [] for name in MACHINES}
    for folder in runs:
        recorded = from_folder(folder, records=True)
        table = price_tables.merged(recorded.spec.bill.prices)
        for each in own_machines(recorded.records, recorded.spec, table):
            if each.instance in found:
                found[each.instance].append(each.idle)
    return found


def main() -> None:
    """Print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=1)
    parser.add_argument("--runs-folder", type=Path, default=Path("runs"), help="directory of the frontiers' folders")
    args = parser.parse_args()
    rows = []
    for task, frontier in finished(args.runs_folder).items():
        if "auto" in frontier["presets"]:
            folder = folder_of(args.runs_folder, task.name)
            runs = [folder / "runs" / each["run"] for each in frontier["presets"]["auto"]["runs"]]
            rows.append(row(task.name, shares_of(runs)))
    harness.report("idle_shares", harness.machine(), rows, {}, args.json)


if __name__ == "__main__":
    main()
