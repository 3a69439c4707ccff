"""Jobs whose episodes go on from round to round: no interruption changes what they come to."""

import json
from itertools import count

import numpy as np
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from marless.core.errors import UnreachableError
from marless.core.group import Group
from marless.jobs.job import prepare
from marless.learning.algos import registry as algorithms
from marless.learning.algos.learner import LearnerContext, RoundInput, Scope
from marless.learning.data.carry import lengths
from marless.learning.data.player import actor_seed
from marless.learning.data.rollout import Lane
from marless.learning.envs import registry
from marless.learning.nets import serial
from marless.learning.nets.acting import ActingPolicies
from marless.rpc import carries
from marless.rpc.v1 import actor_pool_pb2
from marless.services.coordinator.state.run_folder import RunFolder
from tests.integration.running import (
    ENVS,
    KilledError,
    created,
    dying,
    go_on,
    outcome,
    restarted,
    succeeded,
)
from tests.integration.running import spec as spec_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
STEPS, ROUNDS = 3, 7
FAMILIES = {
    "ippo": {"name": "ippo", "epochs": 1, "minibatches": 2},
    "vdn": {"name": "vdn", "warmup": 8, "batch": 8},
    "maddpg": {"name": "maddpg", "warmup": 8, "batch": 8},
}
_serials = count()


def spec(family="ippo", **changes):
    """Episodes of 7 steps in rounds of 3; 1 to 3 actors, so that lanes rest and come back."""
    return spec_of(
        **{
            "env": {"name": "mpe/simple_spread", "options": {"agents": 2, "max_cycles": 7}},
            "algorithm": FAMILIES[family],
            "model": {"hidden": [8], "recurrent": "gru" if family == "ippo" else "none"},
            "actors": {"count": 3, "envs": ENVS, "steps": STEPS, "episodes": "carried"},
            "scaling": "scripted",
            "stop": {"rounds": ROUNDS},
        }
        | changes
    )


def new(tmp_path, family="ippo", **changes) -> RunFolder:
    return created(tmp_path / f"carried-{next(_serials)}", spec(family, **changes))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(cluster, tmp_path_factory):
    """The folder of a job of a family that nothing befell."""
    done: dict[str, RunFolder] = {}

    async def of(family: str) -> RunFolder:
        if family not in done:
            done[family] = new(tmp_path_factory.mktemp(family), family)
            await succeeded(cluster, done[family])
        return done[family]

    return of


# What happens


async def test_lanes_go_on_and_rest_as_the_number_of_actors_changes(undisturbed):
    records = list((await undisturbed("ippo")).records())
    assert len({record.actors for record in records}) == 3
    versions = dict.fromkeys(range(3), 0)
    for record in records:
        versions |= {index: versions[index] + 1 for index in range(record.actors)}
        assert {lane.lane: lane.version for lane in record.lanes} == {i: v for i, v in versions.items() if v}
    whole = 0  # of 7 steps each, however rounds cut them, after a first one that is shorter and does not count
    for lane, version in versions.items():
        first = lengths(lane * ENVS, ENVS, 7) % 7
        whole += int(np.maximum((version * STEPS - first) // 7, 0).sum())
    assert sum(record.returns.episodes for record in records if record.returns) == whole


async def test_services_compute_what_one_process_computes(undisturbed):
    """The same rounds by plain function calls on lanes that live all the time: equal to the last bit."""
    folder, given = await undisturbed("ippo"), spec()
    spaces = prepare(given).spaces
    [agents] = spaces.classes
    lanes = {index: Lane(registry.make(given.env.name, given.env.options, ENVS)) for index in range(3)}
    begun: set[int] = set()
    learner = algorithms.algorithm("ippo").learner(
        given.algorithm, LearnerContext(given.model, spaces, Scope(0, (0,), agents.name), "cpu")
    )
    for agent in agents.agents:
        learner.load(agent, learner.initial(agent, given.seed))
    env_steps = 0
    for record in folder.records():
        played = []
        for index in range(record.actors):
            seed = actor_seed(given.seed, actor_pool_pb2.ROLLOUT_MODE_TRAIN, record.round, index)
            if index not in begun:
                lanes[index].begin(seed)
                begun.add(index)
            acting = [ActingPolicies.from_states(agents, [learner.state(agent) for agent in agents.agents])]
            played.append(lanes[index].roll(acting, steps=STEPS, seed=seed, with_state=False, index=index)[0])
        groups = tuple(Group(each.policy, each.agents, each.source) for each in record.groups)
        learner.update(RoundInput(record.round, env_steps, given.seed, groups, played))
        env_steps = record.env_steps
    saved = folder.checkpoints.load(ROUNDS)
    for agent in agents.agents:
        assert tuple(map(bytes, saved.policies[agent].blobs.values())) == serial.encode(learner.state(agent))


@pytest.mark.parametrize("family", ["ippo", "vdn"])
async def test_policies_with_memory_go_on_where_they_were(cluster, tmp_path, family):
    """The learners' memory at the start of a round is that of the actors, which the pool checks as part of uploads."""
    more = {"vdn": {"replay": {"unit": "episodes", "burn_in": 1}, "last_action": True}}.get(family, {})
    model = {"hidden": [8], "recurrent": "gru"}
    folder = new(tmp_path, family, model=model, algorithm=FAMILIES[family] | more, stop={"rounds": 3})
    await succeeded(cluster, folder)


async def test_environments_of_pettingzoo_go_on_as_seeds_and_actions(cluster, tmp_path):
    env = {"name": "pettingzoo/pettingzoo.classic.tictactoe_v3", "options": {}}
    folder = new(tmp_path, env=env, actors={"count": 2, "envs": 2, "steps": STEPS, "episodes": "carried"})
    await succeeded(cluster, folder)
    records = list(folder.records())
    assert sum(record.returns.episodes for record in records if record.returns)
    assert all(record.lanes for record in records)


async def test_environments_of_gymnasium_go_on_as_if_nothing_had_interrupted_them(cluster, tmp_path, after):
    env = {"name": "gymnasium/Pendulum-v1", "options": {"max_episode_steps": 7}}
    whole, interrupted = new(tmp_path, env=env), new(tmp_path, env=env)
    await succeeded(cluster, whole)
    after("train", 3, restarted(cluster, "actor_pool"))
    await succeeded(cluster, interrupted)
    assert outcome(interrupted) == outcome(whole)
    assert sum(record.returns.episodes for record in whole.records() if record.returns)


async def test_environments_that_cannot_be_saved_go_on_copy_by_copy(cluster, tmp_path, after):
    env = {"name": "counted", "options": {"notes": str(tmp_path / "notes"), "agents": 2, "max_cycles": 7}}
    whole, interrupted = new(tmp_path, env=env), new(tmp_path, env=env)
    await succeeded(cluster, whole)
    after("train", 3, restarted(cluster, "actor_pool"))
    await succeeded(cluster, interrupted)
    assert outcome(interrupted) == outcome(whole)
    assert all(record.lanes for record in whole.records())


# What interrupts it

SLOW = pytest.mark.slow


async def test_a_round_whose_carries_were_not_published_is_rolled_out_again(cluster, undisturbed, tmp_path, sampled):
    """The coordinator has died between its rollout and the publish; a lane that the round did not run is no reason."""
    folder = new(tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        real = carries.publish
        patched.setattr(carries, "publish", lambda *given: dies() if sampled[-1] == 4 else real(*given))
        with pytest.raises(KilledError):
            await go_on(folder, cluster.pools)
    await succeeded(cluster, folder)
    assert sampled == [0, 1, 2, 3, 4, 4, 5, 6]
    assert outcome(folder) == outcome(await undisturbed("ippo"))


async def test_carries_that_the_store_could_not_take_are_published_later(
    cluster, undisturbed, tmp_path, sampled, monkeypatch
):
    """The coordinator still has them, so that nothing is rolled out again."""
    folder, real, refused = new(tmp_path), carries.publish, []

    async def publish(*given: object) -> None:
        if sampled[-1] == 4 and not refused:
            refused.append(sampled[-1])
            raise UnreachableError("param_store: it was away")
        await real(*given)

    monkeypatch.setattr(carries, "publish", publish)
    await succeeded(cluster, folder)
    assert refused == [4]
    assert sampled == list(range(ROUNDS))
    assert outcome(folder) == outcome(await undisturbed("ippo"))


@SLOW
async def test_large_carries_that_actors_publish(cluster, tmp_path):
    """A coordinator and workers die; the carries of 4,000 copies do not travel with receipts."""
    actors = {"count": 3, "envs": 4000, "steps": STEPS, "episodes": "carried"}
    given = {"actors": actors, "model": {"hidden": [8]}, "stop": {"rounds": 4}}
    whole, folder = new(tmp_path, **given), new(tmp_path, **given)
    await succeeded(cluster, whole)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("marless.services.coordinator.execution.round_commands.RoundCommands._update", dies)
        with pytest.raises(KilledError):
            await go_on(folder, cluster.pools)
    async with dying(cluster, "actor_pool", "actor.carry.after:2"):
        await succeeded(cluster, folder)
    assert outcome(folder) == outcome(whole)
    assert any(each.attempt > 1 for record in folder.records() for each in record.invocations)


async def dies(*_) -> None:
    raise KilledError("killed")


@SLOW
async def test_a_store_that_loses_one_lane_that_rests(cluster, undisturbed, tmp_path, after, redis_url):
    """It is missed when the job is recovered, before its actor is needed."""
    folder = new(tmp_path)

    async def lose() -> None:
        async with Redis.from_url(redis_url) as redis:
            key = f"marless:{{{folder.path.name}}}:"
            assert await redis.hdel(f"{key}heads", carries.policy_of(2)) == 1
        raise UnreachableError("param_store: it was away")

    after("train", 5, lose, before=True)
    await succeeded(cluster, folder)
    assert outcome(folder) == outcome(await undisturbed("ippo"))
    assert any(json.loads(line)["event"] == "job.versions_lost" for line in folder.log_path.read_text().splitlines())
