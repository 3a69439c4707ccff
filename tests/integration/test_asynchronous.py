"""Asynchronous jobs: their records say what happened, and nothing that is interrupted makes them say it wrongly.

The order of events differs from run to run. So each test computes the job's last versions once more from its records,
in one process (`one_process_asynchronous`), and compares bits.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from redis import Redis

from marless.core.errors import SpecError, StaleError, UnreachableError
from marless.jobs.asynchronous_run import replayed
from marless.jobs.job import prepare
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.events import read
from marless.rpc.param_store import ParamStore
from marless.services.coordinator.execution import executor, recording
from marless.services.coordinator.execution.evaluations import Evaluations
from marless.services.coordinator.execution.pools import Rollout
from marless.services.coordinator.execution.service_pools import ServicePools
from marless.services.coordinator.state.checkpoints import Snapshots
from marless.services.coordinator.state.run_folder import RunFolder
from marless.storage.saved_policies import load_policy
from tests.integration.one_process_asynchronous import check_same_weights
from tests.integration.running import KilledError, check_replay, created, go_on, restarted, succeeded
from tests.integration.running import spec as spec_of
from tests.integration.test_same_weights import RIVALS

pytestmark = pytest.mark.asyncio(loop_scope="module")
_serials = count()
ROUNDS = 8
EVERYTHING = {
    "actors": {"count": 3, "envs": 2, "steps": 5, "episodes": "fresh"},
    "algorithm": {"name": "ippo", "truncation": "least"},
    "schedule": {"name": "stellaris", "learners": 2},
    "stop": {"rounds": ROUNDS},
}
BEST = {"every": 0, "keep": 1, "best": True}


def new(tmp_path, **changes) -> RunFolder:
    return created(tmp_path / f"asynchronous-{next(_serials)}", spec_of(**EVERYTHING, **changes))


def check(folder: RunFolder, *, lost: bool = False) -> list:
    """Weights, and that each rollout is learned from at most once; nothing is lost unless it may be."""
    records = list(folder.records())
    assert [record.round for record in records] == list(range(ROUNDS))
    learned = Counter(r for record in records for g in record.aggregation.gradients for r in g.rollouts)
    assert set(learned.values()) == {1}
    assert lost or records[-1].aggregation.lost == 0
    check_same_weights(folder)
    return records


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"env": RIVALS},
        {"algorithm": {"name": "mappo"}},
        {"algorithm": {"name": "impact"}},
        {"schedule": {"name": "stellaris", "batch": 2, "aggregation": {"rule": "softsync", "gradients": 2}}},
        {"schedule": {"name": "stellaris", "aggregation": {"rule": "stellaris", "step": "separate"}}},
        {"schedule": {"name": "stellaris", "barrier": True, "aggregation": "sync", "learners": 3}},
    ],
    ids=["ippo", "two classes", "joint critic", "impact", "softsync", "separate steps", "barrier"],
)
async def test_services_compute_what_one_process_computes(cluster, tmp_path, changes):
    folder = created(tmp_path / f"asynchronous-{next(_serials)}", spec_of(**EVERYTHING | changes))
    await succeeded(cluster, folder)
    records = check(folder)
    assert records[-1].newest_evaluation is not None
    assert [bool(record.computed_by) for record in records] == [True] + [False] * (ROUNDS - 1)  # only where it changes


async def test_a_record_has_what_was_billed(cluster, tmp_path):
    folder = new(tmp_path)
    await succeeded(cluster, folder)
    for record in folder.records():
        kinds = Counter(each.function for each in record.invocations)
        happened = Counter(each.kind for each in read(record.aggregation.arrivals))
        assert kinds["actor"] == happened["rollout"]
        assert kinds["learner"] == happened["gradient"]
        assert kinds["parameter"] == 1
        assert record.actors == 3
        assert bool(record.returns) == bool(happened["rollout"])  # each rollout ends its episodes


async def test_a_checkpoint_is_kept_until_its_evaluation_ends(cluster, tmp_path, monkeypatch):
    """It takes longer than some versions, and finds that they are the best: they must not be dropped meanwhile."""
    save, evaluate, late = Snapshots.save, Evaluations.of, asyncio.Event()

    async def saved(self, progress, *arguments, **more) -> None:
        await save(self, progress, *arguments, **more)
        if progress.round == 6:
            late.set()

    async def evaluated(self, record, epoch) -> Rollout:
        if record.round + 1 != 2:
            return await evaluate(self, record, epoch)
        await late.wait()
        found = await evaluate(self, record, epoch)
        return replace(found, returns=replace(found.returns, mean=1000.0))

    monkeypatch.setattr(Snapshots, "save", saved)
    monkeypatch.setattr(Evaluations, "of", evaluated)
    folder = new(tmp_path, evaluation={"every": 2, "episodes": 2, "random_episodes": 2}, checkpoint=BEST)
    await succeeded(cluster, folder)
    [told] = [each.round for each in folder.records() for found in each.evaluations if found.rounds == 2]
    assert told >= 6
    assert folder.checkpoints.rounds() == (2, ROUNDS)
    assert load_policy(folder.path, round="best").origin.round == 2


async def test_the_last_version_waits_for_an_evaluation_that_is_under_way(cluster, tmp_path, monkeypatch):
    make, evaluate, last = recording.trained, Evaluations.of, asyncio.Event()

    def trained(job, plan, *arguments, **more) -> RoundRecord:
        if plan.round == ROUNDS - 1:
            last.set()
        return make(job, plan, *arguments, **more)

    async def evaluated(self, record, epoch) -> Rollout:
        if record.round + 1 == 2:
            await last.wait()
        return await evaluate(self, record, epoch)

    monkeypatch.setattr(recording, "trained", trained)
    monkeypatch.setattr(Evaluations, "of", evaluated)
    folder = new(tmp_path, evaluation={"every": 2, "episodes": 2, "random_episodes": 2})
    await succeeded(cluster, folder)
    assert [each.round for each in folder.records() for found in each.evaluations if found.rounds == 2] == [ROUNDS - 1]


async def test_a_replay_comes_to_the_same_weights(cluster, tmp_path):
    folder = new(tmp_path)
    await succeeded(cluster, folder)
    await check_replay(cluster, folder, tmp_path / "again")


async def test_an_order_that_is_another_jobs_is_refused(cluster, tmp_path):
    folder = created(tmp_path / "other", spec_of(**EVERYTHING | {"schedule": {"name": "stellaris", "order": "r7:10"}}))
    run = await go_on(folder, cluster.pools)
    assert run.status.state == "FAILED"
    assert "r7:10 is to happen next, and it is not under way" in run.status.reason


async def test_numbers_that_are_given_again_after_trouble_are_of_a_new_epoch(cluster, tmp_path, after, monkeypatch):
    """What was sampled under them before, perhaps with other versions, is replaced."""
    begun: Counter[tuple[int, int]] = Counter()
    sample = ServicePools.sample

    async def counted(pools, job_id, job, rollout, *args, epoch):
        begun[rollout, epoch] += 1
        return await sample(pools, job_id, job, rollout, *args, epoch=epoch)

    async def trouble():
        raise UnreachableError("actor_pool: it is gone")

    monkeypatch.setattr(ServicePools, "sample", counted)
    after("sample", 5, trouble)
    folder = new(tmp_path)
    await succeeded(cluster, folder)
    check(folder)
    assert {epoch for _, epoch in begun} == {1, 2}
    assert set(begun.values()) == {1}
    assert len({rollout for rollout, _ in begun}) < len(begun)


async def test_all_rollouts_that_wait_may_be_lost_one_after_another(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "MOST_LOST", 4)
    calls: Counter[str] = Counter()
    many, gone, enough = asyncio.Event(), asyncio.Event(), asyncio.Event()
    sample, gradient, open_job = ServicePools.sample, ServicePools.gradient, ServicePools.open_job

    async def sampled(*args, **given):
        if gone.is_set():
            await enough.wait()
        found = await sample(*args, **given)
        calls["sampled"] += 1
        if calls["sampled"] == 9:
            many.set()
        return found

    async def differentiated(pools, job_id, learn, *args, **given):
        if learn.learner == 0:
            await many.wait()
        if learn.learner == 1 and not gone.is_set():
            gone.set()
            await restarted(cluster, "learner_pool")()
        try:
            return await gradient(pools, job_id, learn, *args, **given)
        except StaleError:
            calls["lost"] += 1
            if calls["lost"] > 5:
                enough.set()
            raise

    async def opened(*args, **given):
        calls["opened"] += 1
        return await open_job(*args, **given)

    for name, call in (("sample", sampled), ("gradient", differentiated), ("open_job", opened)):
        monkeypatch.setattr(ServicePools, name, call)
    schedule = {"name": "stellaris", "learners": 1, "data_lag": 12}
    folder = created(tmp_path / "waiting", spec_of(**EVERYTHING | {"schedule": schedule}))
    await succeeded(cluster, folder)
    assert check(folder, lost=True)[-1].aggregation.lost > 5
    assert calls["opened"] == 2  # not once more because of what is lost: it stays lost


async def test_a_coordinator_that_is_killed_while_the_store_loses_everything(
    cluster, tmp_path, kill_at, monkeypatch, redis_url
):
    """Workers keep versions by epoch: the next coordinator begins one that was never used."""
    used, aggregate = [], ParamStore.aggregate

    async def aggregated(store, wanted):
        used.append(wanted.epoch)
        return await aggregate(store, wanted)

    monkeypatch.setattr(ParamStore, "aggregate", aggregated)
    folder = new(tmp_path)
    kill_at("coordinator.record.after", 4)
    with pytest.raises(KilledError):
        await go_on(folder, cluster.pools)
    before = set(used)
    with Redis.from_url(redis_url) as redis:
        redis.delete(*redis.keys(f"marless:{{{folder.path.name}}}:*"))
    await succeeded(cluster, folder)
    check(folder, lost=True)
    assert min(used[4:]) > max(before)
    assert folder.read_status().epoch == max(used)


async def test_a_repetition_whose_store_loses_everything_says_so(cluster, tmp_path, kill_at, redis_url):
    """It cannot come to the weights of its run any more, and must not come to others without a word."""
    folder = new(tmp_path)
    await succeeded(cluster, folder)
    again = created(tmp_path / "again", replayed(folder.load()[0], list(folder.records())))
    kill_at("coordinator.record.after", 4)
    with pytest.raises(KilledError):
        await go_on(again, cluster.pools)
    with Redis.from_url(redis_url) as redis:
        redis.delete(*redis.keys("marless:{again}:*"))
    run = await go_on(again, cluster.pools)
    assert run.status.state == "FAILED"
    assert "what was under way has been lost" in run.status.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"actors": {"count": 2, "envs": 2, "steps": 5}}, "actors.episodes: fresh"),
        ({"schedule": {"name": "stellaris", "barrier": True, "batch": 2}}, "3 actors do not make whole batches"),
    ],
)
async def test_what_cannot_be_is_refused(changes, reason):
    with pytest.raises(SpecError, match=reason):
        prepare(spec_of(**EVERYTHING | changes))
