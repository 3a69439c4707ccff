"""Evaluations by real actors: what records say is what was played, and no round waits for more than it has to."""

import asyncio
import json
from collections import defaultdict
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from marless.core.errors import InternalError
from marless.core.stopwatch import Stopwatch
from marless.jobs.job import PreparedJob
from marless.jobs.record import RoundRecord
from marless.services.coordinator.execution import interruptions
from marless.services.coordinator.execution.interruptions import GRACE_S
from marless.services.coordinator.execution.pools import Rollout
from marless.services.coordinator.execution.service_pools import ServicePools
from tests.integration.running import ACTORS, STEPS, Cluster, created, go_on, ready, spec, succeeded
from tests.integration.test_cancelling import PATIENCE_S, all_idle, until, waiting, workers

pytestmark = pytest.mark.asyncio(loop_scope="module")
COPIES = 10
STEP_S = 0.02
"""An episode of a slow environment takes `STEPS` of these, or longer."""


@pytest.fixture
def notes(tmp_path) -> Path:
    """Where the environment notes the episodes that end in it."""
    path = tmp_path / "notes"
    path.touch()
    return path


def whole_lines(notes: Path) -> list[str]:
    """Without one that is just being written."""
    return notes.read_text().split("\n")[:-1]


@pytest.fixture
def during(monkeypatch, notes) -> list[int]:
    """How many lines the notes have when the evaluation begins, and when it ends."""
    found, real = [], ServicePools.evaluate

    async def evaluate(pools: ServicePools, *args: object, **options: object) -> object:
        found.append(len(whole_lines(notes)))
        answer = await real(pools, *args, **options)
        found.append(len(whole_lines(notes)))
        return answer

    monkeypatch.setattr(ServicePools, "evaluate", evaluate)
    return found


def one_round(notes: Path, *, actors: int = ACTORS, step_s: float = 0.0, **evaluation: object) -> dict[str, object]:
    """A job whose only evaluation is that of its only round."""
    options = {"agents": 2, "max_cycles": STEPS, "notes": str(notes), "step_s": step_s}
    return {
        "env": {"name": "counted", "options": options},
        "actors": {"count": actors, "envs": COPIES, "steps": STEPS, "episodes": "fresh"},
        "evaluation": {"every": 0, "episodes": 1000, "random_episodes": 1, **evaluation},
        "stop": {"rounds": 1},
    }


async def evaluated(cluster: Cluster, folder: Path, changes: dict[str, object]) -> RoundRecord:
    """The only round of such a job."""
    run_folder = created(folder, spec(**changes))
    assert (await go_on(run_folder, cluster.pools)).status.state == "SUCCEEDED"
    [record] = run_folder.records()
    return record


async def batches_of(cluster: Cluster, notes: Path, during: list[int]) -> list[NDArray[np.float64]]:
    """The returns, [episodes, agents], of each batch of the evaluation so far; those of the baseline, which the
    background worker may play at the same time, are left out.
    """
    acting = {worker.pid for worker in await workers(cluster)}
    first, last = (*during, None)[:2]
    lines = map(json.loads, whole_lines(notes)[first:last])
    return [np.array(line["returns"]) for line in lines if line["pid"] in acting]


async def playing(cluster: Cluster, notes: Path, during: list[int]) -> set[int]:
    """The processes of the actors that play in the evaluation, after their first batch; not a worker of the job before,
    which may be listed until a fresh one has taken its place.
    """
    acting = {worker.pid for worker in await workers(cluster)}
    return acting & {json.loads(line)["pid"] for line in whole_lines(notes)[during[0] :]}


def error_of(returns: NDArray[np.float64]) -> float:
    """The standard error of the mean per agent."""
    return float(returns.mean(axis=1).std(ddof=1) / np.sqrt(len(returns)))


def assert_as_played(record: RoundRecord, batches: list[NDArray[np.float64]]) -> None:
    found, played = record.evaluation, np.concatenate(batches)
    assert found.episodes == len(played)
    assert found.mean == pytest.approx(played.mean())
    assert list(found.per_agent.values()) == pytest.approx(played.mean(axis=0).tolist())
    assert found.standard_error == pytest.approx(error_of(played))


async def test_an_evaluation_ends_as_soon_as_its_mean_is_precise(cluster, notes, during, tmp_path):
    bound = 0.05
    changes = one_round(notes, actors=1, limit_s=None, relative_error=bound)
    record = await evaluated(cluster, tmp_path / "precise", changes)
    batches = await batches_of(cluster, notes, during)
    assert_as_played(record, batches)
    assert {len(each) for each in batches} == {COPIES}
    sofar = list(accumulate(batches, lambda before, batch: np.concatenate([before, batch])))
    assert [len(each) >= 30 and error_of(each) <= bound * abs(each.mean()) for each in sofar] == [
        *[False] * (len(sofar) - 1),
        True,
    ]
    assert 30 < record.evaluation.episodes < 1000


async def test_an_evaluation_starts_no_batch_that_would_not_end_in_time(cluster, notes, during, tmp_path):
    batch_s = STEPS * STEP_S
    changes = one_round(notes, step_s=STEP_S, limit_s=2.5 * batch_s, relative_error=0.0)
    record = await evaluated(cluster, tmp_path / "limited", changes)
    assert_as_played(record, await batches_of(cluster, notes, during))
    # The first batch of each actor is always played; a third one would have begun at the end of its time.
    assert ACTORS * COPIES <= record.evaluation.episodes <= ACTORS * 2 * COPIES


@pytest.mark.parametrize("schedule", ["synchronous", "pipelined", "stellaris"])
@pytest.mark.parametrize(("stop", "rounds"), [({"rounds": 3}, 3), ({"wall_s": 0.01}, 1)])
async def test_a_job_ends_where_it_must_although_its_last_evaluation_is_given_up(
    cluster, notes, tmp_path, schedule, stop, rounds
):
    """It went on for ever before, evaluating each round as if it were the last one."""
    changes = one_round(notes, step_s=STEP_S, limit_s=0.2, relative_error=0.0)
    changes["env"]["options"] |= {"max_cycles": 1000, "unbounded": True}
    folder = created(tmp_path / "given-up", spec(**changes | {"stop": stop, "schedule": {"name": schedule}}))
    async with asyncio.timeout(PATIENCE_S):
        assert (await go_on(folder, cluster.pools)).status.state == "SUCCEEDED"
    records = list(folder.records())
    assert len(records) == rounds
    assert [record.evaluation_given_up for record in records] == [False] * (rounds - 1) + [True]
    assert all(record.evaluations == () for record in records)


async def test_an_evaluation_has_no_more_episodes_than_asked_for(cluster, notes, during, tmp_path):
    changes = one_round(notes, episodes=25, limit_s=None, relative_error=0.0)
    record = await evaluated(cluster, tmp_path / "counted", changes)
    batches = await batches_of(cluster, notes, during)
    assert_as_played(record, batches)
    assert sorted(map(len, batches)) == [2, 3, COPIES, COPIES]  # 13 episodes of one actor, 12 of the other
    assert len(np.unique(np.concatenate(batches), axis=0)) == 25  # no two of them alike


async def test_a_job_that_is_cancelled_ends_its_evaluation_in_mid_play(cluster, notes, during, tmp_path):
    """Red without the abandoning: it would go on for hours."""
    endless = one_round(notes, step_s=STEP_S, episodes=10**6, limit_s=None, relative_error=0.0)
    folder = created(tmp_path / "cancelled", spec(**endless))
    run = ready(folder, cluster.pools)
    task = asyncio.create_task(run.run())
    async with asyncio.timeout(PATIENCE_S):
        while not during or len(before := await playing(cluster, notes, during)) < ACTORS:  # noqa: ASYNC110  # of a file
            await asyncio.sleep(0.01)
    asked = Stopwatch.start()
    run.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await task
    assert asked.seconds < GRACE_S + 3.0
    assert run.status.state == "CANCELLED"
    assert [record.evaluation for record in folder.records()] == [None]
    # All are still good for the next task.
    assert before <= await until(cluster, all_idle)


@pytest.fixture
def played(monkeypatch) -> dict[int, asyncio.Event]:
    """Round → set once the policies that had been trained for so many rounds have been evaluated."""
    ends, real = defaultdict(asyncio.Event), ServicePools.evaluate

    async def evaluate(
        pools: ServicePools, job_id: str, job: PreparedJob, round_: int, *args: object, **options: object
    ) -> object:
        answer = await real(pools, job_id, job, round_, *args, **options)
        ends[round_].set()
        return answer

    monkeypatch.setattr(ServicePools, "evaluate", evaluate)
    return ends


async def test_policies_are_evaluated_while_the_next_round_is_learned(cluster, played, tmp_path, monkeypatch):
    """The evaluations begin after the updates of rounds 3 and 5 have begun, and these end after the evaluations."""
    update, evaluate, begun = ServicePools.update, ServicePools.evaluate, defaultdict(asyncio.Event)

    async def updated(pools: ServicePools, *args: object, round_: int, **options: object) -> object:
        begun[round_].set()
        if round_ in (2, 4):
            await played[round_].wait()
        return await update(pools, *args, round_=round_, **options)

    async def evaluated(
        pools: ServicePools, job_id: str, job: PreparedJob, round_: int, *args: object, **options: object
    ) -> object:
        await begun[min(round_, 4)].wait()
        return await evaluate(pools, job_id, job, round_, *args, **options)

    monkeypatch.setattr(ServicePools, "update", updated)
    monkeypatch.setattr(ServicePools, "evaluate", evaluated)
    folder = created(tmp_path / "beside", spec())
    async with asyncio.timeout(PATIENCE_S):
        await succeeded(cluster, folder)
    records = list(folder.records())
    found = [each for record in records for each in record.evaluations]
    assert [[each.rounds for each in record.evaluations] for record in records] == [[], [], [2], [], [4, 5]]
    assert [each.env_steps for each in found] == [records[each.rounds - 1].env_steps for each in found]
    concurrent = [sum(each.during_update for each in record.invocations) for record in records]
    assert concurrent == [0, 0, ACTORS, 0, ACTORS]
    assert sum(each.function == "evaluation" for each in records[4].invocations) == 2 * ACTORS
    assert [record.phases.evaluation > 0 for record in records] == [False, False, True, False, True]
    at_once = created(tmp_path / "at-once", spec(stop={"rounds": 2}))
    await succeeded(cluster, at_once)
    assert list(at_once.records())[1].evaluations == tuple(found[:1])  # the same episodes


async def test_a_round_waits_for_the_evaluation_beside_its_update_and_says_so(cluster, tmp_path, monkeypatch):
    real, shown, goes_on = ServicePools.evaluate, asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(interruptions, "SHOWN_AFTER_S", 0.0)

    async def evaluate(pools: ServicePools, *args: object, **options: object) -> object:
        await goes_on.wait()
        return await real(pools, *args, **options)

    def changed(_record: object) -> None:
        if run.status.reason == "round 3: actors evaluate":
            shown.set()

    monkeypatch.setattr(ServicePools, "evaluate", evaluate)
    folder = created(tmp_path / "waits", spec(stop={"rounds": 3}))
    run = ready(folder, cluster.pools, changed=changed)
    task = asyncio.create_task(run.run())
    async with asyncio.timeout(PATIENCE_S):
        await shown.wait()
        assert [record.round for record in folder.records()] == [0, 1]
        goes_on.set()
        await task
    assert [[each.rounds for each in record.evaluations] for record in folder.records()] == [[], [], [2, 3]]


async def test_a_job_that_is_cancelled_stops_the_evaluation_beside_its_update(cluster, notes, during, tmp_path):
    """The round is recorded, without it; the evaluation of its own policies has no time left."""
    endless = one_round(notes, step_s=STEP_S, every=1, episodes=10**6, limit_s=None, relative_error=0.0)
    folder = created(tmp_path / "beside-cancelled", spec(**endless | {"stop": {"rounds": 9}}))
    run = ready(folder, cluster.pools)
    task = asyncio.create_task(run.run())
    async with asyncio.timeout(PATIENCE_S):
        while not during or len(await batches_of(cluster, notes, during)) < ACTORS:  # noqa: ASYNC110  # of a file
            await asyncio.sleep(0.01)
        asked = Stopwatch.start()
        run.cancel()
        await task
    assert asked.seconds < GRACE_S + 3.0
    assert run.status.state == "CANCELLED"
    assert [record.evaluations for record in folder.records()] == [(), ()]
    assert await until(cluster, all_idle)


async def test_the_last_round_of_a_cancelled_job_evaluates_its_own_policies(cluster, notes, tmp_path, monkeypatch):
    real = ServicePools.update

    async def update(pools: ServicePools, *args: object, **options: object) -> object:
        run.cancel()
        return await real(pools, *args, **options)

    monkeypatch.setattr(ServicePools, "update", update)
    monkeypatch.setattr("marless.services.coordinator.execution.interruptions.GRACE_S", PATIENCE_S)
    folder = created(tmp_path / "last", spec(**one_round(notes, episodes=4) | {"stop": {"rounds": 9}}))
    run = ready(folder, cluster.pools)
    await run.run()
    assert run.status.state == "CANCELLED"
    assert [[each.rounds for each in record.evaluations] for record in folder.records()] == [[1]]


async def test_an_update_that_fails_stops_the_evaluation_beside_it(cluster, notes, during, tmp_path, monkeypatch):
    """Red if it is only awaited: it would go on for hours."""
    real = ServicePools.update

    async def update(pools: ServicePools, *args: object, round_: int, **options: object) -> object:
        while round_ and len(await batches_of(cluster, notes, during)) < ACTORS:  # noqa: ASYNC110  # of a file
            await asyncio.sleep(0.01)
        if round_:
            raise InternalError("a defect")
        return await real(pools, *args, round_=round_, **options)

    monkeypatch.setattr(ServicePools, "update", update)
    endless = one_round(notes, every=1, episodes=10**6, limit_s=None, relative_error=0.0)
    folder = created(tmp_path / "beside-failed", spec(**endless | {"stop": {"rounds": 9}}))
    async with asyncio.timeout(PATIENCE_S):
        run = await go_on(folder, cluster.pools)
    assert (run.status.state, run.status.reason) == ("FAILED", "a defect")
    assert len(during) == 1  # it has begun, and has not ended
    assert await until(cluster, all_idle)


async def test_a_return_ends_a_job_when_the_newest_policies_reach_it(cluster, tmp_path, monkeypatch):
    """Of the policies evaluated every other round, those of round 2 and 4 reach it, and those of 5, but not of 3."""
    means, asked, real = {2: 5.0, 3: 1.0, 4: 6.0, 5: 4.5}, [], ServicePools.evaluate

    async def evaluate(
        pools: ServicePools, job_id: str, job: PreparedJob, round_: int, *args: object, **options: object
    ) -> Rollout:
        asked.append(round_)
        found = await real(pools, job_id, job, round_, *args, **options)
        return replace(found, returns=replace(found.returns, mean=means[round_]))

    monkeypatch.setattr(ServicePools, "evaluate", evaluate)
    folder = created(tmp_path / "return", spec(stop={"return": 4.0}))
    run = await go_on(folder, cluster.pools)
    assert (run.status.state, asked) == ("SUCCEEDED", [2, 3, 4, 5])
    assert run.status.reason == "greedy return per agent 4.500 reached 4"
    assert json.loads(run.status.summary_json)["return"] == 4.5
    found = [[(each.rounds, each.returns.mean) for each in record.evaluations] for record in folder.records()]
    assert found == [[], [], [(2, 5.0), (3, 1.0)], [], [(4, 6.0), (5, 4.5)]]


async def test_no_step_of_an_environment_precedes_the_first_rollout(cluster, tmp_path, monkeypatch):
    """Every step lasts until the file has gone, and the random baseline is given all the time that it takes."""
    hold, sampling, real = tmp_path / "hold", asyncio.Event(), ServicePools.train

    async def train(pools: ServicePools, *args: object, **options: object) -> object:
        sampling.set()
        return await real(pools, *args, **options)

    monkeypatch.setattr(ServicePools, "train", train)
    hold.touch()
    folder = created(tmp_path / "first", spec(**waiting(hold, hangs=True), evaluation={"limit_s": None}))
    run = asyncio.create_task(ready(folder, cluster.pools).run())
    async with asyncio.timeout(PATIENCE_S):
        await sampling.wait()
    hold.unlink()
    run.cancel()
    await asyncio.wait([run])
    assert await until(cluster, all_idle)
