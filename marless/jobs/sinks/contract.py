"""Contract test for sinks: checks that a sink satisfies the protocol of `marless.jobs.sinks.base`.

For marless's tests and those of third parties; see docs/extending/sink.md.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

from marless.core.errors import require
from marless.jobs.record import GroupRecord, InvocationRecord, PhaseSeconds, RoundRecord
from marless.jobs.sinks.base import Sink, SinkJob, scalars
from marless.learning.data.returns import EpisodeReturns

Point = tuple[str, int, float]
"""Name, env steps, value."""
_RANDOM = EpisodeReturns(episodes=9, mean=-3.0, per_agent={"agent_0": -2.0, "agent_1": -4.0}, standard_error=0.1)


def check_sink(make: Callable[[], Sink], folder: Path, read: Callable[[Path], Iterable[Point]] | None = None) -> None:
    """Write a job to sinks in several parts, as after crashes; raises AssertionError, saying which requirement failed.

    `make` creates a new sink, and `folder` is an empty run folder. `read` returns every point shown for the job with
    this run folder, so that missing, duplicate and outdated points are detected.
    """
    job = SinkJob(
        id="contract",
        folder=folder,
        spec_yaml="seed: 1\n",
        settings={"seed": 1, "algorithm.lr": 0.5, "algorithm.name": "ippo", "learner.on": True},
        last=None,
    )
    rounds, again = (
        [sample_round(number, 1.0) for number in range(6)],
        [sample_round(number, 2.0) for number in range(4, 8)],
    )
    threads, said = threading.enumerate(), StringIO()
    with redirect_stdout(said):
        _serve(make(), job, rounds[:3], "RUNNING")
        _serve(make(), replace(job, last=rounds[1]), rounds[2:], "RUNNING")  # round 2 is written again
        _serve(make(), replace(job, last=rounds[3]), again, "SUCCEEDED")  # rounds 4 and 5 are replaced
        _serve(make(), replace(job, last=again[-1]), [], "FAILED")  # resumed without a further round
    require(not said.getvalue(), f"printed to standard output, which is for data: {said.getvalue()[:80]!r}")
    left = [thread.name for thread in threading.enumerate() if thread not in threads and not thread.daemon]
    require(not left, f"left threads that keep the process from ending: {left}")
    if read:
        _compare(list(read(folder)), [*rounds[:4], *again])


def _serve(sink: Sink, job: SinkJob, records: list[RoundRecord], state: str) -> None:
    before = job.last
    sink.open(job)
    for record in records:
        numbers = scalars(record, before, _RANDOM)
        given = dict(numbers)
        sink.write(record, numbers)
        require(numbers == given, f"round {record.round + 1}: changed the scalars that it was given")
        before = record
    sink.close(state)


def _compare(shown: list[Point], records: list[RoundRecord]) -> None:
    wanted: dict[tuple[str, int], float] = {}
    before = None
    for record in records:
        numbers = scalars(record, before, _RANDOM)
        wanted |= {(name, record.env_steps): value for name, value in numbers.items()}
        before = record
    times = Counter((name, step) for name, step, _ in shown)
    for point in wanted:
        require(point in times, f"{point[0]} at env step {point[1]} is missing")
    for name, step, value in shown:
        require((name, step) in wanted, f"{name} at env step {step} was never recorded, or was taken back")
        require(times[name, step] == 1, f"{name} at env step {step} is shown {times[name, step]} times")
        expected = wanted[name, step]
        require(
            math.isclose(value, expected, rel_tol=1e-6),
            f"{name} at env step {step} is {value}, was recorded as {expected}",
        )


def sample_round(number: int, scale: float) -> RoundRecord:
    """A sample record: two agents, 100 env steps per round; no episode ends in odd rounds, every third is evaluated."""
    start_s = 1e9 + 10 * number * scale
    returns = EpisodeReturns(
        episodes=4, mean=-scale, per_agent={"agent_0": -scale, "agent_1": -scale}, standard_error=0.0
    )
    actor = InvocationRecord(
        id=f"contract/{number}/train/0",
        function="actor",
        name="",
        index=0,
        attempt=1,
        worker="actor-0",
        queued_s=start_s,
        start_s=start_s,
        end_s=start_s + 1,
        vcpu_s=0.5 * scale,
        memory_bytes=1,
        cold=number == 0,
    )
    return RoundRecord(
        job="contract",
        round=number,
        env_steps=100 * (number + 1),
        actors=1,
        groups=(GroupRecord(policy="all", agents=("agent_0", "agent_1"), version=number + 2),),
        versions={"all": number + 2},
        started_s=start_s,
        ended_s=start_s + 2 * scale,
        phases=PhaseSeconds(rollout=1.0 * scale, update=0.5, evaluation=0.0),
        returns=None if number % 2 else returns,
        evaluation=returns if number % 3 == 0 else None,
        metrics={"all": {"policy_loss": scale / (number + 1), "kl": 0.0}},
        invocations=(actor,),
        decisions=(),
    )
