"""The coordinator's jobs on real services: accepted once, run side by side, continued by whoever comes next."""

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Self

import pytest
import pytest_asyncio

from marless import load_policy
from marless.core.errors import (
    AlreadyExistsError,
    CorruptError,
    JobStateError,
    NotFoundError,
    SpecError,
    UnavailableError,
)
from marless.core.stopwatch import Stopwatch
from marless.jobs.record import RoundRecord, from_json
from marless.services.coordinator.api.servicer import WatchEvent, read_log, watch
from marless.services.coordinator.execution import recording, round_commands, timing
from marless.services.coordinator.jobs import job_queue
from marless.services.coordinator.jobs.failover import ATTACHED_LEASES
from marless.services.coordinator.jobs.jobs import Jobs, JobsOptions
from marless.services.coordinator.jobs.submission import IfExists, Submission
from marless.services.coordinator.state import ownership
from marless.services.coordinator.state.journal import Costs
from marless.services.coordinator.state.pending_rollouts import PendingRollouts
from marless.services.coordinator.state.run_folder import RunFolder
from tests.integration.running import Cluster, created, go_on, outcome, running, spec

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATIENCE_S = 60.0
LEASE_S = 0.4
ENDLESS = {"stop": {"rounds": 10_000}}
_serials = count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory, templates) -> AsyncIterator[Cluster]:
    async for each in running(tmp_path_factory.mktemp("cluster"), redis_url, templates):
        yield each


@pytest_asyncio.fixture(loop_scope="module")
async def jobs(cluster, tmp_path) -> AsyncIterator[Jobs]:
    async with coordinator(cluster, tmp_path) as jobs:
        yield jobs


def coordinator(cluster, runs, **options) -> Jobs:
    return Jobs(runs, cluster.pools, JobsOptions(lease_s=LEASE_S, patience_s=20.0, **options))


def name() -> str:
    return f"jobs-{next(_serials)}"


def submission(job: str, *, request_id: str = "", if_exists: IfExists = IfExists.FAIL, attached=False, **changes):
    return Submission(
        job=job, spec_json=spec(**changes).to_json(), request_id=request_id, if_exists=if_exists, attached=attached
    )


async def ended(jobs: Jobs, job: str, cursor: int = 0) -> list[WatchEvent]:
    async with asyncio.timeout(PATIENCE_S):
        return [event async for event in watch(jobs, job, cursor)]


def records_of(events: list[WatchEvent]) -> list[RoundRecord]:
    return [from_json(event.record_json) for event in events if event.record_json]


async def until(jobs: Jobs, job: str, condition) -> WatchEvent:
    """The first event of which this is true."""
    async with asyncio.timeout(PATIENCE_S):
        async for event in watch(jobs, job, 0):
            if condition(event):
                return event
    raise AssertionError("the job ended before")


async def trains(jobs: Jobs, job: str, rounds: int = 1) -> None:
    await until(jobs, job, lambda event: event.record_json and event.cursor >= rounds)


async def log_of(jobs: Jobs, job: str) -> list[dict[str, object]]:
    async with asyncio.timeout(PATIENCE_S):
        return [json.loads(line.json) async for line in read_log(jobs, job, 0, follow=True, tail=0)]


# A job from acceptance to its end


async def test_a_job_runs_to_its_stop_rule_and_leaves_a_whole_folder(jobs, cluster, tmp_path):
    job, rules = name(), {"evaluation": {"every": 0, "episodes": 7, "random_episodes": 5}, "stop": {"rounds": 2}}
    view = await jobs.submit(submission(job, **rules))
    assert (view.status.state, view.rounds, view.greedy_return) == ("PENDING", 0, None)
    events = await ended(jobs, job)
    records = records_of(events)
    assert [record.round for record in records] == [0, 1]
    assert [record.env_steps for record in records] == [20, 40]
    assert [bool(record.evaluation) for record in records] == [False, True]  # 0: only at the end
    assert records[-1].evaluation.episodes == 7
    assert records[-1].versions == {"agent_0": 3, "agent_1": 3}
    status = events[-1].view.status
    summary = json.loads(status.summary_json)
    assert (status.state, status.reason) == ("SUCCEEDED", "2 rounds done")
    assert summary["return"] == records[-1].evaluation.mean
    assert summary["random_return"] == status.random.mean
    assert status.accepted_s < records[0].started_s < status.ended_s
    assert list(RunFolder(tmp_path / job).records()) == records
    assert [path.name for path in (tmp_path / job / "checkpoints").iterdir()] == ["round-000002"]
    # Read-only, repeatable, and the same after its coordinator has gone:
    last = await jobs.get(job)
    assert (last.rounds, last.env_steps) == (2, 40)
    assert (last.greedy_return, last.random_return) == (summary["return"], summary["random_return"])
    async with coordinator(cluster, tmp_path) as later:
        for each in (jobs, later):
            assert records_of(await ended(each, job, cursor=1)) == records[1:]
            assert await each.submit(submission(job, **rules)) == await each.cancel(job) == await each.get(job) == last
            assert await each.page(0, "", ()) == ([last], "")
            with pytest.raises(AlreadyExistsError, match="exists with another spec"):
                await each.submit(submission(job, seed=9))


async def test_jobs_that_cannot_be_are_refused_and_leave_nothing(jobs, tmp_path):
    bad = (
        ("A", submission("A")),
        ("a", Submission(job="a", spec_json="{")),
        ("a", submission("a", env={"name": "mpe/none"})),
        ("a", submission("a", start={"checkpoint": "nowhere"})),
    )
    for _, request in bad:
        with pytest.raises(SpecError):
            await jobs.submit(request)
    for missing in ("a", "A", "..", "a/b", ""):
        with pytest.raises(NotFoundError, match=f"^there is no job '{missing}'$"):
            await jobs.get(missing)
        with pytest.raises(NotFoundError):
            await jobs.delete(missing, allow_missing=False)
        for verb in (jobs.cancel(missing), jobs.resume(missing, "", ""), ended(jobs, missing), log_of(jobs, missing)):
            with pytest.raises(NotFoundError):
                await verb
        await jobs.delete(missing, allow_missing=True)
    assert list(tmp_path.iterdir()) == []


async def test_a_cancelled_job_ends_after_its_present_round(jobs):
    job = name()
    await jobs.submit(submission(job, **ENDLESS))
    await trains(jobs, job)
    await jobs.cancel(job)
    last = (await ended(jobs, job))[-1]
    assert (last.view.status.state, last.view.status.reason) == ("CANCELLED", "cancelled by its user")
    assert json.loads(last.view.status.summary_json)["rounds"] == last.cursor < 10_000


def ticking() -> type[Stopwatch]:
    """Stopwatches by a clock on which a second passes with every look at it."""
    clock = count()

    class Ticking(Stopwatch):
        @classmethod
        def start(cls, already_s: float = 0.0) -> Self:
            return cls(time.time(), next(clock) - already_s)

        @property
        def seconds(self) -> float:
            return next(clock) - self._since_s

    return Ticking


ONE_EPISODE = {"every": 0, "episodes": 1, "random_episodes": 1}


@pytest.mark.parametrize("wall_s", range(4, 18))
async def test_the_last_round_of_a_job_that_ends_by_the_clock_is_an_evaluated_one(jobs, monkeypatch, wall_s):
    """Whenever the time runs out: there is a limit for every look of a whole round."""
    stopwatch = ticking()
    for module in (timing, round_commands):  # the job's own, and nobody else's
        monkeypatch.setattr(module, "Stopwatch", stopwatch)
    job = name()
    await jobs.submit(submission(job, evaluation=ONE_EPISODE, stop={"wall_s": wall_s}))
    records = records_of(await ended(jobs, job))
    assert [record.round for record in records if record.evaluation] == [records[-1].round]


async def test_a_return_that_is_reached_ends_the_job(jobs):
    job = name()
    await jobs.submit(submission(job, stop={"return": -1e6, "rounds": 50}))
    events = await ended(jobs, job)
    # The policies of round 2 have reached it while round 3 was trained, and those of round 3 then also.
    assert [[each.rounds for each in record.evaluations] for record in records_of(events)] == [[], [], [2, 3]]
    assert events[-1].view.status.reason.endswith("reached -1e+06")


async def test_a_full_disk_ends_the_job_and_whoever_watches_is_told(jobs, monkeypatch):
    """And once there is room, the disk says it, too."""

    def full(*_arguments) -> None:
        raise UnavailableError("run folder /r/j: No space left on device; make room or choose another")

    job = name()
    await jobs.submit(submission(job))
    with monkeypatch.context() as patch:
        for method in ("append", "save_checkpoint", "write_status"):
            patch.setattr(RunFolder, method, full)
        last = (await ended(jobs, job))[-1]
        assert (last.view.status.state, last.cursor) == ("FAILED", 0)
        assert last.view.status.reason.startswith("run folder /r/j: No space left on device")
        assert json.loads(last.view.status.summary_json)["rounds"] == 0
        assert (await jobs.get(job)).status == last.view.status
        assert not jobs.folder(job).read_status().ended
    async with asyncio.timeout(PATIENCE_S):
        while jobs.live(job):  # noqa: ASYNC110  # until a disk has room
            await asyncio.sleep(0.05)
    assert jobs.folder(job).read_status() == last.view.status


async def test_a_job_whose_last_checkpoint_is_lost_has_not_succeeded(jobs, monkeypatch):
    def full(*_arguments) -> None:
        raise UnavailableError("No space left on device")

    monkeypatch.setattr(RunFolder, "save_checkpoint", full)
    job = name()
    await jobs.submit(submission(job, stop={"rounds": 1}, checkpoint={"every": 0}))
    status = (await ended(jobs, job))[-1].view.status
    assert (status.state, status.reason) == ("FAILED", "No space left on device")
    monkeypatch.undo()
    await jobs.resume(job, "again", "")  # though no round is left
    assert (await ended(jobs, job))[-1].view.status.state == "SUCCEEDED"


async def test_a_job_whose_last_checkpoint_is_lost_holds_nothing_in_the_learner_pool_but_its_replay(
    jobs, cluster, monkeypatch
):
    real = RunFolder.write_pending

    def full(*_arguments) -> None:
        raise UnavailableError("No space left on device")

    def full_after_the_first(folder, pending) -> None:
        (full if pending[-1].round else real)(folder, pending)

    def held(kind: str) -> list[str]:
        return [path.name for path in cluster.folder.glob(f"marless-{kind}-*/*") if path.name != "lock"]

    job, replay = name(), {"name": "iql", "updates": 1, "batch": 8, "warmup": 20, "replay": {"capacity": 70}}
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write_pending", full_after_the_first)
        patched.setattr(RunFolder, "save_checkpoint", full)
        await jobs.submit(submission(job, algorithm=replay, stop={"rounds": 2}, checkpoint={"every": 0}))
        assert (await ended(jobs, job))[-1].view.status.reason == "No space left on device"
        assert held("spool") == []
        assert held("replay") == [f"{job}@agent"]
    await jobs.resume(job, "again", "")
    assert (await ended(jobs, job))[-1].view.status.state == "SUCCEEDED"
    lost = [record.metrics["replay.agent"]["lost"] for record in jobs.folder(job).records()]
    assert lost == [0, 0]
    assert held("replay") == []


async def test_a_defect_ends_the_job_with_its_reason_and_the_line_that_matters(jobs, monkeypatch):
    def broken(*_arguments) -> None:
        raise ZeroDivisionError("1/0")

    monkeypatch.setattr(RunFolder, "append", broken)
    job = name()
    await jobs.submit(submission(job))
    status = (await ended(jobs, job))[-1].view.status
    assert (status.state, status.reason) == ("FAILED", "internal error: ZeroDivisionError: 1/0")
    last = (await log_of(jobs, job))[-1]
    assert (last["event"], last["level"], last["reason"]) == ("job.ended", "error", status.reason)
    assert last["detail"].endswith('raise ZeroDivisionError("1/0")\nZeroDivisionError: 1/0\n')


@pytest.mark.parametrize(("limit", "told_of"), [(0.0, ["agent_0", "agent_1"]), (2.0, [])])
async def test_a_net_whose_units_are_off_is_told_of_once(jobs, monkeypatch, limit, told_of):
    monkeypatch.setattr(job_queue, "MOSTLY_OFF", limit)
    job = name()
    await jobs.submit(submission(job, model={"activation": "relu"}, stop={"rounds": 3}))
    records = records_of(await ended(jobs, job))
    told = [line for line in await log_of(jobs, job) if line["event"] == "policy.units_off"]
    assert sorted(line["policy"] for line in told) == told_of
    for line in told:
        assert line["share"] == max(records[0].metrics[line["policy"]][of] for of in ("units_off", "critic_units_off"))
        assert (line["round"], line["level"]) == (1, "warning")


@pytest.mark.parametrize(
    ("what", "of"),
    [(recording, "summary"), (Costs, "total_usd"), (PendingRollouts, "read")],
    ids=["its summary", "its cost", "its beginning"],
)
async def test_a_defect_while_a_job_ends_ends_it_failed_and_it_is_not_taken_up_again(jobs, monkeypatch, what, of):
    def broken(*_arguments) -> None:
        raise ValueError("invalid literal")

    with monkeypatch.context() as patched:
        patched.setattr(what, of, broken)
        job = name()
        await jobs.submit(submission(job))
        status = (await ended(jobs, job))[-1].view.status
        assert status.state == "FAILED" and "internal error: ValueError: invalid literal" in status.reason
        await asyncio.sleep(2 * LEASE_S)  # several scans of the run folders
        assert jobs.live(job) is None and jobs.folder(job).read_status() == status
    assert status.resumes == 0
    await jobs.delete(job, allow_missing=False)


async def test_a_defect_in_saving_the_last_checkpoint_keeps_the_versions_for_a_resume(jobs, cluster, monkeypatch):
    def broken(*_arguments) -> None:
        raise ValueError("invalid literal")

    job = name()
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save_checkpoint", broken)
        await jobs.submit(submission(job, checkpoint={"every": 0}))
        status = (await ended(jobs, job))[-1].view.status
        assert (status.state, status.reason) == ("FAILED", "internal error: ValueError: invalid literal")
    assert (await cluster.store.list(job)).policies.keys() == {"agent_0", "agent_1", "lane/0", "lane/1"}
    await jobs.resume(job, "again", "")
    assert (await ended(jobs, job))[-1].view.status.state == "SUCCEEDED"


async def test_what_others_have_put_beside_the_checkpoints_is_left_alone(jobs, undisturbed, tmp_path):
    job = name()
    await jobs.submit(submission(job, seed=3, stop={"rounds": 2}))
    await ended(jobs, job)
    place = tmp_path / job / "checkpoints"
    for copy in ("round-000002-best", "round-000009", "best"):
        shutil.copytree(place / "round-000002", place / copy)
    (place / "notes.partial").write_text("mine")
    (place / "round-000004").mkdir()
    os.mkfifo(place / "round-000005")
    await jobs.resume(job, "again", json.dumps({"rounds": 5}))
    assert (await ended(jobs, job))[-1].view.status.state == "SUCCEEDED"
    left = {path.name for path in place.iterdir()}
    assert left == {
        *("round-000004", "round-000005"),  # the two newest of the job
        *("round-000002-best", "round-000009", "best", "notes.partial"),
    }
    with pytest.raises(CorruptError, match="round-000009 holds the checkpoint after 2 rounds, a copy"):
        load_policy(tmp_path / job)
    shutil.rmtree(place / "round-000009")
    assert outcome(jobs.folder(job)) == undisturbed[3]
    assert load_policy(tmp_path / job).origin.round == 5
    assert load_policy(place / "round-000002-best").origin.round == 2


async def test_what_only_a_learner_can_know_fails_the_job_with_the_learners_sentence(jobs):
    job = name()
    await jobs.submit(submission(job, learner={"device": "cuda:99"}))
    status = (await ended(jobs, job))[-1].view.status
    assert status.state == "FAILED"
    assert "cuda:99 asked for" in status.reason


# Several jobs


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(cluster, tmp_path_factory):
    """What jobs of seeds 3 and 4 come to when nothing happens and nobody else is there."""
    outcomes = {}
    for seed in (3, 4):
        folder = created(tmp_path_factory.mktemp("runs") / f"undisturbed-{seed}", spec(seed=seed))
        await go_on(folder, cluster.pools)
        outcomes[seed] = outcome(folder)
    return outcomes


async def test_jobs_that_run_together_come_to_what_each_comes_to_alone(jobs, undisturbed):
    together = {name(): seed for seed in (3, 4)}
    for job, seed in together.items():
        await jobs.submit(submission(job, seed=seed))
    last = await asyncio.gather(*(ended(jobs, job) for job in together))
    records = [records_of(events) for events in last]
    assert records[0][0].started_s < records[1][-1].ended_s
    assert records[1][0].started_s < records[0][-1].ended_s
    assert [outcome(jobs.folder(job)) for job in together] == [undisturbed[seed] for seed in together.values()]


@pytest.mark.parametrize("stop", [{"rounds": 1}, {"rounds": 10_000}])
async def test_a_job_that_replaces_another_has_nothing_of_it(jobs, undisturbed, stop):
    """Workers still hold weights of the job that was replaced, under the names and versions of the new one."""
    job = name()
    await jobs.submit(submission(job, seed=4, request_id="first", stop=stop))
    await until(jobs, job, lambda event: event.view.status.ended if event.view else stop["rounds"] > event.cursor > 2)
    await jobs.submit(submission(job, seed=3, request_id="second", if_exists=IfExists.REPLACE))
    assert (await ended(jobs, job))[-1].view.status.state == "SUCCEEDED"
    assert outcome(jobs.folder(job)) == undisturbed[3]
    again = await jobs.submit(submission(job, seed=3, request_id="second", if_exists=IfExists.REPLACE))
    assert again.status.state == "SUCCEEDED"  # a repeated request does not replace its own job


async def test_jobs_wait_for_their_turn_in_the_order_they_came(cluster, tmp_path):
    first, second, third, fourth = (name() for _ in range(4))
    async with coordinator(cluster, tmp_path, running=1) as jobs:
        await jobs.submit(submission(first, **ENDLESS))
        for job in (second, third, fourth):
            status = (await jobs.submit(submission(job, stop={"rounds": 1}))).status
            assert (status.state, status.reason) == ("PENDING", "waits for its turn: 1 jobs run")
        await trains(jobs, first)
        await jobs.cancel(third)
        assert [event.view.status.reason for event in await ended(jobs, third)] == [
            "cancelled by its user before its turn came"
        ]
        assert json.loads((await jobs.get(third)).status.summary_json)["rounds"] == 0
        await jobs.cancel(first)
        ends = [(await ended(jobs, job))[-1].view.status for job in (first, second, fourth)]
        assert [status.state for status in ends] == ["CANCELLED", "SUCCEEDED", "SUCCEEDED"]
        assert ends[0].ended_s < ends[1].ended_s < ends[2].ended_s
        assert not (tmp_path / third / "rounds.jsonl").exists()
        cancelled, _ = await jobs.page(0, "", {"CANCELLED"})
        assert [view.status.job for view in cancelled] == [third, first]


# Requests that are repeated, or come again with other content


async def test_a_submission_is_known_by_its_request_id(jobs):
    job = name()
    first = await jobs.submit(submission(job, request_id="r", **ENDLESS))
    assert (await jobs.submit(submission(job, request_id="r", **ENDLESS))).status.accepted_s == first.status.accepted_s
    with pytest.raises(AlreadyExistsError, match="this request_id was used with another spec; use a new request_id"):
        await jobs.submit(submission(job, request_id="r", seed=5, **ENDLESS))
    with pytest.raises(AlreadyExistsError, match="exists; choose another id, or say what to do if it exists"):
        await jobs.submit(submission(job, request_id="s", **ENDLESS))
    used = await jobs.submit(submission(job, request_id="s", if_exists=IfExists.USE, **ENDLESS))
    assert used.status.accepted_s == first.status.accepted_s
    with pytest.raises(AlreadyExistsError, match="exists with another spec"):
        await jobs.submit(submission(job, request_id="s", if_exists=IfExists.USE, seed=5))
    with pytest.raises(SpecError, match="mpe/none"):  # and what is there is left alone
        await jobs.submit(submission(job, request_id="s", if_exists=IfExists.REPLACE, env={"name": "mpe/none"}))
    assert (await jobs.get(job)).status.accepted_s == first.status.accepted_s


async def test_a_submission_is_carried_out_though_its_caller_goes_away(jobs):
    job = name()
    asking = asyncio.create_task(jobs.submit(submission(job, stop={"rounds": 1})))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(PATIENCE_S):
        while not jobs.live(job):  # noqa: ASYNC110  # the caller has gone, nobody tells
            await asyncio.sleep(0.01)
    assert (await ended(jobs, job))[-1].view.status.state == "SUCCEEDED"


async def test_a_job_that_ended_goes_on_with_new_stop_rules(jobs, undisturbed, tmp_path):
    job = name()
    await jobs.submit(submission(job, stop={"rounds": 2}))
    first = (await ended(jobs, job))[-1].view.status
    for stop, error, sentence in (
        ("", JobStateError, "has no round left to run: 2 rounds done; change that stop rule"),
        ('{"rounds": 1}', JobStateError, "has no round left to run"),
        ('{"rounds": 0}', SpecError, "stop.rounds"),
        ('{"round": 9}', SpecError, "stop.round"),
        ("[]", SpecError, "stop"),
        ("{", SpecError, "stop: not valid JSON"),
    ):
        with pytest.raises(error, match=sentence):
            await jobs.resume(job, "r", stop)
    assert (await jobs.get(job)).status == first
    resumed = (await jobs.resume(job, "r", '{"rounds": 5}')).status
    assert (resumed.resumes, resumed.ended_s, resumed.summary_json) == (1, 0.0, "")
    assert (await jobs.resume(job, "r", '{"rounds": 5}')).status.resumes == 1
    with pytest.raises(JobStateError, match="has not ended; there is nothing to resume"):
        await jobs.resume(job, "s", "")
    last = (await ended(jobs, job))[-1].view.status
    assert (last.state, last.reason) == ("SUCCEEDED", "5 rounds done")
    assert (await jobs.resume(job, "r", '{"rounds": 5}')).status == last
    assert outcome(jobs.folder(job)) == undisturbed[3]
    assert "rounds: 5" in (tmp_path / job / "spec.yaml").read_text()


async def test_a_stop_rule_that_is_not_changed_stays(jobs):
    job = name()
    rules = {"rounds": 1, "return": 1e6, "wall_s": 600.0, "cost_usd": 5.0}
    await jobs.submit(submission(job, stop=rules))
    await ended(jobs, job)
    for changes, wanted in (
        ({"rounds": 2}, rules | {"rounds": 2}),
        ({"rounds": 3, "cost_usd": None}, {"rounds": 3, "return": 1e6, "wall_s": 600.0}),
    ):
        await jobs.resume(job, f"{changes}", json.dumps(changes))
        await ended(jobs, job)
        assert jobs.folder(job).load()[0].stop.model_dump(by_alias=True, exclude_none=True) == wanted
    with pytest.raises(SpecError, match="resume: stop: set at least one of rounds"):
        await jobs.resume(job, "none", '{"rounds": null, "return": null, "wall_s": null}')


async def test_a_deleted_job_leaves_nothing_and_its_id_is_free(jobs, cluster, tmp_path):
    job = name()
    await jobs.submit(submission(job, **ENDLESS))
    await trains(jobs, job)
    with pytest.raises(JobStateError, match="has not ended; cancel it first, then delete it"):
        await jobs.delete(job, allow_missing=False)
    await jobs.cancel(job)
    await ended(jobs, job)
    await jobs.delete(job, allow_missing=False)
    assert list(tmp_path.iterdir()) == []
    assert (await cluster.store.list(job)).policies == {}
    assert await jobs.page(0, "", ()) == ([], "")
    with pytest.raises(NotFoundError):
        await jobs.get(job)
    await jobs.submit(submission(job, stop={"rounds": 1}))
    assert (await ended(jobs, job))[-1].cursor == 1


async def test_versions_of_a_job_that_failed_are_kept_until_it_is_deleted(jobs, cluster, monkeypatch):
    def full(*_arguments) -> None:
        raise UnavailableError("No space left on device")

    monkeypatch.setattr(RunFolder, "save_checkpoint", full)
    job = name()
    await jobs.submit(submission(job))
    assert (await ended(jobs, job))[-1].view.status.state == "FAILED"
    assert (await cluster.store.list(job)).policies.keys() == {"agent_0", "agent_1", "lane/0", "lane/1"}
    await jobs.delete(job, allow_missing=False)
    assert (await cluster.store.list(job)).policies == {}


async def test_a_folder_that_is_damaged_can_be_deleted(jobs, tmp_path):
    job = name()
    (tmp_path / job).mkdir()
    (tmp_path / job / "job.json").write_text("{")
    with pytest.raises(CorruptError, match=r"job\.json"):
        await jobs.get(job)
    await jobs.delete(job, allow_missing=False)
    assert list(tmp_path.iterdir()) == []


# Coordinators that come and go


async def test_jobs_of_a_coordinator_that_stops_go_on_at_the_next_one(cluster, tmp_path, undisturbed):
    ran, waited, cancelled = (name() for _ in range(3))
    async with coordinator(cluster, tmp_path, running=1) as jobs:
        await jobs.submit(submission(ran))
        for job in (waited, cancelled):
            await jobs.submit(submission(job, seed=4, stop={"rounds": 5}))
        await trains(jobs, ran)
        watching = asyncio.create_task(ended(jobs, ran))
        await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="the coordinator is stopping; continue from the last cursor"):
        await watching
    states = [RunFolder(tmp_path / job).read_status().state for job in (ran, waited)]
    assert states == ["RUNNING", "PENDING"]
    async with coordinator(cluster, tmp_path, running=1) as jobs:
        await ended(jobs, ran)
        await ended(jobs, waited)
        assert (await jobs.get(ran)).status.resumes == 1
        assert [outcome(jobs.folder(job)) for job in (ran, waited)] == [undisturbed[3], undisturbed[4]]
        assert {"job.accepted", "job.continued", "job.ended"} <= {line["event"] for line in await log_of(jobs, ran)}


async def test_a_cancellation_outlives_its_coordinator(cluster, tmp_path):
    job = name()
    async with coordinator(cluster, tmp_path) as jobs:
        await jobs.submit(submission(job, **ENDLESS))
        await trains(jobs, job)
        await jobs.cancel(job)
    async with coordinator(cluster, tmp_path) as jobs:
        assert (await ended(jobs, job))[-1].view.status.state == "CANCELLED"


async def test_a_job_that_waits_for_its_turn_is_not_taken_for_abandoned(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "BEAT_S", LEASE_S / 5)
    runs, waits = name(), name()
    async with coordinator(cluster, tmp_path, running=1) as first, coordinator(cluster, tmp_path) as second:
        for job in (runs, waits):
            await first.submit(submission(job, **ENDLESS))
        await asyncio.sleep(4 * LEASE_S)
        assert [bool(second.live(job)) for job in (runs, waits)] == [False, False]
        assert first.live(waits)
        shown, _ = await second.page(0, "", ())
        assert [view.status.state for view in shown] == ["PENDING", "RUNNING"]


async def test_a_job_whose_coordinator_hangs_is_taken_over_and_watched_all_along(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "BEAT_S", LEASE_S / 5)
    job = name()
    async with coordinator(cluster, tmp_path) as first, coordinator(cluster, tmp_path) as second:
        await first.submit(submission(job, stop={"rounds": 400}))
        await trains(first, job)
        held = first.live(job).folder.ownership
        with pytest.raises(JobStateError, match="is run by another coordinator"):
            await second.cancel(job)
        held._beating.cancel()  # as a process does that is stopped
        await until(second, job, lambda event: event.view and event.view.status.resumes == 1)
        async with asyncio.timeout(PATIENCE_S):
            while first.live(job):  # noqa: ASYNC110  # it finds out at its next write
                await asyncio.sleep(0.01)
        await second.cancel(job)
        seen = [records_of(await ended(each, job)) for each in (first, second)]
        assert seen[0] == seen[1]
        assert [record.round for record in seen[0]] == list(range(len(seen[0])))


async def test_an_attached_job_is_left_to_its_own_coordinator(cluster, tmp_path):
    """And ends FAILED, resumable, once that one has been gone for some leases."""
    own, orphan = name(), name()
    async with coordinator(cluster, tmp_path) as jobs:
        for job in (own, orphan):
            await jobs.submit(submission(job, attached=True, stop={"rounds": 400}))
            await trains(jobs, job)
    async with coordinator(cluster, tmp_path, only=own) as jobs:
        await jobs.submit(submission(own, attached=True, stop={"rounds": 400}))
        await until(jobs, own, lambda event: event.view and event.view.status.resumes == 1)
        await jobs.cancel(own)
        await ended(jobs, own)
        assert not RunFolder(tmp_path / orphan).read_status().ended
    async with coordinator(cluster, tmp_path) as jobs:
        started_s = time.monotonic()
        last = (await ended(jobs, orphan))[-1].view
        assert time.monotonic() - started_s > ATTACHED_LEASES * LEASE_S
        assert (last.status.state, last.status.reason) == (
            "FAILED",
            f"its coordinator was killed after round {last.rounds}; `marless resume {orphan}` goes on",
        )
        await jobs.resume(orphan, "r", json.dumps({"rounds": last.rounds + 1}))
        assert (await ended(jobs, orphan))[-1].view.status.state == "SUCCEEDED"


async def test_what_cannot_be_continued_fails_with_its_reason(cluster, tmp_path):
    job = name()
    created(tmp_path / job, spec()).release()
    path = tmp_path / job / "spec.yaml"
    path.write_text(path.read_text().replace("mpe/simple_spread", "mpe/simple_spred"))
    async with coordinator(cluster, tmp_path) as jobs:
        status = (await ended(jobs, job))[-1].view.status
    assert status.state == "FAILED"
    assert "did you mean 'mpe/simple_spread'" in status.reason


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 * 2**30)


UNREADABLE = {
    "a spec that is missing": ("spec.yaml", Path.unlink, "spec.yaml is missing"),
    "a spec that is a pipe": ("spec.yaml", _pipe, "spec.yaml is a pipe, not a file"),
    "a spec that is not UTF-8": ("spec.yaml", lambda path: path.write_bytes(b"\xff"), "byte 0 (0xff) is not UTF-8"),
    "records that are a pipe": ("rounds.jsonl", _pipe, "rounds.jsonl is a pipe, not a file"),
    "records without an end": ("rounds.jsonl", _huge, "a line has more than 67,108,864 bytes"),
}


@pytest.mark.parametrize("damage", UNREADABLE)
async def test_a_job_whose_files_are_none_fails_with_a_sentence_can_be_deleted_and_harms_no_other(
    cluster, tmp_path, undisturbed, damage
):
    file, damaged, sentence = UNREADABLE[damage]
    job, other, unlisted = name(), name(), name()
    created(tmp_path / job, spec()).release()
    damaged(tmp_path / job / file)
    (tmp_path / unlisted).mkdir()
    _pipe(tmp_path / unlisted / "job.json")
    async with coordinator(cluster, tmp_path) as jobs:
        await jobs.submit(submission(other))
        async with asyncio.timeout(PATIENCE_S):
            while not (status := jobs.folder(job).read_status()).ended:  # noqa: ASYNC110  # until it is taken up
                await asyncio.sleep(0.05)
        assert status.state == "FAILED" and sentence in status.reason
        assert (await jobs.cancel(job)).status == status
        await ended(jobs, other)
        assert outcome(jobs.folder(other)) == undisturbed[3]
        shown, _ = await jobs.page(10, "", ())
        assert {view.status.job for view in shown} == {job, other}
        await jobs.delete(job, allow_missing=False)
        await jobs.delete(unlisted, allow_missing=False)
    assert [path.name for path in tmp_path.iterdir()] == [other]


async def test_a_job_whose_rounds_are_there_twice_fails_before_it_trains_on(cluster, tmp_path):
    job = name()
    async with coordinator(cluster, tmp_path) as jobs:
        await jobs.submit(submission(job, stop={"rounds": 2}))
        await ended(jobs, job)
        records = tmp_path / job / "rounds.jsonl"
        first, second = records.read_text().splitlines(keepends=True)
        records.write_text(first + first + second)
        with pytest.raises(CorruptError, match="its 3 lines are not rounds 1 to 3; rounds are missing, or there twice"):
            await jobs.resume(job, "again", json.dumps({"rounds": 4}))
        records.write_text(first + second)
        await jobs.resume(job, "once more", json.dumps({"rounds": 4}))
        assert (await ended(jobs, job))[-1].view.status.state == "SUCCEEDED"
