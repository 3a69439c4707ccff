"""Jobs whose nets are modules of torch: services come to what one process comes to, whatever is interrupted."""

from __future__ import annotations

import subprocess
import sys
from itertools import count

import numpy as np
import onnxruntime
import pytest

import marless
from marless.core.errors import SpecError
from marless.jobs.job import prepare
from marless.services.coordinator.state.run_folder import RunFolder
from tests.integration import one_process_asynchronous
from tests.integration.running import created, go_on, succeeded
from tests.integration.running import spec as spec_of
from tests.templates import SCRIPTED

pytestmark = pytest.mark.asyncio(loop_scope="module")
FAMILIES = {
    "ippo": {"name": "ippo", "epochs": 2, "minibatches": 2},
    "maddpg": {"name": "maddpg", "warmup": 8, "batch": 8, "updates": 2, "replay": {"capacity": 90}},
}
_serials = count()


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """This process knows the modules of the workers."""
    monkeypatch.syspath_prepend(SCRIPTED)


def new(tmp_path, algorithm: dict, **changes) -> RunFolder:
    given = {"algorithm": algorithm, "model": {"net": "module/normed", "hidden": [8]}} | changes
    return created(tmp_path / f"modules-{next(_serials)}", spec_of(**given))


@pytest.mark.parametrize("family", FAMILIES)
async def test_no_interruption_changes_what_modules_learn(tmp_path, check_restarts, family):
    await check_restarts(new(tmp_path, FAMILIES[family]), new(tmp_path, FAMILIES[family]))


@pytest.mark.parametrize("episodes", ["carried", "fresh"])
async def test_no_interruption_changes_what_modules_with_memory_learn(tmp_path, check_restarts, episodes):
    """Actors write what they remember into trajectories and lanes, as the job's `module_memory` says."""
    model = {"net": "module/recalling", "hidden": [6], "module_memory": 6}
    actors = {"count": 2, "envs": 2, "steps": 5, "episodes": episodes}
    await check_restarts(*(new(tmp_path, FAMILIES["ippo"], model=model, actors=actors) for _ in range(2)))


@pytest.mark.parametrize("torso", ["separate", "shared"])
async def test_gradients_of_modules_are_aggregated_without_torch(cluster, tmp_path, torso):
    actors = {"count": 3, "envs": 2, "steps": 5, "episodes": "fresh"}
    algorithm, schedule = {"name": "ippo", "torso": torso, "truncation": "least"}, {"name": "stellaris", "learners": 2}
    folder = new(tmp_path, algorithm, schedule=schedule, actors=actors)
    await succeeded(cluster, folder)
    one_process_asynchronous.check_same_weights(folder)


ACTS = """
import sys
sys.modules["torch"] = None
import marless, numpy as np
team = marless.load_policy(sys.argv[1])
team.save(sys.argv[2])
print(team.act({"agent_0": np.ones((3, 12))})["agent_0"].tolist())
"""


def acted(*arguments: object) -> str:
    """What the program prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", ACTS, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def test_a_team_of_modules_is_loaded_and_exported_where_neither_torch_nor_the_package_is(cluster, tmp_path):
    folder = new(tmp_path, FAMILIES["ippo"])
    await succeeded(cluster, folder)
    expected = acted(folder.path, tmp_path / "team.onnx")
    again = marless.load_policy(tmp_path / "team.onnx")
    assert str(again.act({"agent_0": np.ones((3, 12))})["agent_0"].tolist()) == expected
    session = onnxruntime.InferenceSession(tmp_path / "team.onnx")
    seen = {"agent_0.observation": np.ones((3, 12), np.float32), "agent_0.mask": np.ones((3, 5), np.bool_)}
    others = {name.replace("0", "1", 1): array for name, array in seen.items()}
    (actions,) = session.run(["agent_0.action"], seen | others)
    assert str(actions.tolist()) == expected


async def test_a_wrong_module_ends_the_job_before_it_samples(cluster, tmp_path):
    folder = new(tmp_path, FAMILIES["ippo"], model={"net": "module/wide", "hidden": [8]})
    done = await go_on(folder, cluster.pools)
    assert done.status.state == "FAILED"
    assert "net module/wide: it maps float32[3, 12] to float32[3, 6], expected float32[3, 5]" in done.status.reason
    assert not list(folder.records())


@pytest.mark.parametrize(("name", "setting"), [("ippo", "popart"), ("iql", "dueling")])
async def test_what_changes_a_last_layer_is_refused(tmp_path, name, setting):
    with pytest.raises(
        SpecError, match=f"^algorithm.{setting} changes the last layer .* set algorithm.{setting}: false$"
    ):
        prepare(spec_of(algorithm={"name": name, setting: True}, model={"net": "module/normed"}))
