"""A learner that had to be started for a job is billed with the job's first update, whatever it was started for."""

import asyncio
from types import SimpleNamespace

from marless.fleet.machines import MachineAccounts
from marless.jobs.spec import parse, spaces_to_json
from marless.learning.envs import registry as environments
from marless.rpc.refs import Loans
from marless.rpc.v1 import common_pb2, learner_pool_pb2
from marless.services.learner_pool.tasks import LearnTasks
from marless.services.learner_pool.trajectory_buffer import TrajectoryFile
from marless.services.learner_pool.updates import Updates

SPEC = parse({"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 1}}, "job")


class Dispatcher:
    """One worker, whose first task is cold."""

    def __init__(self) -> None:
        self.tasks, self.machines = 0, MachineAccounts()

    async def run(self, task, payload, *, timeout_s, setting, affinity):
        self.tasks += 1
        cold = self.tasks == 1
        return common_pb2.TaskResult(
            payload=learner_pool_pb2.LearnResult(device="cpu").SerializeToString(),
            invocation=common_pb2.Invocation(
                id=task, cold=cold, init_s=2.5 if cold else 0.0, init_cpu_s=1.5 if cold else 0.0
            ),
        )


async def nothing(*_, **__):
    return None


def test_the_start_of_a_learner_is_on_the_first_update(tmp_path):
    dispatcher = Dispatcher()
    buffer = SimpleNamespace(
        open=lambda *_, **__: None,
        epoch=lambda _: 0,
        check_epoch=lambda *_: None,
        reservations=SimpleNamespace(check=lambda *_: None, update=lambda *_, **__: None),
        trajectories=lambda *_: [TrajectoryFile(tmp_path / "trajectories", learner_pool_pb2.UploadHeader(), 1)],
        spare=lambda: tmp_path / "spare",
        advance=lambda *_: 0,
        close=lambda *_: None,
    )
    store = SimpleNamespace(list=lambda _: asyncio.sleep(0, SimpleNamespace(policies={})))
    replays = SimpleNamespace(open=lambda *_: None, path=lambda *_: None, used=lambda *_: None, evict=lambda *_: None)
    tasks = LearnTasks(buffer, replays, Loans(lambda *_: True), dispatcher, SimpleNamespace(ensure=nothing))
    updates = Updates(buffer, replays, tasks, store)
    spaces = spaces_to_json(environments.spaces(SPEC.env.name, SPEC.env.options))
    groups = [common_pb2.Group(policy="agent_0", agents=["agent_0"])]
    opening = learner_pool_pb2.OpenJobRequest(job="j", spec_json=SPEC.to_json(), spaces_json=spaces, groups=groups)

    async def job() -> list[tuple[bool, float, float]]:
        await updates.open(opening)
        versions = [common_pb2.PolicyVersion(policy="agent_0", version=1)]
        found = []
        for round_ in range(2):
            asked = learner_pool_pb2.UpdateRequest(job="j", round=round_, actors=1, groups=groups, versions=versions)
            [learner] = (await updates.update(asked)).invocations
            found.append((learner.cold, learner.init_s, learner.init_cpu_s))
        return found

    assert asyncio.run(job()) == [(True, 2.5, 1.5), (False, 0.0, 0.0)]
