"""How long workers took to start, by launcher: from order to connection, and to first task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from marless.jobs.record import InvocationRecord, RoundRecord
from marless.jobs.usage import HOST, WHOLE


@dataclass(frozen=True)
class Starts:
    """The workers of one launcher that were ordered and had their first task in these rounds."""

    launcher: str
    pool: str
    workers: int
    connected_s: float
    """Median of the seconds from order to connection."""
    connected_most_s: float
    first_task_s: float
    """Median of the seconds from order to first task."""
    first_task_most_s: float


def starts(records: Iterable[RoundRecord]) -> tuple[Starts, ...]:
    """The starts of workers by launcher and pool; without those that were connected before the job, or dialled in."""
    launchers: dict[tuple[str, str], str] = {}
    cold: list[tuple[InvocationRecord, str]] = []
    for record in records:
        launchers |= {(each.id, each.pool): each.launcher for each in record.machines if each.launcher}
        for each in record.invocations:
            if each.cold and each.init_s and (each.function in WHOLE or each.function == HOST):
                pool = "learner" if each.function == HOST else "actor"
                cold.append((each, pool))
    seen: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for each, pool in cold:  # a machine may be recorded some rounds after the start of its workers
        launcher = launchers.get((each.machine, pool), "")
        seen[launcher, pool].append((each.init_s, each.init_s + each.ready_s))
    return tuple(_summed(launcher, pool, times) for (launcher, pool), times in seen.items())


def _summed(launcher: str, pool: str, times: list[tuple[float, float]]) -> Starts:
    connected, first_task = zip(*times, strict=True)
    return Starts(
        launcher,
        pool=pool,
        workers=len(times),
        connected_s=median(connected),
        connected_most_s=max(connected),
        first_task_s=median(first_task),
        first_task_most_s=max(first_task),
    )
