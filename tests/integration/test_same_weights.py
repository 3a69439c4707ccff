"""All algorithms come to the weights that plain function calls in one process come to, bit for bit."""

from itertools import count

import pytest

from marless.services.coordinator.state.run_folder import RunFolder
from tests.integration.one_process import check_same_weights
from tests.integration.running import ENVS, broken, created, succeeded
from tests.integration.running import spec as spec_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
LEARNS = {"updates": 2, "batch": 8, "warmup": 16, "replay": {"capacity": 500}}
PPO = {"epochs": 2, "minibatches": 2}
ALGORITHMS = {
    "ippo": PPO,
    "mappo": PPO,
    "impact": PPO | {"batches": 2, "target_frequency": 0.5},
    "iql": LEARNS,
    "vdn": LEARNS,
    "qmix": LEARNS,
    "iddpg": LEARNS,
    "maddpg": LEARNS,
    "td3": LEARNS | {"random_steps": 16},
    "sac": LEARNS | {"random_steps": 16},
    "pqn": PPO,
    "pqn_vdn": PPO,
}
TEAM = {"name": "mpe/simple_spread", "options": {"agents": 3, "max_cycles": 7}}
RIVALS = {"name": "mpe/simple_adversary", "options": {"max_cycles": 7}}
ROUNDS = 6
EVERYTHING = {
    "actors": {"count": 3, "envs": ENVS, "steps": 3, "episodes": "carried"},
    "scaling": "scripted",
    "sharing": {"name": "scripted", "period": 2},
    "evaluation": {"every": 2, "episodes": 2, "random_episodes": 2},
    "stop": {"rounds": ROUNDS},
}
"""Lanes that rest and come back, policies that are shared and split, evaluations beside updates."""
_serials = count()


def new(tmp_path, name: str, **changes) -> RunFolder:
    env = TEAM if name in ("vdn", "qmix", "pqn_vdn") else RIVALS
    given = {"env": env, "algorithm": {"name": name, **ALGORITHMS[name]}, **EVERYTHING, **changes}
    return created(tmp_path / f"same-{next(_serials)}", spec_of(**given))


@pytest.mark.parametrize("name", ["ippo", "qmix"])
async def test_a_job_of_fresh_episodes(cluster, tmp_path, name):
    folder = new(tmp_path, name, actors={"count": 3, "envs": ENVS, "steps": 7, "episodes": "fresh"})
    await succeeded(cluster, folder)
    check_same_weights(folder)


@pytest.mark.parametrize("schedule", ["synchronous", "stellaris"])
async def test_episodes_that_a_fault_has_ended_are_counted_apart(cluster, tmp_path, schedule):
    folder = created(tmp_path / f"same-{next(_serials)}", spec_of(**broken(tmp_path / "notes"), schedule=schedule))
    await succeeded(cluster, folder)
    rounds = [(each.broken_episodes, each.returns.episodes if each.returns else 0) for each in folder.records()]
    assert all(faults == counted for faults, counted in rounds) and sum(faults for faults, _ in rounds) >= 5
