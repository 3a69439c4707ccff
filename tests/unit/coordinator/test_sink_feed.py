"""A job's rounds reach its sinks whatever these do, and the job does not notice."""

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from marless.jobs.record import Evaluation, RoundRecord
from marless.jobs.sinks.contract import sample_round
from marless.jobs.spec import JobSpec, parse
from marless.learning.data.returns import EpisodeReturns
from marless.services.coordinator.jobs import sink_feed
from marless.services.coordinator.jobs.sink_feed import SinkFeed
from marless.services.coordinator.state.job_log import JobLog, lines
from marless.services.coordinator.state.run_folder import RunFolder

SPEC = {
    **{"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo"},
    **{"stop": {"rounds": 3}, "evaluation": {"every": 0}},
}
GREEDY = EpisodeReturns(episodes=9, mean=-3.0, per_agent={"agent_0": -2.0, "agent_1": -4.0}, standard_error=0.1)


class Kept:
    """A sink that remembers; `obey` is called with every round and may raise or block."""

    def __init__(self, obey=lambda _: None):
        self.rounds: list[int] = []
        self.opened: list[int | None] = []
        self.closed: list[str] = []
        self.speeds: list[float] = []
        self.greedy: dict[int, float] = {}
        """Round → what it was given as its greedy return."""
        self._obey = obey

    def open(self, job):
        self.opened.append(job.last.round if job.last else None)
        if job.last is None:
            self.rounds.clear()
        else:
            self.rounds[:] = [each for each in self.rounds if each <= job.last.round]

    def write(self, record, scalars):
        self._obey(record)
        self.rounds.append(record.round)
        self.speeds.append(scalars["speed/env_steps_per_s"])
        if "returns/greedy" in scalars:
            self.greedy[record.round] = scalars["returns/greedy"]

    def close(self, state):
        self.closed.append(state)


class Job:
    """What a job does to its feed: record a round, then tell."""

    def __init__(self, folder: Path, *kept: Kept, names=("tensorboard", "wandb"), every: int = 0):
        self.folder = folder
        self.kept = dict(zip(names, kept, strict=False))
        self.spec: JobSpec = parse({**SPEC, "sinks": list(self.kept), "evaluation": {"every": every}}, "spec")
        self.log = JobLog(RunFolder(folder), "job", lambda: None)

    def feed(self):
        return SinkFeed(
            job_id="job", spec=self.spec, folder=self.folder, log=self.log, make=lambda config: self.kept[config.name]
        )

    def record(self, number: int, scale: float = 1.0, **changes: object) -> RoundRecord:
        record = replace(sample_round(number, scale), **changes)
        with (self.folder / "rounds.jsonl").open("a") as file:
            file.write(record.to_json() + "\n")
        return record

    def logged(self, event: str) -> list[str]:
        return [line.json for line in lines(self.folder / "log.jsonl", 0) if f'"{event}"' in line.json]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(sink_feed, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(sink_feed, "STOP_S", 2.0)


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # what threads do sets no event of the loop
            await asyncio.sleep(0.005)


async def test_rounds_arrive_once_and_in_order(tmp_path):
    kept, other = Kept(), Kept()
    job = Job(tmp_path, kept, other)
    feed = job.feed()
    for number in range(20):
        feed.put(job.record(number), None)
    await feed.stop("SUCCEEDED", None)
    assert kept.rounds == other.rounds == list(range(20))
    assert kept.opened == [None]
    assert kept.closed == ["SUCCEEDED"]
    assert kept.speeds == [50.0] * 20  # of each round's own steps


def earlier(rounds: int) -> Evaluation:
    return Evaluation(rounds=rounds, env_steps=100 * rounds, returns=replace(GREEDY, mean=-float(rounds)))


async def test_a_round_is_passed_on_with_the_evaluation_that_ran_during_the_next_one(tmp_path):
    """Policies of every other round are evaluated: those of the last round, and of one before a new start, at once."""
    kept = Kept()
    job = Job(tmp_path, kept, every=2)
    feed = job.feed()
    for number in range(2):
        feed.put(job.record(number, evaluation=None), None)
    await until(lambda: kept.rounds == [0])
    feed.put(job.record(2, evaluation=None, earlier_evaluation=earlier(2)), None)
    await until(lambda: kept.rounds == [0, 1, 2])
    feed.put(job.record(3, evaluation=None), None)
    await feed.stop("RUNNING", None)  # its evaluation is cut, and runs again under the next coordinator
    assert kept.rounds == [0, 1, 2]
    feed = job.feed()
    feed.put(job.record(4, evaluation=None, earlier_evaluation=earlier(4)), None)
    feed.put(job.record(5, evaluation=GREEDY), None)
    await until(lambda: kept.rounds == list(range(6)))
    feed.put(job.record(6, evaluation=None), None)
    feed.put(job.record(7, evaluation=None), None)  # cancelled: no evaluation follows
    await feed.stop("CANCELLED", None)
    assert kept.rounds == list(range(8))
    assert kept.greedy == {1: -2.0, 3: -4.0, 5: -3.0}


async def test_every_round_is_held_until_the_next_if_every_round_is_evaluated(tmp_path):
    kept = Kept()
    job = Job(tmp_path, kept, every=1)
    feed = job.feed()
    feed.put(job.record(0, evaluation=None), None)
    for number in range(1, 5):
        feed.put(job.record(number, evaluation=None, earlier_evaluation=earlier(number)), None)
        await until(lambda held=number: kept.rounds == list(range(held)))
    feed.put(job.record(5, evaluation=GREEDY, earlier_evaluation=earlier(5)), None)
    await feed.stop("SUCCEEDED", None)
    assert kept.greedy == {0: -1.0, 1: -2.0, 2: -3.0, 3: -4.0, 4: -5.0, 5: -3.0}


async def test_rounds_recorded_while_nobody_looked_are_not_missed(tmp_path):
    kept = Kept()
    job = Job(tmp_path, kept)
    before = job.feed()
    for number in range(3):
        before.put(job.record(number), None)
    await before.stop("RUNNING", None)
    for number in range(3, 6):
        job.record(number)  # by a coordinator that was killed before its sinks had them
    after = job.feed()
    after.put(job.record(6), None)
    await after.stop("SUCCEEDED", None)
    assert kept.rounds == list(range(7))
    assert kept.opened == [None, 2]
    assert kept.closed == ["RUNNING", "SUCCEEDED"]


async def test_rounds_that_a_resume_takes_back_are_written_anew(tmp_path):
    kept = Kept()
    job = Job(tmp_path, kept)
    before = job.feed()
    for number in range(6):
        before.put(job.record(number), None)
    await before.stop("FAILED", None)
    path = tmp_path / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    after = job.feed()
    for number in range(3, 7):
        after.put(job.record(number, 2.0), None)
    await after.stop("SUCCEEDED", None)
    assert kept.rounds == list(range(7))
    assert kept.opened == [None, 2]


async def test_rounds_that_a_restore_takes_back_in_mid_run_are_written_anew(tmp_path):
    kept = Kept()
    job = Job(tmp_path, kept)
    feed = job.feed()
    for number in range(6):
        feed.put(job.record(number), None)
    await until(lambda: kept.rounds == list(range(6)))
    path = tmp_path / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    for number in range(3, 9):
        feed.put(job.record(number, 2.0), None)
    await feed.stop("SUCCEEDED", None)
    assert kept.rounds == list(range(9))
    assert kept.opened == [None, 2]
    assert kept.closed == ["RUNNING", "SUCCEEDED"]
    assert job.logged("sink.failed") == []  # it is no failure


async def test_a_job_that_ends_without_a_further_round_leaves_none_out(tmp_path):
    kept = Kept()
    job = Job(tmp_path, kept)
    for number in range(3):
        job.record(number)  # by a coordinator that was killed before the job's end was written
    await job.feed().stop("SUCCEEDED", None)
    assert kept.rounds == [0, 1, 2]
    assert kept.closed == ["SUCCEEDED"]


@pytest.mark.alone
async def test_a_sink_that_blocks_holds_up_neither_the_job_nor_another_sink(tmp_path, monkeypatch):
    monkeypatch.setattr(sink_feed, "STOP_S", 0.1)
    held = threading.Event()
    blocked, kept = Kept(lambda _: held.wait()), Kept()
    job = Job(tmp_path, blocked, kept)
    feed = job.feed()
    try:
        records = [job.record(number) for number in range(300)]
        started_s = time.perf_counter()
        for record in records:
            feed.put(record, None)
        assert time.perf_counter() - started_s < 1.0
        await until(lambda: len(kept.rounds) == 300)
        await feed.stop("SUCCEEDED", None)
        assert kept.closed == ["SUCCEEDED"]
        assert [line for line in job.logged("sink.behind") if '"rounds": 300' in line]
    finally:
        held.set()
    await until(lambda: blocked.closed == ["SUCCEEDED"])
    assert blocked.rounds == list(range(300))  # it was never out of reach, only behind


async def test_a_sink_that_raises_is_opened_anew_and_misses_nothing(tmp_path):
    troubles = iter([OSError("no route"), OSError("no route"), None])

    def obey(record):
        if record.round == 2 and (trouble := next(troubles, None)):
            raise trouble

    kept = Kept(obey)
    job = Job(tmp_path, kept)
    feed = job.feed()
    for number in range(5):
        feed.put(job.record(number), None)
    await until(lambda: len(kept.rounds) == 5)
    await feed.stop("SUCCEEDED", None)
    assert kept.rounds == list(range(5))
    assert kept.opened == [None, 1, 1]
    assert kept.closed == ["RUNNING", "RUNNING", "SUCCEEDED"]
    (failed,) = job.logged("sink.failed")
    assert "OSError: no route" in failed
    assert len(job.logged("sink.recovered")) == 1


async def test_a_sink_that_always_raises_is_given_up_once_the_job_has_ended(tmp_path):
    def obey(_):
        raise RuntimeError("broken")

    job = Job(tmp_path, Kept(obey))
    feed = job.feed()
    feed.put(job.record(0), None)
    await feed.stop("FAILED", None)
    await until(lambda: job.logged("sink.given_up"))


async def test_a_job_without_a_round_opens_no_sink(tmp_path):
    kept = Kept()
    await Job(tmp_path, kept).feed().stop("FAILED", None)
    assert kept.opened == []
