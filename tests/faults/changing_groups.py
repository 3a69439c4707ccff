"""R2: kills around each durable write of a job whose groups and number of actors change every other round. It comes to
the same groups, decisions and weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.faults import failpoints
from tests.faults.pools import DOCUMENT
from tests.faults.results import Result, undisturbed
from tests.faults.rig import Rig

CHANGING = DOCUMENT | {
    "name": "changing",
    "env": {"name": "mpe/simple_spread", "options": {"agents": 3, "max_cycles": 7}},
    "actors": {"count": 3, "envs": 4, "steps": 5, "episodes": "carried"},
    "scaling": "scripted",
    "sharing": {"name": "scripted", "period": 2},
}
Figures = Mapping[str, float]


async def prepared(rig: Rig, rounds: int) -> tuple[Rig, Result]:
    """The rig with the job that changes, and what that job comes to; raises AssertionError if nothing changes in it."""
    changing = replace(rig, document=CHANGING)
    reference = await undisturbed(changing, rounds)
    learners = [len(each["groups"]) for each in reference.rounds]
    assert learners[:5] == [3, 3, 1, 1, 3], "the groups do not change"
    assert len({each["actors"] for each in reference.rounds}) == 3, "the number of actors does not change"
    return changing, reference


async def run(rig: Rig, seed: int, *, kills: int, rounds: int) -> list[Figures]:
    """Kill the coordinator so often around its writes, half as often while it puts a checkpoint back, and each learner
    and the store now and then around a publish; raises AssertionError unless all comes to the same.
    """
    changing, reference = await prepared(rig, rounds)
    figures: list[Figures] = [
        await failpoints.in_rounds(changing, seed, kills=kills, rounds=rounds, reference=reference),
        await failpoints.on_loss(changing, seed, kills=kills // 2, rounds=rounds, reference=reference),
    ]
    for name in failpoints.of(failpoints.ELSEWHERE):
        some = max(1, kills // 12)
        figures.append(await failpoints.elsewhere(changing, seed, name, kills=some, rounds=rounds, reference=reference))
    return figures
