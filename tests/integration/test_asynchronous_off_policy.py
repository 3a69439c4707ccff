"""Asynchronous jobs whose learner makes each version by itself, from a replay: every off-policy algorithm.

As for jobs of gradients (`test_asynchronous`), one process computes each job once more from its records.
"""

import asyncio
from collections import Counter, defaultdict
from itertools import count

import pytest

from marless.core.errors import SpecError
from marless.jobs.asynchronous_run import replayed
from marless.jobs.job import prepare
from marless.jobs.schedules.events import read
from marless.learning.aggregation.config import AsyncRule
from marless.learning.algos import registry as algorithms
from marless.learning.algos.off_policy.config import OffPolicyConfig
from marless.services.coordinator.execution.recovery import Recovery
from marless.services.coordinator.execution.service_pools import ServicePools
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.learner_pool.tasks import LearnTasks
from tests.integration.running import KilledError, check_replay, created, go_on, outcome, restarted, succeeded
from tests.integration.running import spec as spec_of
from tests.integration.test_asynchronous import ROUNDS, check
from tests.integration.test_same_weights import RIVALS

pytestmark = pytest.mark.asyncio(loop_scope="module")
_serials = count()
LEARNS = {"updates": 2, "batch": 8, "warmup": 20, "replay": {"capacity": 2000}}
"""Learning begins with the second version."""
EVERYTHING = {
    "actors": {"count": 3, "envs": 2, "steps": 5, "episodes": "fresh"},
    "schedule": "stellaris",
    "stop": {"rounds": ROUNDS},
}
OFF_POLICY = [
    name
    for name in sorted(algorithms.ALGORITHMS.names())
    if issubclass(algorithms.algorithm(name).config_type, OffPolicyConfig)
]
THREE = pytest.mark.parametrize("name", ["vdn", "qmix", "maddpg"])


def spec(name, **changes):
    return spec_of(**EVERYTHING | {"algorithm": {"name": name, **LEARNS}} | changes)


def new(tmp_path, name, **changes) -> RunFolder:
    return created(tmp_path / f"off-policy-{next(_serials)}", spec(name, **changes))


def checked(folder: RunFolder, *, lost: bool = False) -> list:
    """As `check`; and what is learned from is in the replay, each rollout once."""
    records = check(folder, lost=lost)
    for record in records:
        assert [each.staleness for each in record.aggregation.gradients] == [0]
        for state, numbers in record.metrics.items():
            if state.startswith("replay."):
                assert numbers["inserted"] == numbers["size"] == record.env_steps
                assert numbers["dropped"] == numbers["lost"] == 0
    return records


async def test_every_off_policy_algorithm_is_tried():
    assert {"iql", "vdn", "qmix", "iddpg", "maddpg"} <= set(OFF_POLICY)


@pytest.mark.parametrize("name", OFF_POLICY)
async def test_services_compute_what_one_process_computes(cluster, tmp_path, name):
    folder = new(tmp_path, name)
    await succeeded(cluster, folder)
    records = checked(folder)
    assert records[-1].newest_evaluation is not None


@pytest.mark.parametrize("name", ["pqn", "pqn_vdn"])
async def test_services_compute_it_without_a_replay(cluster, tmp_path, name):
    folder = new(tmp_path, name, algorithm={"name": name, "minibatches": 2})
    await succeeded(cluster, folder)
    checked(folder)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("iddpg", {"env": RIVALS}),
        ("maddpg", {"env": RIVALS}),
        ("vdn", {"schedule": {"name": "stellaris", "batch": 2}}),
        ("vdn", {"algorithm": {"name": "vdn", **LEARNS, "replay": {"capacity": 2000, "draw": "prioritised"}}}),
    ],
    ids=["two learners", "two classes", "batches of two", "priorities"],
)
async def test_so_they_do_with_other_settings(cluster, tmp_path, name, changes):
    folder = new(tmp_path, name, **changes)
    await succeeded(cluster, folder)
    checked(folder)


async def test_a_record_has_what_was_billed(cluster, tmp_path):
    folder = new(tmp_path, "qmix")
    await succeeded(cluster, folder)
    for record in folder.records():
        kinds = Counter(each.function for each in record.invocations)
        happened = Counter(each.kind for each in read(record.aggregation.arrivals))
        assert kinds["actor"] == happened["rollout"]
        assert kinds["learner"] == happened["gradient"] == 1
        assert kinds["parameter"] == 0
        assert bool(record.returns) == bool(happened["rollout"])


@THREE
async def test_a_replay_comes_to_the_same_weights(cluster, tmp_path, name):
    folder = new(tmp_path, name)
    await succeeded(cluster, folder)
    await check_replay(cluster, folder, tmp_path / "again")


async def test_a_replay_of_a_run_that_has_lost_something_does_not_make_what_was_lost(cluster, tmp_path, after):
    folder = new(tmp_path, "vdn")
    after("sample", 5, restarted(cluster, "learner_pool"))
    after("update", 5, lambda: cluster.store.delete_job(folder.path.name), before=True)
    await succeeded(cluster, folder)
    kinds = {each.kind for record in folder.records() for each in read(record.aggregation.arrivals)}
    assert "restart" in kinds
    again = created(tmp_path / "again", replayed(folder.load()[0], list(folder.records())))
    await succeeded(cluster, again)
    assert outcome(again)[1] == outcome(folder)[1]


@THREE
@pytest.mark.parametrize("pool_too", [False, True], ids=["", "and the pool"])
async def test_a_coordinator_that_is_killed_once_the_version_is_there(cluster, tmp_path, monkeypatch, name, pool_too):
    """It is recorded as made from the rollouts that it was made from, with their bills and returns.

    Two rollouts make a version. Those of a number end in one order before the kill, and in the other one after it.
    """
    actors = EVERYTHING["actors"] | {"count": 2}
    folder = new(tmp_path, name, actors=actors, schedule={"name": "stellaris", "batch": 2, "data_lag": 0})
    sample, update, asked = ServicePools.sample, ServicePools.update, []
    ended: defaultdict[tuple[int, bool], asyncio.Event] = defaultdict(asyncio.Event)

    async def one_after_the_other(pools, job_id, job, rollout, *args, **given):
        found, is_after = await sample(pools, job_id, job, rollout, *args, **given), len(asked) > 3
        ended[rollout, is_after].set()
        if rollout % 2 != is_after:
            await ended[rollout ^ 1, is_after].wait()
        return found

    async def dies(*args, **given):
        answer = await update(*args, **given)
        asked.append((given["round_"], tuple(given["rollouts"]), answer.versions))
        if len(asked) == 4:
            raise KilledError
        return answer

    monkeypatch.setattr(ServicePools, "sample", one_after_the_other)
    monkeypatch.setattr(ServicePools, "update", dies)
    with pytest.raises(KilledError):
        await go_on(folder, cluster.pools)
    if pool_too:
        await restarted(cluster, "learner_pool")()
    await succeeded(cluster, folder)
    records = checked(folder, lost=True)
    assert asked[3] == asked[4] == (3, (6, 7), records[3].versions)
    assert [each.rollouts for record in records[3:5] for each in record.aggregation.gradients] == [(6, 7), (9, 8)]
    for record in records:
        assert record.returns
        assert Counter(each.function for each in record.invocations)["actor"] == 2


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_version_of_other_rollouts_than_those_asked_for_sends_the_job_back(
    cluster, tmp_path, monkeypatch, at_once
):
    """As after a power failure that leaves the store, and has pending.json forgotten."""
    folder = new(tmp_path, "vdn", schedule={"name": "stellaris", "batch": 2})
    update, calls, back, begun = ServicePools.update, count(), [], asyncio.Event()
    run, go_back = LearnTasks.run, Recovery.go_back

    async def made_otherwise_first(*args, **given):
        if next(calls) != 3:
            return await update(*args, **given)
        begun.clear()
        other = asyncio.create_task(update(*args, **given | {"rollouts": given["rollouts"][::-1]}))
        await (begun.wait() if at_once else other)
        try:
            return await update(*args, **given)
        finally:
            await other

    async def runs(tasks, *args, **given):
        begun.set()
        return await run(tasks, *args, **given)

    def goes_back(recovery):
        back.append(recovery)
        go_back(recovery)

    monkeypatch.setattr(ServicePools, "update", made_otherwise_first)
    monkeypatch.setattr(LearnTasks, "run", runs)
    monkeypatch.setattr(Recovery, "go_back", goes_back)
    await succeeded(cluster, folder)
    records = check(folder, lost=True)
    assert len(back) == 1
    assert any("x" in record.aggregation.arrivals for record in records)


async def test_its_defaults_follow_from_the_algorithm():
    made = spec("vdn").schedule
    assert (made.learners, made.aggregation, made.barrier) == (1, AsyncRule.model_validate({}), False)
    given = {"name": "stellaris", "learners": 1, "aggregation": "async", "barrier": False}
    assert spec("vdn", schedule=given).schedule == made
    prepare(spec("vdn"))


@pytest.mark.parametrize(
    "wrong", [{"learners": 2}, {"aggregation": "ssp"}, {"aggregation": {"rule": "async", "step": "separate"}}]
)
async def test_other_settings_are_refused(wrong):
    [name] = wrong
    with pytest.raises(
        SpecError, match=f"schedule: {name} has no meaning with algorithm vdn.*leave schedule.{name} out"
    ):
        spec("vdn", schedule={"name": "stellaris", **wrong})
