"""`python -m tests.faults`: every fault scenario at full size, as a table.

`--only R4 --seed 7` replays one of them with the seed that it failed with.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from bench.harness import Row, machine, say, table
from bench.report import insert
from marless.fleet.launchers.registry import LOCAL, Choice
from tests.faults import (
    asynchronous_kills,
    changing_groups,
    clocks,
    disk_full,
    failpoints,
    job_kills,
    linearizability,
    mid_update,
    misbehaving,
    overload,
    partitions,
    paused_processes,
    paused_writer,
    read_only,
    redis_kills,
    remembering,
    run_folder_disk,
    scale_down,
    spool_full,
    uploads,
)
from tests.faults.results import Result, undisturbed
from tests.faults.rig import Rig, running_rig
from tests.faults.totals import Figures, total

ROUNDS = 300
LEARNING_VERSIONS = 400
"""After which the job that learns is as good as it gets, whatever its seed."""
MID_UPDATE_ROUNDS, MID_UPDATE_S = 40, 6.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table."""

    id: str
    attack: str
    run: Callable[[int, Path, Stage], Awaitable[Figures]]
    seeds: Sequence[int] = (0,)
    limits: Mapping[str, float] = field(default_factory=dict)
    """What a figure may be at most."""


class Stage:
    """A rig for those cases that need one, started when first asked for, and what its job comes to undisturbed."""

    def __init__(self, place: Path, references: dict[str, Result]) -> None:
        self._place = place
        self._references = references
        self._held = AsyncExitStack()

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._held.aclose()

    async def rig(self, schedule: str = "synchronous") -> Rig:
        rig = await self._held.enter_async_context(running_rig(self._place / "rig"))
        return rig.under(schedule)

    async def reference(self, rig: Rig | None = None) -> Result:
        rig = rig or await self.rig()
        if rig.schedule not in self._references:
            self._references[rig.schedule] = await undisturbed(rig, ROUNDS)
        return self._references[rig.schedule]


async def _r1(seed: int, _place: Path, stage: Stage, *, schedule: str = "synchronous") -> Figures:
    rig = await stage.rig(schedule)
    return await job_kills.run(rig, seed, kills=100, rounds=ROUNDS, reference=await stage.reference(rig))


async def _r1_asynchronous(seed: int, _place: Path, stage: Stage) -> Figures:
    return await asynchronous_kills.of_a_job_that_learns(await stage.rig(), seed, kills=100, versions=LEARNING_VERSIONS)


async def _r2_aggregations(seed: int, _place: Path, stage: Stage) -> Figures:
    return await asynchronous_kills.at_aggregations(await stage.rig(), seed, kills=20, versions=ROUNDS)


async def _r2_rounds(seed: int, _place: Path, stage: Stage, *, schedule: str = "synchronous") -> Figures:
    rig = await stage.rig(schedule)
    return await failpoints.in_rounds(rig, seed, kills=60, rounds=ROUNDS, reference=await stage.reference(rig))


async def _r2_loss(seed: int, _place: Path, stage: Stage, *, schedule: str = "synchronous") -> Figures:
    rig = await stage.rig(schedule)
    return await failpoints.on_loss(rig, seed, kills=30, rounds=ROUNDS, reference=await stage.reference(rig))


async def _r2_submit(seed: int, _place: Path, stage: Stage) -> Figures:
    return await failpoints.on_submit(await stage.rig(), seed, kills=20)


async def _r2_elsewhere(seed: int, _place: Path, stage: Stage, *, schedule: str = "synchronous") -> Figures:
    rig = await stage.rig(schedule)
    reference = await stage.reference(rig)
    every = [
        await failpoints.elsewhere(rig, seed, name, kills=5, rounds=ROUNDS, reference=reference)
        for name in failpoints.of(failpoints.ELSEWHERE)
    ]
    return total(every)


async def _r2_mid_update(seed: int, _place: Path, stage: Stage) -> Figures:
    rig, every = await stage.rig(), []
    for prepare in (mid_update.of_two_scopes, mid_update.that_remembers):
        subject = await prepare(rig, MID_UPDATE_ROUNDS)
        every.append(
            await mid_update.run(
                subject, seed, mid_update.MOMENTS, times=8, rounds=MID_UPDATE_ROUNDS, update_s=MID_UPDATE_S
            )
        )
    return total(every)


async def _r2_changing(seed: int, _place: Path, stage: Stage) -> Figures:
    return total(await changing_groups.run(await stage.rig(), seed, kills=60, rounds=ROUNDS))


async def _off_policy(seed: int, _place: Path, stage: Stage) -> Figures:
    return total(await remembering.run(await stage.rig(), seed, kills=60, rounds=ROUNDS))


async def _r7_processes(seed: int, _place: Path, stage: Stage, *, schedule: str = "synchronous") -> Figures:
    rig = await stage.rig(schedule)
    return await paused_processes.run(rig, seed, times=10, rounds=ROUNDS, reference=await stage.reference(rig))


async def _r8(_seed: int, place: Path, stage: Stage) -> Figures:
    reference = await stage.reference()
    return await partitions.run(place / "cut", lengths_s=[1.0, 5.0, 30.0], rounds=ROUNDS, reference=reference)


async def _r14_read_only(seed: int, place: Path, _stage: Stage) -> Figures:
    return await _on_disks(read_only.remounted, read_only.aborted, seed, place)


async def _r14_run_folder(seed: int, place: Path, _stage: Stage) -> Figures:
    return await _on_disks(run_folder_disk.full, run_folder_disk.aborted, seed, place)


async def _on_disks(
    usual: Callable[[int, Path], Awaitable[Figures]],
    failing: Callable[[int, Path], Awaitable[Figures]],
    seed: int,
    place: Path,
) -> Figures:
    """Both kinds of trouble with a disk; the second needs a machine where this process may mount images."""
    every = []
    for run in (usual, failing) if read_only.can_abort() else (usual,):
        (place / run.__name__).mkdir()
        every.append(await run(seed, place / run.__name__))
    return total(every) | ({} if len(every) > 1 else {"failing disks not tried": 1})


async def _r15(seed: int, place: Path, stage: Stage) -> Figures:
    return await clocks.run(place / "clocks", seed, jumps=60, rounds=ROUNDS, reference=await stage.reference())


CASES = (
    Case(
        id="R1",
        attack="kill -9 of workers, services and Redis at random moments of a job",
        run=_r1,
        limits={"recovery p95 (s)": 5.0},
    ),
    Case(
        id="R2",
        attack="kill -9 of the coordinator around each durable write of a round or a restart",
        run=_r2_rounds,
        limits={"recovery p95 (s)": 5.0},
    ),
    Case(
        id="R2",
        attack="kill -9 of the coordinator while it restores a checkpoint to a store that lost the job",
        run=_r2_loss,
        limits={"recovery p95 (s)": 5.0},
    ),
    Case(id="R2", attack="kill -9 of the coordinator while it accepts a job", run=_r2_submit),
    Case(id="R2", attack="kill -9 of learner workers and of the store around a publish", run=_r2_elsewhere),
    Case(
        id="R2",
        attack="kill -9 of the coordinator during updates of six seconds, of two scopes and with a replay",
        run=_r2_mid_update,
    ),
    Case(
        id="R2",
        attack="kill -9 around all these writes, in a job whose groups and actors change every other round",
        run=_r2_changing,
        limits={"recovery p95 (s)": 5.0},
    ),
    Case(
        id="off-policy",
        attack="kill -9 of learner workers and their pool during updates of a job that learns from a replay",
        run=_off_policy,
        limits={"recovery p95 (s)": 5.0},
    ),
    Case(
        id="R1",
        attack="the kills of the first line, in a job whose rounds overlap",
        run=partial(_r1, schedule="pipelined"),
        limits={"recovery p95 (s)": 5.0},
    ),
    Case(
        id="R1",
        attack="the kills of the first line, in a job that trains asynchronously",
        run=_r1_asynchronous,
        limits={"recovery p95 (s)": 5.0},
    ),
    Case(
        id="R2",
        attack="kill -9 of the store between aggregation and publish of a job that trains asynchronously, and after it",
        run=_r2_aggregations,
    ),
    Case(
        id="R2",
        attack="kill -9 of the coordinator around each durable write, in a job whose rounds overlap",
        run=partial(_r2_rounds, schedule="pipelined"),
        limits={"recovery p95 (s)": 5.0},
    ),
    Case(
        id="R2",
        attack="kill -9 of the coordinator while it restores a checkpoint of a job whose rounds overlap",
        run=partial(_r2_loss, schedule="pipelined"),
        limits={"recovery p95 (s)": 5.0},
    ),
    Case(
        id="R2",
        attack="kill -9 of learner workers and of the store around a publish of a job whose rounds overlap",
        run=partial(_r2_elsewhere, schedule="pipelined"),
    ),
    Case(
        id="R3, R5",
        attack="kill -9 of Redis under four competing writers",
        run=lambda seed, place, _: redis_kills.run(seed, place, kills=50),
    ),
    Case(
        id="R4",
        attack="linearizability: 16 clients, kill -9 of Redis and the store, resets, cuts, delays, black holes",
        run=lambda seed, place, _: linearizability.run(seed, place, operations=20_000, redis_kills=5, store_kills=3),
        seeds=range(20),
    ),
    Case(
        id="R6",
        attack="uploads: 10 % twice, 5 % late, 2 % under an old epoch, 2 % too early, over failing connections",
        run=lambda seed, place, _: uploads.run(seed, place, uploads=10_000, per_round=100),
    ),
    Case(
        id="R7",
        attack="SIGSTOP of a writer while its epoch ends, then SIGCONT",
        run=lambda seed, place, _: paused_writer.run(seed, place, times=50),
    ),
    Case(
        id="R7",
        attack="SIGSTOP of a coordinator beyond its lease and of a learner worker beyond its pool, then SIGCONT",
        run=_r7_processes,
    ),
    Case(
        id="R7",
        attack="the same of a job whose rounds overlap",
        run=partial(_r7_processes, schedule="pipelined"),
    ),
    Case(
        id="R8",
        attack="each connection between services cut for 1, 5 and 30 s, messages in transit held or lost",
        run=_r8,
        limits={"progress after at most (s)": 10.0},
    ),
    Case(
        id="R13",
        attack="ten times the callers that keep a service busy: publishes, gets, uploads, rollouts, submits",
        run=lambda _seed, place, _: overload.run(place, seconds=10.0, least=0.8),
    ),
    Case(
        id="R14",
        attack="the disk of Redis and of the store's log is full (64 MiB tmpfs); Redis is killed meanwhile",
        run=lambda seed, place, _: disk_full.run(seed, place),
        seeds=range(3),
    ),
    Case(
        id="R14",
        attack="the filesystem of Redis turns read-only, before a restart and under its open log",
        run=_r14_read_only,
        seeds=range(3),
    ),
    Case(id="R14", attack="the disk of the run folders is full, or fails and turns read-only", run=_r14_run_folder),
    Case(id="R14", attack="the spool is full", run=lambda _seed, place, _: asyncio.to_thread(spool_full.run, place)),
    Case(
        id="R17",
        attack="environments that misbehave, in every way in make, reset, step and close, beside a job of another user",
        run=lambda seed, place, _: misbehaving.run(seed, place),
    ),
    Case(
        id="R15",
        attack="the wall clock of every process jumps by an hour, forwards and back, beside two coordinators",
        run=_r15,
    ),
    Case(
        id="R16",
        attack="scale-down and SIGTERM of workers while they sample",
        run=lambda seed, place, _: scale_down.run(seed, place, times=50),
    ),
    Case(
        id="R16",
        attack="the pool releases 97 of 100 workers at once, while they sample",
        run=lambda _seed, place, _: scale_down.at_once(place, LOCAL, workers=100, remaining=3),
    ),
    Case(
        id="R16",
        attack="97 of 100 workers that dialled in are killed at once, while they sample",
        run=lambda _seed, place, _: scale_down.at_once(place, Choice("external"), workers=100, remaining=3),
    ),
)


async def perform(case: Case, seeds: Sequence[int], references: dict[str, Result]) -> tuple[Row, bool]:
    """Run a case with each seed; the first failure ends it. Returns its line, and whether all went well."""
    started_s, every, problem = time.monotonic(), [], ""
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="marless-faults-") as directory:
            try:
                async with Stage(Path(directory), references) as stage:
                    every.append(await case.run(seed, Path(directory), stage))
            except Exception:  # noqa: BLE001  # whatever it is, it is the result of this case, and the next one counts too
                say(traceback.format_exc())
                say(f"to replay: python -m tests.faults --only {case.id.partition(',')[0]} --seed {seed}")
                problem = f"FAIL with seed {seed}"
                break
    figures = total(every)
    for name, most in case.limits.items():
        if figures.get(name, 0.0) > most:
            problem = problem or f"FAIL: {name} is above {most:g}"
    row: Row = {
        "id": case.id,
        "attack": case.attack,
        "seeds": len(seeds),
        "figures": ", ".join(f"{name} {value:,}" for name, value in figures.items()),
        "result": problem or "pass",
        "seconds": round(time.monotonic() - started_s),
        "measured": str(machine()["measured"]),
    }
    return row, not problem


def merged(document: str, rows: Sequence[Row]) -> list[Row]:
    """These rows, and of the table in the document those of cases that were not run now; in the order of the cases."""
    begin, end = "<!-- faults -->", "<!-- /faults -->"
    lines = document.partition(begin)[2].partition(end)[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
    earlier: list[Row] = [dict(zip(cells[0], each, strict=False)) for each in cells[2:]] if cells else []
    by_case = {(row["id"], row["attack"]): row for row in (*earlier, *rows)}
    return [by_case[case.id, case.attack] for case in CASES if (case.id, case.attack) in by_case]


async def main(options: argparse.Namespace) -> int:
    """Run what was asked for; returns the exit code."""
    rows: list[Row] = []
    references: dict[str, Result] = {}
    about, sound = machine(), True
    for case in CASES:
        if options.only and not set(options.only) & set(case.id.split(", ")):
            continue
        say(f"{case.id}: {case.attack} …")
        row, passed = await perform(case, case.seeds if options.seed is None else [options.seed], references)
        say(f"{row['result']}: {row['figures']} ({row['seconds']} s)")
        rows.append(row)
        sound = sound and passed
    document = options.document.read_text(encoding="utf-8") if options.document else ""
    text = (
        f"{table(merged(document, rows))}\n\n"
        f"The newest rows: {about['cores']} cores of {about['cpu']}, {about['memory_gib']} GiB; "
        f"Python {about['python']}; load average before: {about['load_before']}."
    )
    sys.stdout.write(f"{text}\n")
    if options.document:
        options.document.write_text(insert(document, "faults", text), encoding="utf-8")
    return 0 if sound else 1


if __name__ == "__main__":
    # Pools that run in this process would tell of each worker that is killed.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ID", help="run these lines of the table, such as R1 R4")
    parser.add_argument("--seed", type=int, help="use this seed alone")
    parser.add_argument(
        "--document", type=Path, help="put the lines into the table of this file, between its `faults` markers"
    )
    sys.exit(asyncio.run(main(parser.parse_args())))
