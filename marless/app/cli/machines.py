"""What `marless cost` says of the machines of a job, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marless.app.cli.recorded import Recorded
    from marless.cost.billing.bill import Bill
    from marless.cost.billing.ledger import Starts
    from marless.cost.billing.machines import MachineTime
    from marless.jobs.prices import Prices


def machine_lines(found: Recorded, made: Bill, table: Prices) -> Iterator[str]:
    """Machine-minutes, prices that are missing, machines that still cost, and how long workers took to start."""
    from marless.cost.billing.ledger import starts
    from marless.cost.billing.machines import problem

    if not made.machines:
        yield "machines: not recorded" if found.records else "machines: none yet"
        return
    count = len({each.id for each in made.machines})
    yield f"machines: {count} {'machine' if count == 1 else 'machines'}, {_minutes(made.time)}"
    if without := problem(made.time, table):
        yield f"machines: {without}"
    if found.kept and found.kept.held:
        yield f"machines: when last seen, {found.kept.held} still waited for tasks; what they cost since is not known"
    for each in starts(found.records):
        yield _started(each)


def _minutes(time: MachineTime) -> str:
    minutes = time.minutes
    total = minutes["work"] + time.idle_minutes
    parts = (
        *(f"starting {minutes['starting']:,.2f}", f"waiting for tasks {minutes['waiting']:,.2f}"),
        f"kept after the end {minutes['kept']:,.2f}",
    )
    rounded = f"; rounded up by {minutes['minimum']:,.2f}" if minutes["minimum"] else ""
    return f"{total:,.2f} machine-minutes, {time.idle_minutes:,.2f} idle: {', '.join(parts)}{rounded}"


def _started(each: Starts) -> str:
    launcher = f" by launcher {each.launcher}" if each.launcher else ""
    return (
        f"starts: {each.workers} {each.pool} workers{launcher}: {each.connected_s:.2f} s from order to connection "
        f"(at most {each.connected_most_s:.2f}), {each.first_task_s:.2f} s to the first task "
        f"(at most {each.first_task_most_s:.2f})"
    )
