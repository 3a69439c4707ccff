"""Evaluations by real actors: what their records say is what was played, and training waits for no random baseline."""

import asyncio
import json
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from marless.record import RoundRecord
from marless.stopwatch import Stopwatch
from services.coordinator.cancelling import GRACE_S
from services.coordinator.pools import Pools
from tests.integration.running import ACTORS, STEPS, Cluster, created, go_on, ready, spec
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
    found, real = [], Pools.evaluate

    async def evaluate(pools: Pools, *args: object, **options: object) -> object:
        found.append(len(whole_lines(notes)))
        answer = await real(pools, *args, **options)
        found.append(len(whole_lines(notes)))
        return answer

    monkeypatch.setattr(Pools, "evaluate", evaluate)
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


def error_of(returns: NDArray[np.float64]) -> float:
    """The standard error of the mean per agent."""
    return float((returns.std(axis=0) / np.sqrt(len(returns))).mean())


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
        while not during or len(await batches_of(cluster, notes, during)) < ACTORS:  # noqa: ASYNC110  # of a file
            await asyncio.sleep(0.01)
    before = {worker.pid for worker in await workers(cluster)}
    asked = Stopwatch.start()
    run.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await task
    assert asked.seconds < GRACE_S + 3.0
    assert run.status.state == "CANCELLED"
    assert [record.evaluation for record in folder.records()] == [None]
    assert await until(cluster, all_idle) == before  # still good for the next task


async def test_no_step_of_an_environment_precedes_the_first_rollout(cluster, tmp_path, monkeypatch):
    """Every step lasts until the file has gone, and the random baseline is given all the time that it takes."""
    hold, sampling, real = tmp_path / "hold", asyncio.Event(), Pools.train

    async def train(pools: Pools, *args: object, **options: object) -> object:
        sampling.set()
        return await real(pools, *args, **options)

    monkeypatch.setattr(Pools, "train", train)
    hold.touch()
    folder = created(tmp_path / "first", spec(**waiting(hold, hangs=True), evaluation={"limit_s": None}))
    run = asyncio.create_task(ready(folder, cluster.pools).run())
    async with asyncio.timeout(PATIENCE_S):
        await sampling.wait()
    hold.unlink()
    run.cancel()
    await asyncio.wait([run])
    assert await until(cluster, all_idle)
