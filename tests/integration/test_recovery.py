"""Whatever is interrupted, restarted or lost, a job goes on where it was and comes to the same bits."""

import asyncio
import dataclasses
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from itertools import count, cycle, islice
from typing import Self

import psutil
import pytest
import pytest_asyncio

from marless.core.errors import NotFoundError, UnreachableError
from marless.core.stopwatch import Stopwatch
from marless.cost.billing.bill import bill
from marless.jobs import prices
from marless.rpc.param_store import ParamStore
from marless.services.coordinator.execution import reservations, round_commands, timing
from marless.services.coordinator.execution.service_pools import ServicePools
from marless.services.coordinator.jobs import view
from marless.services.coordinator.state.checkpoints import Snapshots
from marless.services.coordinator.state.ownership import Ownership, beat_of
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.learner_pool.stored_results import PART
from marless.services.learner_pool.tasks import LearnTasks
from marless.storage.checkpoint import PARTS
from tests.integration.running import (
    ACTORS,
    ENVS,
    STEPS,
    Cluster,
    KilledError,
    created,
    go_on,
    outcome,
    ready,
    running,
    spec,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
_serials = count()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # what is waited for knows no events
            await asyncio.sleep(0.001)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory, templates) -> AsyncIterator[Cluster]:
    async for each in running(tmp_path_factory.mktemp("cluster"), redis_url, templates):
        yield each


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(cluster, tmp_path_factory):
    folder = created(tmp_path_factory.mktemp("runs") / "undisturbed", spec())
    run = await go_on(folder, cluster.pools)
    assert (run.status.state, run.status.reason) == ("SUCCEEDED", "5 rounds done")
    return outcome(folder)


def new(tmp_path, **changes) -> RunFolder:
    return created(tmp_path / f"recovery-{next(_serials)}", spec(**changes))


async def test_an_undisturbed_run_repeats_nothing(cluster, undisturbed, tmp_path):
    folder = new(tmp_path)
    run = await go_on(folder, cluster.pools)
    assert outcome(folder) == undisturbed
    assert run.status.resumes == 0
    assert {path.name for path in folder.path.iterdir()} == {
        *("spec.yaml", "job.json", "rounds.jsonl", "checkpoints", "log.jsonl", "machines.json"),
    }
    assert (await cluster.store.list(folder.path.name)).policies == {}  # the checkpoint holds what it held


# The coordinator


async def test_a_coordinator_that_is_killed_during_an_update_finds_it_done(
    cluster, undisturbed, tmp_path, trained, monkeypatch
):
    folder, real = new(tmp_path), LearnTasks.run

    async def begun(updates, tasks, verb, *rest):
        if (tasks[0].round, verb) == (1, "update"):
            task.cancel()
            await asyncio.wait([task])
        return await real(updates, tasks, verb, *rest)

    monkeypatch.setattr(LearnTasks, "run", begun)
    run = ready(folder, cluster.pools)
    task = asyncio.create_task(run.run())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert RunFolder(folder.path).read_status().state == "RUNNING"
    await until(lambda: trained == [0, 1])  # though nobody waits for it any more
    monkeypatch.setattr(LearnTasks, "run", real)
    await go_on(folder, cluster.pools)
    assert outcome(folder) == undisturbed
    assert trained == [0, 1, 2, 3, 4]


# The services


async def test_a_store_that_was_emptied_with_a_damaged_checkpoint_goes_back_further(
    cluster, undisturbed, tmp_path, after
):
    folder = new(tmp_path)

    async def lose() -> None:
        (folder.checkpoints.path(4) / "agent_0.acting.safetensors").write_bytes(b"damaged")
        await cluster.store.delete_job(folder.path.name)

    after("train", 4, lose, before=True)
    assert (await go_on(folder, cluster.pools)).status.state == "SUCCEEDED"
    assert folder.checkpoints.rounds() == (4, 5)
    assert outcome(folder) == undisturbed


async def test_a_store_that_may_lose_data_is_named_at_the_start_and_at_the_first_loss(
    cluster, tmp_path, after, monkeypatch
):
    real, risk = ParamStore.list, "this Redis is not durable: a crash loses versions: set appendonly yes"

    async def risky(store, job):
        return dataclasses.replace(await real(store, job), risk=risk)

    monkeypatch.setattr(ParamStore, "list", risky)
    folder = new(tmp_path)
    after("train", 3, lambda: cluster.store.delete_job(folder.path.name), before=True)
    assert (await go_on(folder, cluster.pools)).status.state == "SUCCEEDED"
    lines = [json.loads(line) for line in folder.log_path.read_text().splitlines()]
    said = [(line["event"], line["advice"]) for line in lines if "advice" in line]
    assert said[:2] == [("store.may_lose_data", risk), ("job.versions_lost", risk)]


async def test_without_any_checkpoint_that_can_be_read_nothing_is_thrown_away(cluster, tmp_path):
    folder = new(tmp_path, stop={"rounds": 2})
    await go_on(folder, cluster.pools)
    manifest = folder.checkpoints.path(2) / "manifest.json"
    manifest.write_text('{"round": 2, "policies": {"agent_0": {"version": 3, "parts": ["acting", "learning"]}}}')  # 0.1
    assert folder.own()
    folder.write_spec(spec(stop={"rounds": 3}))
    run = await go_on(folder, cluster.pools)
    assert run.status.state == "FAILED"
    assert run.status.reason.startswith("the store has lost the job's versions, and no checkpoint can be read: ")
    assert run.status.reason.endswith("manifest.json: this is not a checkpoint manifest")
    assert len(list(folder.records())) == 2


# Learner workers


TWO_CLASSES = {"env": {"name": "mpe/simple_adversary", "options": {"max_cycles": STEPS}}, "stop": {"rounds": 3}}


async def test_an_update_of_which_half_was_published(cluster, tmp_path, monkeypatch, trained):
    whole = new(tmp_path, **TWO_CLASSES)
    assert (await go_on(whole, cluster.pools)).status.state == "SUCCEEDED"
    real, once = LearnTasks._run_one, count()
    first, reports = [], []

    async def run_one(updates, task, verb, files):
        if verb == "update" and task.scope == 1 and task.round == 1 and next(once) == 0:
            async with asyncio.timeout(20), aclosing(cluster.store.watch(folder.path.name)) as changes:
                async for change in changes:
                    if change.head.round == task.round:
                        break
            heads = (await cluster.store.list(folder.path.name)).policies
            first.extend(name for name, each in heads.items() if each.head.round == task.round)
            stored = await cluster.store.get(folder.path.name, dict.fromkeys(first, 0), (PART,))
            reports.extend(json.loads(bytes(each.blobs[PART])) for each in stored.values())
            raise UnreachableError("the pool is stopping")
        return await real(updates, task, verb, files)

    monkeypatch.setattr(LearnTasks, "_run_one", run_one)
    folder = new(tmp_path, **TWO_CLASSES)
    assert (await go_on(folder, cluster.pools)).status.state == "SUCCEEDED"
    assert next(once) > 1
    assert outcome(folder) == outcome(whole)
    taken_s = {each.id: each.vcpu_s for each in list(folder.records())[1].invocations}
    assert first
    assert all(taken_s[id_] == seconds for report in reports for id_, *_, seconds, _ in report["functions"])  # once


@pytest.mark.slow
async def test_a_worker_that_hangs_is_given_up(cluster, undisturbed, tmp_path, after):
    folder = new(tmp_path)

    async def hang() -> None:
        [worker] = [
            process.pid
            for process in psutil.Process().children(recursive=True)
            if "marless.services.learner_pool.worker" in process.cmdline()
            and str(cluster.folder) in " ".join(process.cmdline())
        ]
        os.kill(worker, signal.SIGSTOP)

    after("train", 2, hang)
    started_s = time.monotonic()
    assert (await go_on(folder, cluster.pools)).status.state == "SUCCEEDED"
    assert time.monotonic() - started_s < 30
    assert outcome(folder) == undisturbed


# Money and time


class Time:
    """What a job's stopwatches show: moved by the test, with a wall clock and a monotonic one that go alike."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def stopwatches(self) -> type[Stopwatch]:
        clock = self

        class Moved(Stopwatch):
            @classmethod
            def start(cls, already_s: float = 0.0) -> Self:
                return cls(1e9 + clock.now_s - already_s, clock.now_s - already_s)

            @property
            def seconds(self) -> float:
                return clock.now_s - self._since_s

        return Moved


ROLLOUT_S, UPDATE_S, WRITE_S, AWAY_S = 10.0, 20.0, 0.5, 300.0
BILLED_ROUNDS, INTERRUPTIONS = 6, 5


@pytest.fixture
def moved(monkeypatch) -> Time:
    """Rounds of 30 s with half a second between them, whatever they really take."""
    moved, calls = Time(), {"train": ROLLOUT_S, "update": UPDATE_S}
    for module in (timing, round_commands):
        monkeypatch.setattr(module, "Stopwatch", moved.stopwatches())

    def taking(real, seconds):
        async def called(*args, **kwargs):
            answer = await real(*args, **kwargs)
            moved.now_s += seconds
            return answer

        return called

    for name, seconds in calls.items():
        monkeypatch.setattr(ServicePools, name, taking(getattr(ServicePools, name), seconds))
    append = RunFolder.append

    def appended(folder, record) -> None:
        append(folder, record)
        moved.now_s += WRITE_S

    monkeypatch.setattr(RunFolder, "append", appended)
    return moved


def charged(folder: RunFolder) -> dict[str, float]:
    """What the bill charges for time; a function's own work is what its worker measured."""
    given, _ = folder.load()
    kinds = bill(folder.records(), given, prices.load()).by("kind", "billed")
    return {name: kinds[name] for name in ("actor: ready", "redis: node")}


async def test_interruptions_of_five_minutes_cost_nothing_and_take_no_training_time(
    cluster, tmp_path, kill_at, moved, monkeypatch
):
    plain, folder = (new(tmp_path, stop={"rounds": BILLED_ROUNDS, "wall_s": 1000.0}) for _ in range(2))
    assert (await go_on(plain, cluster.pools)).status.state == "SUCCEEDED"
    for place in islice(cycle(("pending.after", "record.before", "record.after")), INTERRUPTIONS - 1):
        kill_at(f"coordinator.{place}", passes=2)
        with pytest.raises(KilledError):
            await go_on(folder, cluster.pools)
        moved.now_s += AWAY_S
    kill_at("nowhere")
    real, asked = ServicePools.update, count()

    async def down_once(*args, **kwargs):
        if not next(asked):
            moved.now_s += AWAY_S
            raise UnreachableError("the learner pool is down")
        return await real(*args, **kwargs)

    monkeypatch.setattr(ServicePools, "update", down_once)
    run = await go_on(folder, cluster.pools)
    assert (run.status.state, run.status.resumes) == ("SUCCEEDED", INTERRUPTIONS - 1)
    assert charged(folder) == {name: pytest.approx(usd, rel=0.05) for name, usd in charged(plain).items()}
    summaries = [json.loads(each.read_status().summary_json) for each in (plain, folder)]
    trained_s = BILLED_ROUNDS * (ROLLOUT_S + UPDATE_S)
    assert [each["wall_s"] for each in summaries] == [pytest.approx(trained_s, rel=0.05)] * 2
    rate = BILLED_ROUNDS * spec().actors.count * ENVS * STEPS / trained_s
    assert [each["env_steps_per_s"] for each in summaries] == [pytest.approx(rate, rel=0.05)] * 2


async def test_time_in_which_a_job_waits_for_room_is_not_its_own(cluster, tmp_path, moved, monkeypatch):
    folder, real = new(tmp_path, stop={"rounds": 3}), ServicePools.reserve

    async def later(*args, **kwargs):
        moved.now_s += AWAY_S
        await asyncio.sleep(0.05)
        return await real(*args, **kwargs)

    monkeypatch.setattr(reservations, "SHOWN_AFTER_S", 0.01)
    monkeypatch.setattr(ServicePools, "reserve", later)
    await go_on(folder, cluster.pools)
    assert sum(each.spent_s for each in folder.records()) <= 3 * (ROLLOUT_S + UPDATE_S + WRITE_S)


async def test_a_job_that_is_ended_while_it_does_not_run_has_a_whole_summary(cluster, tmp_path, kill_at, moved):
    folder = new(tmp_path)
    kill_at("coordinator.record.after", passes=2)
    with pytest.raises(KilledError):
        await go_on(folder, cluster.pools)
    assert folder.own()
    summary = json.loads(view.ended(folder.read_status(), folder, "CANCELLED", "cancelled by its user").summary_json)
    given, _ = folder.load()
    steps = [each.env_steps for each in folder.records()]
    assert (summary["rounds"], summary["env_steps"]) == (2, steps[-1])
    assert summary["wall_s"] == 2 * (ROLLOUT_S + UPDATE_S) + WRITE_S
    assert summary["env_steps_per_s"] == round(steps[-1] / summary["wall_s"], 1)
    assert summary["cost_usd"] == bill(folder.records(), given, prices.load()).total_usd("billed") > 0
    folder.release()


# Ends, and going on after them


async def test_a_job_without_a_round_left_ends_as_it_did(cluster, tmp_path, kill_at):
    folder = new(tmp_path)
    kill_at("coordinator.status.before", 3)  # RUNNING, the random baseline, then its end
    with pytest.raises(KilledError):
        await go_on(folder, cluster.pools)
    assert (await cluster.store.list(folder.path.name)).policies == {}
    run = await go_on(folder, cluster.pools)
    assert (run.status.state, run.status.reason) == ("SUCCEEDED", "5 rounds done")
    assert len(list(folder.records())) == 5


async def test_a_service_that_stays_away_ends_the_job_with_its_name_and_it_can_be_resumed(
    cluster, undisturbed, tmp_path, after
):
    folder = new(tmp_path)
    after("train", 2, lambda: cluster.stop("actor_pool"))
    seen = []
    run = ready(folder, cluster.pools, patience_s=0.5, changed=lambda record: seen.append(run.status.reason))
    try:
        await run.run()
        assert (run.status.state, run.status.reason.split(":")[0]) == ("FAILED", "actor_pool")
        assert any(reason.startswith("waits for the actor_pool: ") for reason in seen)
        assert json.loads(run.status.summary_json)["rounds"] == 2  # the policies of the second could not be evaluated
    finally:
        await cluster.start("actor_pool")
    assert (await go_on(folder, cluster.pools)).status.state == "SUCCEEDED"
    assert outcome(folder) == undisturbed


async def test_a_job_that_waits_can_be_cancelled(cluster, tmp_path, after):
    folder = new(tmp_path)

    async def cancel() -> None:
        await cluster.stop("learner_pool")
        run.cancel()

    after("train", 1, cancel)
    run = ready(folder, cluster.pools)
    try:
        async with asyncio.timeout(20):
            await run.run()
    finally:
        await cluster.start("learner_pool")
    assert (run.status.state, run.status.reason) == ("CANCELLED", "cancelled by its user")


async def test_a_cancel_outlives_its_coordinator(cluster, tmp_path, after, kill_at):
    folder = new(tmp_path)

    async def cancel() -> None:
        run.cancel()
        raise KilledError

    after("train", 1, cancel)
    run = ready(folder, cluster.pools)
    with pytest.raises(KilledError):
        await run.run()
    again = await go_on(folder, cluster.pools)
    assert again.status.state == "CANCELLED"
    assert len(list(folder.records())) == 1


async def test_what_does_not_pass_ends_the_job_at_once(cluster, tmp_path):
    folder = new(tmp_path, learner={"device": "cuda:99"})
    started_s = time.monotonic()
    run = await go_on(folder, cluster.pools)
    assert run.status.state == "FAILED"
    assert "cuda:99 asked for" in run.status.reason
    assert time.monotonic() - started_s < 10


# Two coordinators


async def test_a_job_that_was_taken_over_is_not_written_to(cluster, undisturbed, tmp_path, after):
    """The first owner is held up while the second runs the job to its end."""
    folder, second = new(tmp_path), RunFolder(tmp_path / f"recovery-{next(_serials) - 1}")

    async def held_up() -> None:
        second.ownership = Ownership.seize(second.path, beat_of(second.path))
        assert second.ownership
        run = await go_on(second, cluster.pools)
        assert run.status.state == "SUCCEEDED"
        files.update({path: path.read_bytes() for path in second.path.rglob("*") if path.is_file()})

    files = {}
    after("update", 2, held_up, before=True)
    run = await go_on(folder, cluster.pools)
    assert run.status.state == "RUNNING"  # as far as it knows
    assert files
    assert {path: path.read_bytes() for path in second.path.rglob("*") if path.is_file()} == files
    assert outcome(second) == undisturbed


async def test_a_replaced_coordinator_that_cannot_save_its_last_versions_ends_quietly(
    cluster, tmp_path, after, monkeypatch
):
    """Its successor has gone on, and the store has those versions no more."""
    folder, saves = new(tmp_path), count()
    run, second = ready(folder, cluster.pools), RunFolder(folder.path)

    async def save(*_, **__) -> None:
        if not next(saves):
            return
        second.ownership = Ownership.seize(second.path, beat_of(second.path))
        raise NotFoundError("policy 'agent_0' has no version 3 (any more)")

    async def cancelled() -> None:
        monkeypatch.setattr(Snapshots, "save", save)
        run.cancel()

    after("update", 2, cancelled)
    await run.run()
    assert second.ownership
    events = [json.loads(line)["event"] for line in folder.log_path.read_text().splitlines()]
    assert not {"job.checkpoint_failed", "job.not_forgotten"} & {*events}
    assert run.status.state == "RUNNING"  # as far as it knows
    second.release()


async def test_a_foreign_coordinator_of_the_same_name_does_not_go_unnoticed(cluster, tmp_path, after):
    folder = new(tmp_path)
    epochs = count()

    async def other() -> None:
        await cluster.store.acquire_epoch(folder.path.name, f"other-{next(epochs)}")

    real = ServicePools.update
    with pytest.MonkeyPatch.context() as patched:

        async def update(*args, **kwargs):
            await other()
            return await real(*args, **kwargs)

        patched.setattr(ServicePools, "update", update)
        run = await go_on(folder, cluster.pools)
    assert run.status.state == "FAILED"
    assert "another coordinator publishes under the name" in run.status.reason
    assert (await cluster.store.list(folder.path.name)).policies.keys() == {"agent_0", "agent_1"}  # theirs


@pytest.mark.parametrize("before", [True, False], ids=["before-it-closes-the-job", "before-it-drops-the-versions"])
async def test_a_coordinator_that_was_replaced_as_it_ends_takes_nothing_from_its_successor(
    cluster, tmp_path, after, before
):
    folder = new(tmp_path)
    run = ready(folder, cluster.pools)
    job, held = folder.path.name, run._job
    opened = []

    async def succeeded() -> None:
        epoch = await cluster.store.acquire_epoch(job, "its successor")
        groups = held.sharing.decide(()).groups
        opened.append((epoch, await cluster.pools.open_job(job, held, epoch, groups, round_=5)))

    after("close_job", 1, succeeded, before=before)  # the first call is that of its beginning
    await run.run()
    [(epoch, versions)] = opened
    assert run.status.state == "RUNNING"  # as far as it knows
    now = {name: each.head.version for name, each in (await cluster.store.list(job)).policies.items()}
    assert now == {**versions, **{f"lane/{index}": 5 for index in range(ACTORS)}}
    await cluster.pools.reserve(job, held, 5, 1, epoch=epoch)  # its job is still open
    await cluster.pools.close_job(job, epoch=epoch)


# Starting from a checkpoint


async def test_a_job_starts_from_the_checkpoint_of_another(cluster, tmp_path, kill_at):
    source = new(tmp_path, stop={"rounds": 2})
    await go_on(source, cluster.pools)
    started = {"start": {"checkpoint": source.path.name}, "seed": 4, "stop": {"rounds": 1}, "checkpoint": {"every": 0}}
    folder = new(tmp_path, **started)
    kill_at("coordinator.pending.after")
    with pytest.raises(KilledError):
        await go_on(folder, cluster.pools)
    begun = await cluster.store.get(folder.path.name, {"agent_0": 1, "agent_1": 1}, PARTS)
    given = source.checkpoints.load(2)
    assert {name: dict(each.blobs) for name, each in begun.items()} == {
        name: dict(saved.blobs) for name, saved in given.policies.items()
    }
    shutil.rmtree(source.path)  # the job has a copy of its own
    run = await go_on(folder, cluster.pools)
    assert run.status.state == "SUCCEEDED"
    [record] = folder.records()
    assert (record.round, record.env_steps, record.versions) == (0, 20, {"agent_0": 2, "agent_1": 2})


async def test_a_checkpoint_that_does_not_fit_is_refused_with_the_array(cluster, tmp_path):
    source = new(tmp_path, stop={"rounds": 1})
    await go_on(source, cluster.pools)
    for path in (source.path, source.checkpoints.path(1)):
        folder = new(tmp_path, start={"checkpoint": str(path)}, model={"hidden": [9]})
        run = await go_on(folder, cluster.pools)
        assert run.status.state == "FAILED"
        assert "policy 'agent_0'" in run.status.reason
        assert "policy.0.weight is float32[8, 12], expected float32[9, 12]" in run.status.reason
        assert not (folder.path / "checkpoints").exists()


# The random baseline


async def test_the_random_baseline_is_measured_beside_training_and_changes_nothing_in_it(
    cluster, undisturbed, tmp_path, monkeypatch
):
    """Red before: no round began before it was measured. One that is killed measures it anew, to the same figures."""
    folder, real, rounds = new(tmp_path), ServicePools.play_randomly, []
    run = ready(folder, cluster.pools, changed=lambda record: rounds.append(record) if record else None)

    async def late(pools, *args, **options):
        if options.get("background", True):
            await until(lambda: len([record for record in rounds if record]) >= 3)
        return await real(pools, *args, **options)

    monkeypatch.setattr(ServicePools, "play_randomly", late)
    await run.run()
    assert outcome(folder) == undisturbed
    measured = RunFolder(folder.path).read_status()
    assert (measured.random.episodes, measured.random_cut) == (4, False)
    assert json.loads(measured.summary_json)["random_return_episodes"] == 4
    again = new(tmp_path)
    assert (await go_on(again, cluster.pools)).status.random == measured.random


async def test_a_random_baseline_that_is_recorded_is_not_measured_anew(cluster, tmp_path, monkeypatch):
    folder = new(tmp_path)
    random = (await go_on(folder, cluster.pools)).status.random
    played = []
    monkeypatch.setattr(ServicePools, "play_randomly", lambda *_args, **_options: played.append(1))
    folder = RunFolder(folder.path)
    assert folder.own()
    folder.write_status(dataclasses.replace(folder.read_status(), state="RUNNING", summary_json=""))
    assert (await go_on(folder, cluster.pools)).status.random == random
    assert played == []


async def test_a_random_baseline_that_was_cut_short_is_measured_anew(cluster, tmp_path, monkeypatch):
    folder, real = new(tmp_path), ServicePools.play_randomly

    async def once(pools, job_id, job, batch, episodes, **options):
        if batch:
            await asyncio.Event().wait()
        return await real(pools, job_id, job, batch, episodes, **options)

    monkeypatch.setattr(ServicePools, "play_randomly", once)
    run = ready(folder, cluster.pools)
    task = asyncio.create_task(run.run())
    await until(lambda: run.status.reason.startswith("training is done; random baseline so far: "))
    run.cancel()
    await task
    status = RunFolder(folder.path).read_status()
    assert (status.state, status.random.episodes, status.random_cut) == ("SUCCEEDED", 2, True)
    monkeypatch.setattr(ServicePools, "play_randomly", real)
    folder = RunFolder(folder.path)
    assert folder.own()
    folder.write_status(dataclasses.replace(status, state="RUNNING", cancelling=False, summary_json=""))
    status = (await go_on(folder, cluster.pools)).status
    assert (status.random.episodes, status.random_cut) == (4, False)
