"""What a recorded run would cost elsewhere: the options --spot, --own and --idle of the command `cost`."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marless.app.cli.options import Output
from marless.app.cli.output import TableColumn, console, data, fitted, say, show_object
from marless.app.cli.recorded import Recorded
from marless.app.cli.working import Working
from marless.core.errors import SpecError

if TYPE_CHECKING:
    from marless.jobs.prices import Prices

Document = dict[str, Any]  # Any: JSON
Columns = list[TableColumn]


def dollars(usd: float) -> str:
    """An amount for display, to the microdollar, because small jobs cost little."""
    return f"{usd:,.6f}"


def elsewhere(
    found: Recorded,
    table: Prices,
    *,
    spot: Path | None,
    bid: float | None,
    own: int | None,
    idle: bool,
    output: Output,
) -> None:
    """Show what a run would cost on spot machines, with slots of one's own, or on a machine that is idle at times."""
    if (spot is not None) + (own is not None) + idle > 1:
        raise SpecError("--spot, --own and --idle show a table each: give one of them")
    if not found.records:
        raise SpecError(f"job {found.job} has no round yet; there is nothing to bill")
    with Working(f"billing {len(found.records):,} rounds"):
        if spot is not None:
            document, columns, sentences = _spot(found, table, spot, bid)
        elif own is not None:
            document, columns, sentences = _own(found, table, own)
        else:
            document, columns, sentences = _idle(found, table)
    if output is Output.jsonl:
        data(json.dumps({"job": found.job} | document))
    elif output is not Output.table:
        show_object({"job": found.job} | document, found.job, output)
    else:
        screen = console()
        screen.print(fitted(columns, screen.width))
        for sentence in sentences:
            say(sentence)


def _spot(found: Recorded, table: Prices, path: Path, bid: float | None) -> tuple[Document, Columns, list[str]]:
    from marless.cost.billing.spot_files import read_spot_prices

    series = read_spot_prices(path, None if bid is None else Decimal(repr(bid)))
    made = series.bill(found.records, found.spec, table)
    figures = {"usd": made.usd, "seconds": made.seconds, "kills": made.kills, "lost_s": made.lost_s}
    document: Document = {
        "machine": made.machine,
        "begun": len(made.runs),
        "undisturbed_s": made.undisturbed_s,
        "on_demand_usd": made.on_demand_usd,
        **{name: dict(zip(("least", "mean", "most"), values, strict=True)) for name, values in figures.items()},
    }
    titles = ("spot USD", "seconds", "kills", "lost and paid again, s")
    texts = [
        [dollars(usd), f"{s:,.1f}", f"{kills:,.2f}", f"{lost:,.1f}"]
        for usd, s, kills, lost in zip(made.usd, made.seconds, made.kills, made.lost_s, strict=True)
    ]
    columns = [TableColumn(title="", cells=titles)]
    columns += [
        TableColumn(title=title, cells=cells, right=True)
        for title, cells in zip(("least", "mean", "most"), texts, strict=True)
    ]
    return (
        document,
        columns,
        [
            f"modelled: the run on {made.machine}, begun at {len(made.runs):,} moments of {path}",
            f"undisturbed {made.undisturbed_s:,.1f} s, at list price {dollars(made.on_demand_usd)} USD",
        ],
    )


def _own(found: Recorded, table: Prices, vcpus: int) -> tuple[Document, Columns, list[str]]:
    from marless.cost.billing.own import bill_with_own
    from marless.cost.pricing import usd

    made, without = (bill_with_own(found.records, found.spec, table, count) for count in (vcpus, 0))
    document: Document = {
        "own_vcpus": vcpus,
        "own_vcpu_s": made.own_s,
        "billed_vcpu_s": made.billed_s,
        "usd_by_kind": {name: usd(picos) for name, picos in made.picos.items()},
        "own_share": made.share,
        "usd": made.total_usd,
        "usd_without": without.total_usd,
    }
    free = [(f"{name}: own", f"{seconds:,.2f}", "free") for name, seconds in made.own_s.items()]
    billed = [
        (name, f"{made.billed_s[name]:,.2f}" if name in made.billed_s else "", dollars(usd(picos)))
        for name, picos in made.picos.items()
    ]
    cells = list(zip(*free, *billed, ("total", "", dollars(made.total_usd)), strict=True))
    return (
        document,
        [
            TableColumn(title="kind", cells=cells[0]),
            TableColumn(title="vCPU seconds", cells=cells[1], right=True),
            TableColumn(title="billed USD", cells=cells[2], right=True),
        ],
        [
            f"{made.share:.0%} of the work runs on {vcpus} vCPUs of your own, which are idle otherwise; all on "
            f"functions, the run costs {dollars(without.total_usd)} USD"
        ],
    )


def _idle(found: Recorded, table: Prices) -> tuple[Document, Columns, list[str]]:
    from marless.cost.billing.own import BUSY, own_machines

    made = own_machines(found.records, found.spec, table)
    on_functions = made[0].functions_usd
    document: Document = {
        "functions_usd": on_functions,
        "machines": [
            {
                "machine": each.instance,
                "vcpus": each.vcpus,
                "seconds": each.seconds,
                "usd_by_busy": {f"{busy:g}": each.usd(busy) for busy in BUSY},
                "break_even_busy": each.break_even,
                "functions_pay_from_idle": each.idle,
            }
            for each in made
        ],
    }
    pay = [f"{each.idle:.1%} idle" if each.idle else "always" for each in made]
    curve = [
        TableColumn(title=f"busy {busy:.0%}", cells=[dollars(each.usd(busy)) for each in made], right=True, goes=goes)
        for goes, busy in enumerate(BUSY)
    ]
    columns = [
        TableColumn(title="machine", cells=[each.instance for each in made]),
        TableColumn(title="seconds", cells=[f"{each.seconds:,.1f}" for each in made], right=True),
        *curve,
        TableColumn(title="functions pay from", cells=pay, right=True),
    ]
    return (
        document,
        columns,
        [
            f"on functions, the run costs {dollars(on_functions)} USD (billed); busy 10%: on a machine that is rented "
            "all the time, and works for a tenth of it",
            "modelled: the seconds on each machine",
        ],
    )
