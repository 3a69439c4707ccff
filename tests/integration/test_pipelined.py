"""Jobs whose rounds overlap: nothing that is interrupted or lost changes what they come to."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count, pairwise

import pytest
import pytest_asyncio

from marless.core.errors import CorruptError, UnreachableError
from marless.cost.estimates.simulate import simulate
from marless.jobs.explanation import changes
from marless.jobs.job import prepare, schema_of
from marless.jobs.record import InvocationRecord, RoundRecord
from marless.jobs.schedules.rounds import PipelinedConfig
from marless.jobs.sections import StopSpec
from marless.services.coordinator.execution.service_pools import ServicePools
from marless.services.coordinator.state.run_folder import RunFolder
from tests.integration.one_process import check_same_weights
from tests.integration.running import created, go_on, outcome, restarted, succeeded
from tests.integration.running import spec as spec_of
from tests.integration.test_same_weights import ALGORITHMS, EVERYTHING, RIVALS, TEAM

pytestmark = pytest.mark.asyncio(loop_scope="module")
_serials = count()
Runs = Callable[[str], Awaitable[RunFolder]]
CLOCKS_S = 1e-2
"""By how much durations of one process and times of another may disagree."""


def new(tmp_path, name: str = "ippo", **changes) -> RunFolder:
    given = {
        "env": TEAM if name in ("vdn", "qmix", "pqn_vdn") else RIVALS,
        "algorithm": {"name": name, **ALGORITHMS[name]},
        "schedule": "pipelined",
        **EVERYTHING,
        **changes,
    }
    return created(tmp_path / f"pipelined-{next(_serials)}", spec_of(**given))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(cluster, tmp_path_factory) -> Runs:
    """The folder of a job of an algorithm that nothing befell."""
    done: dict[str, RunFolder] = {}

    async def of(name: str) -> RunFolder:
        if name not in done:
            done[name] = new(tmp_path_factory.mktemp(name), name)
            await succeeded(cluster, done[name])
        return done[name]

    return of


@pytest.mark.parametrize("name", ALGORITHMS)
async def test_services_compute_what_one_process_computes(undisturbed, name):
    folder = await undisturbed(name)
    check_same_weights(folder, staleness=1)
    if name == "impact":  # whose loss depends on what acted; policies of six rounds draw the same discrete actions
        with pytest.raises(AssertionError):
            check_same_weights(folder, staleness=0)


async def same(folder: RunFolder, other: RunFolder) -> None:
    assert outcome(folder) == outcome(other)


def actors_of(record: RoundRecord) -> list[InvocationRecord]:
    return [each for each in record.invocations if each.function == "actor"]


async def test_rounds_overlap_and_are_recorded_as_they_were(undisturbed):
    folder = await undisturbed("ippo")
    records = list(folder.records())
    assert [record.ahead for record in records] == [record.actors for record in records[1:]] + [0]
    concurrent = []
    for before, record in pairwise(records):
        actors = actors_of(record)
        learners = [each for each in before.invocations if each.function == "learner"]
        concurrent.append(min(each.queued_s for each in actors) < max(each.end_s for each in learners))
        assert record.started_s >= before.ended_s - 1e-3  # but counts from where the round before ended
    assert any(concurrent)  # on a busy machine, such short updates may be over before a rollout is queued
    for record in records:
        learners = [each for each in record.invocations if each.function == "learner"]
        queued_s, end_s = min(each.queued_s for each in learners), max(each.end_s for each in learners)
        phases = record.phases
        assert phases.rollout <= queued_s - record.started_s + CLOCKS_S  # the wait for it, and no more
        assert phases.rollout >= max(each.end_s for each in actors_of(record)) - record.started_s - CLOCKS_S
        assert phases.update >= end_s - queued_s - CLOCKS_S
        assert sum(vars(phases).values()) <= record.took_s + CLOCKS_S


async def test_no_round_is_rolled_out_beside_the_last(cluster, tmp_path, sampled):
    folder = new(tmp_path, stop={"rounds": 3})
    await succeeded(cluster, folder)
    assert sampled == [0, 1, 2]
    steps = sum(record.actors for record in list(folder.records())[:2]) * 2 * 3
    sampled.clear()
    limited = new(tmp_path, stop={"env_steps": steps})
    await go_on(limited, cluster.pools)
    assert sampled == [0, 1] == [record.round for record in limited.records()]


async def test_a_spool_that_holds_one_round_delays_the_next_and_changes_nothing(cluster, undisturbed, tmp_path):
    folder, usual = new(tmp_path), cluster.spool_bytes
    given, _ = folder.load()
    schema = schema_of(given, prepare(given).spaces)
    cluster.spool_bytes = int(1.5 * given.actors.count * schema.bytes_with(schema.batch))
    await restarted(cluster, "learner_pool")()
    try:
        await succeeded(cluster, folder)
    finally:
        cluster.spool_bytes = usual
        await restarted(cluster, "learner_pool")()
    await same(folder, await undisturbed("ippo"))


async def test_a_replay_under_its_own_policies_is_the_run_itself(undisturbed):
    folder = await undisturbed("ippo")
    records, given = list(folder.records()), folder.load()[0]
    found = simulate(records, given, given)
    assert [replace(each.replayed, machines=()) for each in found.steps] == [
        replace(record, machines=()) for record in records
    ]
    assert found.replayed_usd == found.recorded_usd
    for accounting in ("billed", "paper"):
        assert found.recorded_usd[accounting] > 0


async def test_a_change_of_actors_is_explained_by_the_decision_that_it_follows_from(undisturbed):
    records = list((await undisturbed("ippo")).records())
    changed = [each for each in changes(records) if each.decision.kind == "scaling"]
    assert len(changed) > 2
    actors = {record.round: record.actors for record in records}
    assert [each.decision.outcome for each in changed] == [f"{actors[each.round]} actors" for each in changed]


async def test_each_round_reserves_its_room_beside_the_update_before(cluster, undisturbed, tmp_path, monkeypatch):
    reserved, real = [], ServicePools.reserve

    async def reserve(pools, job_id, job, round_, actors, *, epoch):
        reserved.append((round_, actors))
        await real(pools, job_id, job, round_, actors, epoch=epoch)

    monkeypatch.setattr(ServicePools, "reserve", reserve)
    folder = new(tmp_path)
    await succeeded(cluster, folder)
    assert reserved == [(record.round, record.actors) for record in folder.records()]


async def test_a_folder_of_another_schedule_is_refused_with_the_reason(cluster, tmp_path):
    folder = new(tmp_path, schedule="synchronous", stop={"rounds": 2})
    await succeeded(cluster, folder)
    assert folder.own()
    given = folder.load()[0].model_copy(
        update={"schedule": PipelinedConfig(), "stop": StopSpec.model_validate({"rounds": 4})}
    )
    folder.write_spec(given)
    run = await go_on(folder, cluster.pools)
    assert run.status.state == "FAILED"
    assert "this job was trained under another schedule than pipelined" in run.status.reason
    assert len(list(folder.records())) == 2


async def test_a_folder_whose_schedule_is_not_known_here_names_it(tmp_path):
    folder = new(tmp_path)
    path = folder.path / "spec.yaml"
    text = path.read_text()
    path.write_text(text.replace("name: pipelined", "name: elsewhere"))
    with pytest.raises(CorruptError, match="elsewhere"):
        folder.load()
    section = "schedule:\n  name: pipelined\n"
    assert section in text
    path.write_text(text.replace(section, ""))  # of a version without schedules
    assert folder.load()[0].schedule.name == "synchronous"


async def test_an_update_goes_on_when_the_rollout_beside_it_fails(cluster, tmp_path, undisturbed, monkeypatch):
    """It is waited for alone: the round is recorded before the failure is looked at, and not updated once more."""
    train, update, asked, failed = ServicePools.train, ServicePools.update, asyncio.Event(), asyncio.Event()
    updated: list[int] = []

    async def failing(pools, job_id, job, round_, **given):
        if round_ == 2 and not failed.is_set():
            await asked.wait()
            failed.set()
            raise UnreachableError("actor_pool: it is gone")
        return await train(pools, job_id, job, round_, **given)

    async def lasting(pools, job_id, *, round_, **given):
        updated.append(round_)
        if round_ == 1:
            asked.set()
            await failed.wait()
        return await update(pools, job_id, round_=round_, **given)

    monkeypatch.setattr(ServicePools, "train", failing)
    monkeypatch.setattr(ServicePools, "update", lasting)
    folder = new(tmp_path)
    await succeeded(cluster, folder)
    assert failed.is_set()
    assert updated == list(range(len(updated)))
    await same(folder, await undisturbed("ippo"))
