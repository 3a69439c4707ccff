"""The command `cost`: the cost of a job so far, by all accountings, and what its machines did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from marless.app.cli.cost_elsewhere import elsewhere
from marless.app.cli.options import CoordinatorOptions, Output, OutputOption, whole
from marless.app.cli.output import console, data, say, show_object
from marless.app.cli.recorded import Recorded, RecordedArgument, find
from marless.app.cli.working import Working
from marless.core.errors import SpecError, unknown_name

if TYPE_CHECKING:
    from marless.cost.billing.bill import Bill, By
    from marless.jobs.prices import Accounting, BilledTime, Prices

PricesOption = Annotated[
    Path | None,
    typer.Option("--prices", metavar="FILE", help="Price file that overrides the price list; default: the job's."),
]
SpotOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Bill a spot machine by these prices instead: time,usd_h,killed, or JSON of `aws ec2 "
        "describe-spot-price-history`.",
    ),
]
BidOption = Annotated[
    float | None,
    typer.Option("--bid", min=0, metavar="USD", help="With --spot: prices above it, per hour, take the machine away."),
]
OwnOption = Annotated[
    int | None,
    typer.Option(parser=whole, metavar="N", help="Bill as if N vCPUs of your own were idle, and free."),
]
TimeOption = Annotated[
    Literal["duration", "cpu"] | None,
    typer.Option(help="Which seconds of functions to charge; default: the job's `bill.time`."),
]


def cost(  # noqa: PLR0913, PLR0917  # a command has as many parameters as options
    at: CoordinatorOptions,
    job: RecordedArgument,
    by: Annotated[Literal["kind", "round", "group"], typer.Option(help="What each line of the table shows.")] = "kind",
    accounting: Annotated[
        list[str], typer.Option(metavar="NAME", help="paper, billed, serverful or machines; default: all.")
    ] = [],  # noqa: B006  # typer's way
    prices: PricesOption = None,
    spot: SpotOption = None,
    bid: BidOption = None,
    own: OwnOption = None,
    idle: Annotated[
        bool, typer.Option("--idle", help="Show from which idle share of a machine of your own functions pay.")
    ] = False,
    time: TimeOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Show what a job has cost, while it runs or afterwards: by function, by round, or by group of agents.

    paper: execution and starts only; billed: all that a provider charges; serverful: a machine for the whole run;
    machines: those that its workers ran on.
    """
    from marless.cost.billing.bill import bill
    from marless.jobs import prices as tables
    from marless.jobs.asynchronous_run import unused
    from marless.jobs.prices import ALL_ACCOUNTINGS

    for each in accounting:
        if each not in ALL_ACCOUNTINGS:
            raise SpecError(f"--accounting: {unknown_name('accounting', each, ALL_ACCOUNTINGS)}")
    wanted = tuple(each for each in ALL_ACCOUNTINGS if not accounting or each in accounting)
    with Working(f"reading {job}"):
        found = find(job, at)
    found = _charged_by(found, time) if time else found
    table = tables.load(str(prices)) if prices else tables.merged(found.spec.bill.prices)
    if bid is not None and spot is None:
        raise SpecError("--bid is for prices of spot machines: give them with --spot FILE")
    if spot is not None or own is not None or idle:
        elsewhere(found, table, spot=spot, bid=bid, own=own, idle=idle, output=output)
        return
    with Working(f"billing {len(found.records):,} rounds"):
        made = bill(found.records, found.spec, table, found.kept)
    wanted = tuple(each for each in wanted if each in made.accountings)
    if output is Output.table:
        of_machines = "machines" in (*accounting, found.spec.bill.accounting) or rented(made)
        _about(found, made, table)
        _show(made, by, tuple(each for each in wanted if each != "machines" or of_machines))
        for line in (*(_machine_lines(found, made, table) if of_machines else ()), *_start_lines(found)):
            say(line)
        if wasted := unused(found.records):  # by an asynchronous job
            say(
                f"{wasted.rollouts} of {wasted.of} rollouts were not learned from (too old, lost, or waiting at the "
                f"end): {wasted.share:.1%} of what actors worked"
            )
    elif output is Output.jsonl:
        for row in _rows(made, by, wanted):
            data(json.dumps(row))
    else:
        show_object(_document(found, made, table, wanted), found.job, output)


def _charged_by(found: Recorded, time: BilledTime) -> Recorded:
    bill = found.spec.bill.model_copy(update={"time": time})
    return replace(found, spec=found.spec.model_copy(update={"bill": bill}))


def dollars(usd: float) -> str:
    """An amount for display, to the microdollar, because small jobs cost little."""
    return f"{usd:,.6f}"


def _document(
    found: Recorded, made: Bill, table: Prices, wanted: tuple[Accounting, ...]
) -> dict[str, Any]:  # Any: JSON
    from marless.cost.billing.bill import to_dict
    from marless.cost.billing.ledger import starts

    about = {
        "job": found.job,
        "state": found.state,
        "counts_as_cost": found.spec.bill.accounting,
        "time": found.spec.bill.time,
    }
    figures = to_dict(made, table) | {"starts": [asdict(each) for each in starts(found.records)]}
    for name in ("usd", "by_kind", "by_round", "by_group"):
        figures[name] = {accounting: figures[name][accounting] for accounting in wanted}
    if found.kept:
        figures["machines_held"], figures["machines_seen_s"] = found.kept.held, found.kept.seen_s
    return about | figures


def _rows(made: Bill, by: By, wanted: tuple[Accounting, ...]) -> list[dict[str, Any]]:  # Any: JSON
    """One row per kind, round or group: its name, and US dollars by accounting."""
    from marless.cost.pricing import usd

    parts = {accounting: made.by(by, accounting) for accounting in wanted}
    names = dict.fromkeys(name for each in parts.values() for name in each)
    return [
        {
            by: int(name) if name.isdecimal() and by == "round" else name,
            **{a: usd(parts[a].get(name, 0)) for a in wanted},
        }
        for name in names
    ]


def _about(found: Recorded, made: Bill, table: Prices) -> None:
    so_far = f"{len(made.rounds)} rounds" + ("" if found.state not in ("PENDING", "RUNNING") else " so far")
    say(f"job {found.job}, {found.state.lower()}, {so_far}; its cost counts as {found.spec.bill.accounting}")
    oldest = min(section.date for section in (table.lambda_, table.fargate, table.ec2, table.redis))
    say(
        f"billed by {made.backend}, list prices of {table.region} as of {oldest}; serverful: modelled, "
        f"on {made.machine or 'no machine: there is no round yet'}"
        + ("; functions by CPU time" if found.spec.bill.time == "cpu" else "")
    )


def _show(made: Bill, by: By, wanted: tuple[Accounting, ...]) -> None:
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, show_footer=True)
    shown.add_column(by, footer="total")
    for accounting in wanted:
        note = " (modelled)" if accounting == "serverful" else ""
        shown.add_column(f"{accounting} USD{note}", footer=dollars(made.total_usd(accounting)), justify="right")
    for row in _rows(made, by, wanted):
        name = str(row[by] + 1 if isinstance(row[by], int) else row[by])  # people count from 1, as `watch` does
        shown.add_row(name, *(dollars(row[accounting]) if row[accounting] else "" for accounting in wanted))
    console().print(shown)


def rented(made: Bill) -> bool:
    """Whether any machine may cost by the second: not this one, whose workers were started here, and are told nothing.

    On a workstation, the accounting of machines has no amounts, and its lines would only say so.
    """
    return any(each.launcher != "local" or each.described for each in made.machines)


def amounts(made: Bill) -> dict[str, float]:
    """US dollars by accounting; by that of machines only where some may be rented."""
    return {each: made.total_usd(each) for each in made.accountings if each != "machines" or rented(made)}


def _machine_lines(found: Recorded, made: Bill, table: Prices) -> Iterator[str]:
    """Machine-minutes, prices that are missing, and machines that still cost."""
    from marless.cost.billing.machines import problem

    if not made.machines:
        yield "machines: not recorded" if found.records else "machines: none yet"
        return
    count = len({each.id for each in made.machines})
    minutes, idle = made.time.minutes, made.time.idle_minutes
    rounded = f"; rounded up by {minutes['minimum']:,.2f}" if minutes["minimum"] else ""
    yield (
        f"machines: {count} {'machine' if count == 1 else 'machines'}, {minutes['work'] + idle:,.2f} machine-minutes, "
        f"{idle:,.2f} idle: starting {minutes['starting']:,.2f}, waiting for tasks {minutes['waiting']:,.2f}, "
        f"kept after the end {minutes['kept']:,.2f}{rounded}"
    )
    if without := problem(made.time, table):
        yield f"machines: {without}"
    if found.kept and found.kept.held:
        yield f"machines: when last seen, {found.kept.held} still waited for tasks; what they cost since is not known"


def _start_lines(found: Recorded) -> Iterator[str]:
    """How long workers took to start."""
    from marless.cost.billing.ledger import starts

    for each in starts(found.records):
        launcher = f" by launcher {each.launcher}" if each.launcher else ""
        yield (
            f"starts: {each.workers} {each.pool} workers{launcher}: {each.connected_s:.2f} s from order to connection "
            f"(at most {each.connected_most_s:.2f}), {each.first_task_s:.2f} s to the first task "
            f"(at most {each.first_task_most_s:.2f})"
        )
