"""Off-policy: kills of learner workers and their pool in the midst of updates of a job that learns from a replay, whose
rounds go around its end and whose groups change. Samples are neither lost nor used twice, and the weights are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.faults import failpoints, job_kills
from tests.faults.changing_groups import CHANGING
from tests.faults.results import Result, undisturbed
from tests.faults.rig import Rig

CAPACITY = 250
"""Frames: some four rounds of 20 to 60 env steps, of which each episode takes one frame more."""
REMEMBERING = CHANGING | {
    "name": "remembering",
    "env": {"name": "mpe/simple_spread", "options": {"agents": 3, "max_cycles": 5}},
    "actors": {"count": 3, "envs": 4, "steps": 5, "episodes": "fresh"},
    "algorithm": {
        "name": "vdn",
        "updates": 3,
        "batch": 16,
        "warmup": 40,
        "epsilon": {"start": 1.0, "end": 0.1, "env_steps": 1000},
        "replay": {"capacity": CAPACITY, "draw": "prioritised"},
    },
}
VICTIMS = ("learner_pool", "learner_pool worker", "learner_pool worker")
POINTS = failpoints.of(("learner.publish",))
Figures = Mapping[str, float]


async def prepared(rig: Rig, rounds: int) -> tuple[Rig, Result]:
    """The rig with the job that remembers, and what it comes to; raises AssertionError if its replay never wraps."""
    remembering = replace(rig, document=REMEMBERING)
    reference = await undisturbed(remembering, rounds)
    assert reference.rounds[-1]["metrics"]["replay.agent"]["dropped"] > CAPACITY, "the replay has not gone around"
    assert len({len(each["groups"]) for each in reference.rounds}) > 1, "the groups do not change"
    return remembering, reference


async def run(rig: Rig, seed: int, *, kills: int, rounds: int, points: Sequence[str] = POINTS) -> list[Figures]:
    """Kill learner workers and their pool at random moments, and workers around their publishes; raises AssertionError
    unless all comes to the same, and the counters to what was sampled.
    """
    remembering, reference = await prepared(rig, rounds)
    check(reference, rounds)
    figures: list[Figures] = [
        await job_kills.run(remembering, seed, kills=kills, rounds=rounds, reference=reference, victims=VICTIMS)
    ]
    for name in points:
        some = max(1, kills // 12)
        figures.append(
            await failpoints.elsewhere(remembering, seed, name, kills=some, rounds=rounds, reference=reference)
        )
    return figures


def check(result: Result, rounds: int) -> None:
    """Raises AssertionError unless every env step of every round was inserted once and none was lost."""
    assert len(result.rounds) == rounds
    for each in result.rounds:
        counters = each["metrics"]["replay.agent"]
        assert counters["inserted"] == each["env_steps"] == counters["size"] + counters["dropped"], "samples are lost"
        assert counters["lost"] == 0, "a replay was lost"
