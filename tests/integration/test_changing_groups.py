"""Jobs whose groups and number of actors change: what is computed, and that no interruption changes it."""

import asyncio
import json
from dataclasses import replace
from itertools import count, pairwise

import pytest
import pytest_asyncio

import marless
from marless.core.group import Group
from marless.cost.billing.ledger import Ledger
from marless.jobs import prices
from marless.jobs.job import prepare
from marless.learning.algos import registry as algorithms
from marless.learning.algos.learner import LearnerContext, RoundInput, Scope
from marless.learning.data.player import actor_seed
from marless.learning.data.rollout import Lane
from marless.learning.envs import registry
from marless.learning.nets import serial
from marless.learning.nets.acting import ActingPolicies
from marless.rpc.v1 import actor_pool_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.common_pb2 import ListWorkersRequest
from marless.services.coordinator.execution.reservations import Prewarming
from marless.services.coordinator.execution.service_pools import ServicePools
from marless.services.coordinator.state.run_folder import RunFolder
from marless.storage.checkpoint import PARTS
from tests.integration.running import (
    ENVS,
    STEPS,
    KilledError,
    created,
    go_on,
    outcome,
    ready,
    restarted,
    succeeded,
)
from tests.integration.running import spec as spec_of
from tests.unit.jobs.test_record import RETURNS

pytestmark = pytest.mark.asyncio(loop_scope="module")
AGENTS = ("agent_0", "agent_1", "agent_2")
MERGED, SPLIT, ROUNDS = 2, 4, 7
_serials = count()


def spec(**changes):
    """Three agents that share in rounds 2 and 3, and again from round 6 on; 1 to 3 actors."""
    return spec_of(
        **{
            "env": {"name": "mpe/simple_spread", "options": {"agents": 3, "max_cycles": STEPS}},
            "actors": {"count": 3, "envs": ENVS, "steps": STEPS},
            "scaling": "scripted",
            "sharing": {"name": "scripted", "period": 2},
            "stop": {"rounds": ROUNDS},
        }
        | changes
    )


def new(tmp_path, **changes) -> RunFolder:
    return created(tmp_path / f"changing-{next(_serials)}", spec(**changes))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(cluster, tmp_path_factory) -> RunFolder:
    """Of a job that nothing befell."""
    folder = new(tmp_path_factory.mktemp("runs"))
    await succeeded(cluster, folder)
    return folder


@pytest.fixture
def undisturbed(folder):
    return outcome(folder)


# What happens


async def test_groups_and_actors_are_those_that_the_policies_decided(folder):
    records = list(folder.records())
    members = [[group.agents for group in record.groups] for record in records]
    apart, together = [(agent,) for agent in AGENTS], [AGENTS]
    assert members == [apart, apart, together, together, apart, apart, together]
    assert all(now.actors != then.actors for then, now in pairwise(records))
    [shared] = records[MERGED].groups
    assert shared.policy in AGENTS
    assert {group.policy: group.source for group in records[SPLIT].groups} == {
        agent: "" if agent == shared.policy else shared.policy for agent in AGENTS
    }
    for record in records:
        actors = [each for each in record.invocations if each.function == "actor"]
        assert len(actors) == record.actors
        assert record.env_steps == sum(r.actors for r in records[: record.round + 1]) * ENVS * STEPS


async def test_each_round_publishes_one_version_of_what_it_trains_and_the_other_heads_stay(folder):
    heads = dict.fromkeys(AGENTS, 1)
    for record in folder.records():
        heads |= {group.policy: heads[group.policy] + 1 for group in record.groups}
        assert dict(record.versions) == heads
        assert {group.policy: group.version for group in record.groups}.items() <= heads.items()


async def test_decisions_and_their_reasons_are_recorded_and_changes_are_lines_of_the_log(folder):
    records = list(folder.records())
    for record in records:
        scaling, sharing = record.decisions
        assert (scaling.kind, scaling.rule, scaling.outcome) == ("scaling", "scripted", f"{record.actors} actors")
        assert sharing.outcome == " ".join("+".join(group.agents) for group in record.groups)
    turns = [[1, "share"], [3, "split"], [5, "share"]]
    assert records[-1].decisions[1].inputs == {"left": 2, "turns": turns}
    lines = [json.loads(line) for line in folder.log_path.read_text().splitlines()]
    shares = {(each["event"], each["round"]): each for each in lines if each["event"].startswith("learners.")}
    assert list(shares) == [("learners.shared", 3), ("learners.split", 5), ("learners.shared", 7)]
    assert shares["learners.split", 5]["reason"] == "turn 2: split"
    assert shares["learners.split", 5]["policies"] == {agent: [agent] for agent in AGENTS}
    scaled = [(each["round"], each["before"], each["actors"]) for each in lines if each["event"] == "actors.scaled"]
    assert scaled == [(r.round + 1, before.actors, r.actors) for before, r in pairwise(records)]


@pytest.mark.parametrize("round_", [4, 6])
async def test_a_checkpoint_knows_who_plays_what(cluster, tmp_path, round_):
    """A change that was decided and not yet trained is none."""
    folder = new(tmp_path, checkpoint={"every": 2, "keep": 9}, stop={"rounds": round_})
    await succeeded(cluster, folder)
    assert_its_policies_are_those_that_were_trained(folder)


async def test_a_checkpoint_after_the_last_change_knows_who_plays_what(folder):
    assert_its_policies_are_those_that_were_trained(folder)


def assert_its_policies_are_those_that_were_trained(folder: RunFolder) -> None:
    record = list(folder.records())[-1]
    team = marless.load_policy(folder.path)
    assert {name: (each.agents, each.version) for name, each in team.policies.items()} == {
        group.policy: (group.agents, group.version) for group in record.groups
    }
    assert sorted(team.agents) == list(AGENTS)


async def test_services_compute_what_one_process_computes(folder):
    """The same rounds by plain function calls, with the recorded groups and actors: equal to the last bit."""
    given = spec()
    spaces = prepare(given).spaces
    [agents] = spaces.classes
    lanes = [Lane(registry.make(given.env.name, given.env.options, ENVS)) for _ in range(given.actors.count)]
    begun: set[int] = set()
    learner = algorithms.algorithm("ippo").learner(
        given.algorithm, LearnerContext(given.model, spaces, Scope(0, (0,), agents.name), "cpu")
    )
    for agent in AGENTS:
        learner.load(agent, learner.initial(agent, given.seed))
    env_steps = 0
    for record in folder.records():
        groups = tuple(Group(each.policy, each.agents, each.source) for each in record.groups)
        starts = {agent: learner.state(group.start) for group in groups for agent in group.agents}
        acting = [ActingPolicies.from_states(agents, [starts[agent] for agent in AGENTS])]
        played = []
        for index, lane in enumerate(lanes[: record.actors]):
            seed = actor_seed(given.seed, actor_pool_pb2.ROLLOUT_MODE_TRAIN, record.round, index)
            if index not in begun:
                lane.begin(seed)
                begun.add(index)
            played.append(lane.roll(acting, steps=STEPS, seed=seed, with_state=False, index=index)[0])
        learner.update(RoundInput(record.round, env_steps, given.seed, groups, played))
        env_steps = record.env_steps
    saved = folder.checkpoints.load(ROUNDS)
    for agent in AGENTS:
        if agent in saved.progress.groups:
            assert tuple(map(bytes, saved.policies[agent].blobs.values())) == serial.encode(learner.state(agent))


# What interrupts it


"""Shares or splits every other round, for hardly any trend is as steep."""


# Starting from a checkpoint


async def test_a_job_starts_from_what_its_agents_shared(cluster, folder, tmp_path, kill_at):
    started = new(tmp_path, start={"checkpoint": str(folder.path)}, sharing="fixed", stop={"rounds": 1})
    kill_at("coordinator.pending.after")
    with pytest.raises(KilledError):
        await go_on(started, cluster.pools)
    begun = await cluster.store.get(started.path.name, dict.fromkeys(AGENTS, 1), PARTS)
    saved = folder.checkpoints.load(ROUNDS)
    [shared] = saved.progress.groups
    assert [dict(each.blobs) for each in begun.values()] == [dict(saved.policies[shared].blobs)] * 3


# Budgets and pre-warming


def spent_usd(folder, *, first: int = 0) -> float:
    """Of the rounds from number `first` on."""
    given, _ = folder.load()
    ledger = Ledger(given, prices.load(None))
    for record in folder.records(first):
        ledger.add(record)
    return ledger.total_usd(given.bill.accounting)


async def test_a_job_ends_where_its_budget_is_spent(cluster, tmp_path):
    paper = {"bill": {"accounting": "paper"}, "evaluation": {"every": 0, "episodes": 1, "random_episodes": 4}}
    two_rounds = new(tmp_path, **paper, stop={"rounds": 2})
    await succeeded(cluster, two_rounds)
    budget_usd = 5 * spent_usd(two_rounds, first=1)  # the first may have had workers to start
    folder = new(tmp_path, **paper, stop={"rounds": 500, "cost_usd": budget_usd})
    run = await go_on(folder, cluster.pools)
    spent = spent_usd(folder)
    assert (run.status.state, run.status.reason) == (
        "SUCCEEDED",
        f"{spent:.6f} USD spent by paper accounting, of a budget of {budget_usd:g} USD",
    )
    records = list(folder.records())
    assert spent >= budget_usd
    assert 0 < len(records) < 500
    assert [bool(record.evaluation) for record in records] == [False] * (len(records) - 1) + [True]
    summary = json.loads(run.status.summary_json)
    assert (summary["cost_usd"], summary["accounting"]) == (spent, "paper")


async def test_no_round_starts_that_the_budget_has_been_spent_for(cluster, tmp_path, kill_at, sampled):
    """A coordinator that comes back adds up what is recorded, before anything else."""
    folder = new(tmp_path)
    kill_at("coordinator.record.after", 3)
    with pytest.raises(KilledError):
        await go_on(folder, cluster.pools)
    spent = spent_usd(folder)
    assert folder.own()
    folder.write_spec(spec(stop={"rounds": ROUNDS, "cost_usd": spent}))
    run = await go_on(folder, cluster.pools)
    assert run.status.state == "SUCCEEDED"
    assert run.status.reason.startswith(f"{spent:.6f} USD spent by billed accounting, of a budget of")
    assert sampled == [0, 1, 2]


@pytest.mark.parametrize("prewarm", [True, False])
async def test_actors_are_warmed_while_learners_work(cluster, tmp_path, monkeypatch, prewarm):
    """Between an update and the rollout after it, only a hint starts actors that are not there."""
    folder = new(tmp_path, functions={"prewarm": prewarm}, scaling="fixed", sharing="fixed", stop={"rounds": 2})
    real, workers = ServicePools.update, []

    async def update(pools, *args, **kwargs):
        await restarted(cluster, "actor_pool")()  # nobody is warm now
        run._reservations.workers.stop()  # its hint went to the pool that is gone, or is lost on the way there
        run._reservations.workers = Prewarming(cluster.pools, run._id, wanted=prewarm)
        run._reservations.workers.expect(2)
        answer = await real(pools, *args, **kwargs)
        stub = ActorPoolServiceStub(cluster.peers["actor_pool"].channel)
        async with asyncio.timeout(20):
            while prewarm and len(workers) < 2:
                reply = await cluster.peers["actor_pool"].call(stub.ListWorkers, ListWorkersRequest())
                workers[:] = reply.workers
        return answer

    monkeypatch.setattr(ServicePools, "update", update)
    run = ready(folder, cluster.pools)
    await run.run()
    assert run.status.reason == "2 rounds done"
    assert len(workers) == (2 if prewarm else 0)


async def test_invocations_say_how_long_cold_workers_took_to_start(cluster, tmp_path):
    await restarted(cluster, "actor_pool")()
    folder = new(tmp_path, scaling="fixed", sharing="fixed", stop={"rounds": 1})
    folder.write_status(replace(folder.read_status(), random=RETURNS))  # no baseline: the first round's are cold
    await succeeded(cluster, folder)
    [record] = folder.records()
    actors = [each for each in record.invocations if each.function == "actor"]
    assert any(each.cold for each in actors)
    for each in actors:
        assert (each.init_s > 0) == each.cold
        assert each.start_s <= each.end_s
        assert each.memory_bytes > 2**20
        assert each.vcpu_s > 0
