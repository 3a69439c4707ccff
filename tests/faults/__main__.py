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
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from bench.harness import Row, machine, say, table
from bench.report import insert
from marless.fleet.launchers.registry import LOCAL, Choice
from tests.faults import (
    disk_full,
    linearizability,
    misbehaving,
    overload,
    paused_writer,
    read_only,
    redis_kills,
    run_folder_disk,
    scale_down,
    spool_full,
    uploads,
)
from tests.faults.harness import ProcessStage, Undisturbed
from tests.faults.table import FULL, cells
from tests.faults.totals import Figures, total


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the printed table."""

    id: str
    attack: str
    run: Callable[[int, Path, ProcessStage], Awaitable[Figures]]
    seeds: Sequence[int] = (0,)
    limits: Mapping[str, float] = field(default_factory=dict)
    """What a figure may be at most."""
    rows: tuple[str, ...] = ()
    """The rows of the table of faults whose cells at full size it runs, if it runs those."""


def of_table(id_: str, attack: str, *rows: str, limits: Mapping[str, float] | None = None) -> Case:
    """A case that runs cells of the table of faults; a row may be given by the beginning of its name."""

    async def run(seed: int, _place: Path, stage: ProcessStage) -> Figures:
        return total([await stage.check(cell, seed) for cell in cells(target=FULL) if str(cell).startswith(rows)])

    return Case(id=id_, attack=attack, run=run, limits=limits or {}, rows=rows)


async def _r14_read_only(seed: int, place: Path, _stage: ProcessStage) -> Figures:
    return await _on_disks(read_only.remounted, read_only.aborted, seed, place)


async def _r14_run_folder(seed: int, place: Path, _stage: ProcessStage) -> Figures:
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


SOON = {"recovery p95 (s)": 5.0}
CASES = (
    of_table(
        "R1",
        "kill -9 of workers, services and Redis at random moments of a job",
        "synchronous small: kill -9 of anything",
        limits=SOON,
    ),
    of_table(
        "R2",
        "kill -9 of the coordinator around each durable write of a round or a restart",
        "synchronous small: kill -9 of the coordinator around its writes",
        limits=SOON,
    ),
    of_table(
        "R2",
        "kill -9 of the coordinator while it restores a checkpoint to a store that lost the job",
        "synchronous small: kill -9 of the coordinator as it restores",
        limits=SOON,
    ),
    of_table(
        "R2",
        "kill -9 of the coordinator while it accepts a job",
        "synchronous small: kill -9 of the coordinator as it accepts",
    ),
    of_table("R2", "kill -9 of learner workers and of the store around a publish", "synchronous small: kill -9 at "),
    of_table(
        "R2",
        "kill -9 of the coordinator during updates of six seconds, of two scopes and with a replay",
        "synchronous two-scopes: ",
        "synchronous remembering: kill -9 of the coordinator",
    ),
    of_table(
        "R2",
        "kill -9 around all these writes, in a job whose groups and actors change every other round",
        "synchronous changing: ",
        limits=SOON,
    ),
    of_table(
        "off-policy",
        "kill -9 of learner workers and their pool during updates of a job that learns from a replay",
        "synchronous remembering: kill -9 of learners",
        "synchronous remembering: kill -9 at ",
        limits=SOON,
    ),
    of_table(
        "R1",
        "the kills of the first line, in a job whose rounds overlap",
        "pipelined small: kill -9 of anything",
        limits=SOON,
    ),
    of_table(
        "R1",
        "the kills of the first line, in a job that trains asynchronously",
        "stellaris learning: kill -9 of anything",
        limits=SOON,
    ),
    of_table(
        "R2",
        "kill -9 of the store between aggregation and publish of a job that trains asynchronously, and after it",
        "stellaris learning: kill -9 of the store",
    ),
    of_table(
        "R2",
        "kill -9 of the coordinator around each durable write, in a job whose rounds overlap",
        "pipelined small: kill -9 of the coordinator around its writes",
        limits=SOON,
    ),
    of_table(
        "R2",
        "kill -9 of the coordinator while it restores a checkpoint of a job whose rounds overlap",
        "pipelined small: kill -9 of the coordinator as it restores",
        limits=SOON,
    ),
    of_table(
        "R2",
        "kill -9 of learner workers and of the store around a publish of a job whose rounds overlap",
        "pipelined small: kill -9 at ",
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
    of_table(
        "R7",
        "SIGSTOP of a coordinator beyond its lease and of a learner worker beyond its pool, then SIGCONT",
        "synchronous small: SIGSTOP",
    ),
    of_table("R7", "the same of a job whose rounds overlap", "pipelined small: SIGSTOP"),
    of_table(
        "R8",
        "each connection between services cut for 1, 5 and 30 s, messages in transit held or lost",
        "synchronous small: connections cut",
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
    of_table(
        "R15",
        "the wall clock of every process jumps by an hour, forwards and back, beside two coordinators",
        "synchronous small: clocks jump",
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


async def perform(case: Case, seeds: Sequence[int], known: Undisturbed) -> tuple[Row, bool]:
    """Run a case with each seed; the first failure ends it. Returns its line, and whether all went well."""
    every, problem = [], ""
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="marless-faults-") as directory:
            try:
                async with ProcessStage(Path(directory), known) as stage:
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
        "figures": (f"{len(seeds)} seeds: " if len(seeds) > 1 else "")
        + ", ".join(f"{name} {value:,}" for name, value in figures.items()),
        "result": f"{problem or 'pass'}, {machine()['measured']}",
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
    known: Undisturbed = {}
    about, sound = machine(), True
    for case in CASES:
        if options.only and not set(options.only) & set(case.id.split(", ")):
            continue
        say(f"{case.id}: {case.attack} …")
        started_s = time.monotonic()
        row, passed = await perform(case, case.seeds if options.seed is None else [options.seed], known)
        say(f"{row['result']}: {row['figures']} ({time.monotonic() - started_s:.0f} s)")
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
