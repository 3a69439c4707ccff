"""The command `cost`: the cost of a job so far, by all accountings, and what its machines did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from marless.app.cli.machines import machine_lines
from marless.app.cli.options import CoordinatorOptions, Output, OutputOption
from marless.app.cli.output import console, data, say, show_object
from marless.app.cli.recorded import Recorded, RecordedArgument, find
from marless.app.cli.working import Working
from marless.core.errors import SpecError, unknown_name

if TYPE_CHECKING:
    from marless.cost.billing.bill import Bill, By
    from marless.jobs.accountings import Accounting
    from marless.jobs.prices import Prices

PricesOption = Annotated[
    Path | None,
    typer.Option("--prices", metavar="FILE", help="Price file that overrides the price list; default: the job's."),
]


def cost(
    at: CoordinatorOptions,
    job: RecordedArgument,
    by: Annotated[Literal["kind", "round", "group"], typer.Option(help="What each line of the table shows.")] = "kind",
    accounting: Annotated[
        list[str], typer.Option(metavar="NAME", help="paper, billed, serverful or machines; default: all.")
    ] = [],  # noqa: B006  # typer's way
    prices: PricesOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Show what a job has cost, while it runs or afterwards: by function, by round, or by group of agents.

    paper: execution and starts only; billed: all that a provider charges; serverful: a machine for the whole run;
    machines: those that its workers ran on.
    """
    from marless.cost.billing.bill import bill
    from marless.jobs import prices as tables

    wanted = _accountings(accounting)
    with Working(f"reading {job}"):
        found = find(job, at)
    table = tables.load(str(prices)) if prices else tables.merged(found.spec.bill.prices)
    with Working(f"billing {len(found.records):,} rounds"):
        made = bill(found.records, found.spec, table, found.kept)
    wanted = tuple(each for each in wanted if each in made.accountings)
    if output is Output.table:
        _about(found, made, table)
        _show(made, by, wanted)
        for line in (*machine_lines(found, made, table), *_wasted(found)):
            say(line)
    elif output is Output.jsonl:
        for row in _rows(made, by, wanted):
            data(json.dumps(row))
    else:
        show_object(_document(found, made, table, wanted), found.job, output)


def dollars(usd: float) -> str:
    """An amount for display, to the microdollar, because small jobs cost little."""
    return f"{usd:,.6f}"


def _accountings(given: list[str]) -> tuple[Accounting, ...]:
    from marless.jobs.accountings import ALL

    for each in given:
        if each not in ALL:
            raise SpecError(f"--accounting: {unknown_name('accounting', each, ALL)}")
    return tuple(each for each in ALL if not given or each in given)


def _document(
    found: Recorded, made: Bill, table: Prices, wanted: tuple[Accounting, ...]
) -> dict[str, Any]:  # Any: JSON
    from marless.cost.billing.bill import to_dict
    from marless.cost.billing.ledger import starts

    about = {"job": found.job, "state": found.state, "counts_as_cost": found.spec.bill.accounting}
    figures = to_dict(made, table) | {"starts": [asdict(each) for each in starts(found.records)]}
    for name in ("usd", "by_kind", "by_round", "by_group"):
        figures[name] = {accounting: figures[name][accounting] for accounting in wanted}
    if found.kept:
        figures["machines_held"], figures["machines_seen_s"] = found.kept.held, found.kept.seen_s
    return about | figures


def _rows(made: Bill, by: By, wanted: tuple[Accounting, ...]) -> list[dict[str, Any]]:  # Any: JSON
    """One row per kind, round or group: its name, and US dollars by accounting."""
    from marless.cost.pricing.money import usd

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
    say(
        f"billed by {made.backend}, list prices of {table.region} as of {_oldest(table)}; serverful: modelled, "
        f"on {made.machine or 'no machine: there is no round yet'}"
    )


def _oldest(table: Prices) -> str:
    return str(min(section.date for section in (table.lambda_, table.fargate, table.ec2, table.redis)))


def _wasted(found: Recorded) -> Iterator[str]:
    """What an asynchronous job has rolled out for nothing."""
    from marless.jobs.version_report import unused

    if wasted := unused(found.records):
        yield (
            f"{wasted.rollouts} of {wasted.of} rollouts were not learned from (too old, lost, or waiting at the end): "
            f"{wasted.share:.1%} of what actors worked"
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
