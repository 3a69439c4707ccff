"""Jobs that learn from a replay, through real services: teams of one learner, changing groups, kills, bills."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count, pairwise

import pytest
import pytest_asyncio

from marless.core.group import Group
from marless.cost.billing.bill import bill
from marless.cost.estimates.simulate import replayed_spec, simulate
from marless.cost.simulation.cluster import modelled, waits
from marless.jobs import prices
from marless.jobs.job import prepare
from marless.jobs.prices import ACCOUNTINGS
from marless.jobs.usage import HOST, usage
from marless.services.coordinator.state.run_folder import RunFolder
from tests.integration.running import (
    ENVS,
    STEPS,
    created,
    succeeded,
)
from tests.integration.running import spec as spec_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
LEARNS = {"updates": 3, "batch": 16, "warmup": 40, "replay": {"capacity": 2000}}
"""Learning begins with the second round, whatever it has."""
MARLESS = {
    "env": {"name": "mpe/simple_spread", "options": {"agents": 5, "max_cycles": STEPS}},
    "algorithm": {"name": "vdn", **LEARNS, "warmup": 70},
    "actors": {"count": 6, "envs": ENVS, "steps": STEPS},
    "scaling": "marless",
    "sharing": {"name": "marless", "window": 2, "threshold": 4.99},
    "stop": {"rounds": 8},
}
"""Shares or splits every other round, for hardly any trend is as steep."""
TWO_CLASSES = {
    "env": {"name": "mpe/simple_adversary", "options": {"max_cycles": STEPS}},
    "algorithm": {"name": "maddpg", **LEARNS},
    "actors": {"count": 3, "envs": ENVS, "steps": STEPS},
    "scaling": "scripted",
    "sharing": {"name": "scripted", "period": 2},
    "stop": {"rounds": 7},
}
"""One learner trains all three: the two good agents share in rounds 2 and 3, and in round 6."""
_serials = count()


def new(tmp_path, changes) -> RunFolder:
    return created(tmp_path / f"off-policy-{next(_serials)}", spec_of(**changes))


JOBS = {"maddpg": TWO_CLASSES, "vdn": MARLESS}
Runs = Callable[[str], Awaitable[RunFolder]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runs(cluster, tmp_path_factory) -> Runs:
    """Jobs that nothing befell, by name; each is run when it is first asked for."""
    done: dict[str, RunFolder] = {}

    async def run(name: str) -> RunFolder:
        if name not in done:
            folder = new(tmp_path_factory.mktemp("runs"), JOBS[name])
            await succeeded(cluster, folder)
            done[name] = folder
        return done[name]

    return run


BOTH = pytest.mark.parametrize("name", JOBS)


def inner(record):
    return [each for each in record.invocations if each.function not in ("actor", "evaluation", HOST)]


@BOTH
async def test_one_learner_runs_the_functions_that_the_algorithm_declares(runs, name):
    folder = await runs(name)
    job = prepare(folder.load()[0])
    for record in list(folder.records())[1:]:
        groups = [Group(each.policy, each.agents) for each in record.groups]
        declared = {each.node.id: each.node.after for each in job.functions(groups)}
        assert [each.index for each in record.invocations if each.function == HOST] == [0]
        found = {each.node: each.after for each in inner(record) if each.function not in ("curvature", "similarity")}
        assert found == declared
        assert {each.index for each in inner(record)} == {0}
        if job.curvature:
            measured = {each.name for each in inner(record) if each.function == "curvature"}
            assert measured == {group.policy for group in groups}


@BOTH
async def test_nothing_of_what_was_sampled_is_lost_when_groups_change(runs, name):
    folder = await runs(name)
    records = list(folder.records())
    assert any(now.groups != then.groups for then, now in pairwise(records))
    for record in records:
        [counters] = (numbers for state, numbers in record.metrics.items() if state.startswith("replay."))
        assert counters["inserted"] == counters["size"] == record.env_steps
        assert counters["dropped"] == counters["lost"] == 0


async def test_agents_of_a_class_share_and_split_and_their_critics_stay_joint(runs):
    team = await runs("maddpg")
    records = list(team.records())
    members = [sorted(len(group.agents) for group in record.groups) for record in records]
    assert members == [[1, 1, 1], [1, 1, 1], [1, 2], [1, 2], [1, 1, 1], [1, 1, 1], [1, 2]]
    for record in records[1:]:
        critics = sorted(each.name for each in inner(record) if each.function == "critic")
        assert critics == [f"critic.{agent}" for agent in sorted(prepare(team.load()[0]).spaces.agents)]


async def test_policies_of_marless_share_learners_of_q_values(runs):
    shared = await runs("vdn")
    learners = [len(record.groups) for record in shared.records()]
    assert learners[0] == 5
    assert min(learners) < 5 == max(learners[4:])
    assert any(record.distances for record in shared.records())
    for record in list(shared.records())[1:]:
        for group in record.groups:
            assert record.metrics[group.policy]["curvature"] > 0


@BOTH
async def test_bills_add_up_to_the_last_fraction_and_the_mixers_and_critics_are_on_them(runs, name):
    folder = await runs(name)
    records, spec = list(folder.records()), folder.load()[0]
    made = bill(records, spec, prices.load(None))
    for accounting in ACCOUNTINGS:
        of_rounds = sum(each.picos(accounting) for each in made.rounds)
        of_functions = sum(charge.picos for each in made.rounds for charge in each.charges[accounting])
        assert of_rounds == of_functions > 0
    for record in records[1:]:
        uses = [use for use in usage(record, spec.functions) if use.function not in ("actor", "evaluation")]
        assert {(use.function, use.name) for use in uses} == {(each.function, each.name) for each in inner(record)}
        [host] = (each for each in record.invocations if each.function == HOST)
        assert sum(use.seconds for use in uses) <= (host.end_s - host.start_s) + sum(
            each.vcpu_s for each in inner(record)
        )


@BOTH
async def test_a_replay_under_its_own_policies_is_the_run_and_a_graph_is_what_slots_are_modelled_by(runs, name):
    folder = await runs(name)
    records, spec = list(folder.records()), folder.load()[0]
    again = simulate(records, spec, replayed_spec(spec, scaling="", sharing="", overrides=()))
    assert [step.replayed for step in again.steps] == [replace(each, machines=()) for each in records]
    apart = simulate(records, spec, replayed_spec(spec, scaling="fixed", sharing="fixed", overrides=()))
    job = prepare(spec)
    for step in apart.steps[1:]:
        found = [each.node for each in inner(step.replayed) if each.function not in ("curvature", "similarity")]
        groups = [Group(each.policy, each.agents) for each in step.replayed.groups]
        assert sorted(found) == sorted(each.node.id for each in job.functions(groups))
    newest = records[-1]
    graph = inner(newest)
    first = next(each for each in graph if each.function == "policy")
    assert {graph[number].node for number in waits(first, graph)} == set(first.after) != set()
    one, many = (modelled(newest, spec.functions, slots).update for slots in (1, 64))
    assert many < one
