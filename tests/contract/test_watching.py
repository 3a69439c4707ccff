"""Watching a job of many large rounds: the first event comes at once, and memory stays small, from any cursor."""

import asyncio
import gc
import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from marless.jobs.record import Evaluation, from_json
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.rpc.v1 import coordinator_pb2 as pb
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from marless.services.coordinator.api.servicer import CoordinatorServicer, watch
from marless.services.coordinator.jobs.jobs import Jobs, JobsOptions
from marless.services.coordinator.state.journal import HISTORY_ROUNDS, Costs, Journal
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus
from marless.storage import round_file
from marless.storage.round_file import BATCH_BYTES, JobProgress, RoundReader, progress_of
from tests.contract.test_jobs_model import NoPools
from tests.unit.coordinator.test_run_folder import SPEC
from tests.unit.jobs.test_record import RETURNS, record

FIRST_EVENT_S = 1.0
GROWTH_BYTES = 32 * 2**20
ACTORS = 100
SIZES = [pytest.param(1200, id="1200 rounds"), pytest.param(6000, id="6000 rounds", marks=pytest.mark.slow)]


def large_line(round_: int, actors: int = ACTORS) -> str:
    base = record(round_)
    invocation = base.invocations[0]
    many = tuple(replace(invocation, id=f"j/{round_}/train/{index}", index=index) for index in range(actors))
    return replace(base, invocations=many).to_json()


def write_rounds(folder: Path, rounds: int) -> None:
    """A run folder of a job that has ended; its records differ in their numbers only."""
    line = large_line(0)
    with (folder / "rounds.jsonl").open("w") as file:
        for round_ in range(rounds):
            file.write(line.replace('"round":0,', f'"round":{round_},', 1) + "\n")


@pytest.fixture
def runs(tmp_path) -> Path:
    return tmp_path / "runs"


def ended_job(runs: Path, rounds: int, name: str = "j") -> Path:
    folder = RunFolder(runs / name)
    summary = {"rounds": rounds, "env_steps": rounds, "return": None, "random_return": None}
    status = JobStatus(
        job=name, state="SUCCEEDED", reason="done", accepted_s=5.0, random=RETURNS, summary_json=json.dumps(summary)
    )
    folder.create(SPEC, status)
    folder.release()
    write_rounds(folder.path, rounds)
    return folder.path


@pytest.mark.alone
@pytest.mark.parametrize("rounds", SIZES)
async def test_a_watcher_of_many_large_rounds_is_served_at_once_and_in_little_memory(runs, rounds):
    await asyncio.to_thread(ended_job, runs, rounds)
    async with Jobs(runs, NoPools(), JobsOptions()) as jobs:
        await anext(watch(jobs, "j", rounds - 1))  # what the first of all watchers imports
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            began_s = time.perf_counter()
            first_s, seen = None, 0
            async with aclosing(watch(jobs, "j", 0)) as events:
                async for event in events:
                    first_s = first_s or time.perf_counter() - began_s
                    seen += event.view is None
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert seen == rounds
    assert first_s < FIRST_EVENT_S
    assert peak - before < GROWTH_BYTES


async def test_a_slow_client_holds_back_what_is_read_for_it(runs, monkeypatch):
    await asyncio.to_thread(ended_job, runs, 1200)
    batches, batch = [], RoundReader.batch
    monkeypatch.setattr(RoundReader, "batch", lambda *which: batches.append(found := batch(*which)) or found)
    server = ServerOptions(f"unix:{runs}.sock", Security())

    @asynccontextmanager
    async def build(_address: str) -> AsyncIterator[ServedService]:
        async with Jobs(runs, NoPools(), JobsOptions()) as jobs:
            yield ServedService(CoordinatorServicer(jobs, None).register)

    async with serving(server, build) as address, Peer(address, Security()).channel as channel:
        stub = CoordinatorServiceStub(channel)
        call = stub.WatchJob(pb.WatchJobRequest(job="j", cursor=0))
        events, taken = aiter(call), 0
        first = await anext(events)
        while taken < (taken := len(batches)):  # noqa: ASYNC110  # until the coordinator reads no further
            await asyncio.sleep(0.3)
        assert taken * BATCH_BYTES < GROWTH_BYTES / 2
        rest = [event async for event in events]
    assert (first.cursor, len(rest), rest[-2].cursor, rest[-1].state.job) == (1, 1200, 1200, "j")


@pytest.fixture
def parsed(monkeypatch) -> list[str]:
    """What is parsed as a record."""
    lines: list[str] = []
    monkeypatch.setattr(round_file, "from_json", lambda line: lines.append(line) or from_json(line))
    return lines


def test_asking_how_far_a_job_is_parses_one_record(runs, parsed):
    folder = RunFolder(ended_job(runs, 600))
    assert progress_of(folder.rounds_path) == JobProgress().after(record(599, env_steps=100))
    assert len(parsed) == 1


def test_a_job_that_goes_on_parses_what_decisions_look_back_on_only(runs, parsed):
    """Those of a rollout that was decided a round earlier look one round further back."""
    folder = RunFolder(ended_job(runs, 600))
    journal = Journal(folder, Costs(SPEC, folder))
    journal.read()
    assert (len(parsed), journal.rounds, journal.trained_s) == (HISTORY_ROUNDS + 1, 600, pytest.approx(300.0))
    assert [each.round for each in journal.history] == list(range(600 - HISTORY_ROUNDS, 600))


@pytest.mark.parametrize(
    "changes",
    [{"evaluation": RETURNS}, {"earlier_evaluation": Evaluation(rounds=3, env_steps=300, returns=RETURNS)}],
)
def test_the_newest_evaluation_is_known_however_old_it_is(runs, parsed, changes):
    folder = RunFolder(ended_job(runs, 600))
    lines = (folder.path / "rounds.jsonl").read_text().splitlines(keepends=True)
    lines[3] = record(3, **changes).to_json() + "\n"
    (folder.path / "rounds.jsonl").write_text("".join(lines))
    journal = Journal(folder, Costs(SPEC, folder))
    journal.read()
    assert journal.greedy == RETURNS
    assert len(parsed) == HISTORY_ROUNDS + 2
