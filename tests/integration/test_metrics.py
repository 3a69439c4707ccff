"""Curves and counters of real services: what TensorBoard shows and Prometheus scrapes is what the rounds were."""

import asyncio
import json
import os
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from marless.app.cli.stack import LocalStack
from marless.app.client import AsyncClient
from marless.jobs.record import RoundRecord
from marless.jobs.sinks.base import scalars
from marless.services.coordinator.jobs.view import EXECUTED
from marless.services.coordinator.state.run_folder import RunFolder
from marless.storage.round_file import read
from tests.e2e.test_train import JOB
from tests.queries import OF_SCRAPES, grouped, queries, selected
from tests.unit.jobs.sinks.test_tensorboard import points

pytestmark = pytest.mark.asyncio(loop_scope="module")
SOON_S = 30.0
ROUNDS = 24
SERVICES = ("coordinator", "actor_pool", "learner_pool", "param_store")
Samples = dict[tuple[str, ...], float]
"""Name, then the values of its labels in the order of their names → value."""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Where the stack of these tests keeps its files."""
    return tmp_path_factory.mktemp("metrics")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(place) -> AsyncIterator[LocalStack]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MARLESS_SPOOL", str(place))
        patched.setenv("OMP_NUM_THREADS", "1")
        patched.setenv("MARLESS_METRICS", "127.0.0.1:0")
        async with LocalStack(runs=place / "runs", logs=place / "logs", data=place / "store") as stack:
            async with asyncio.timeout(SOON_S):
                await stack.serving()
            yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(stack.coordinator) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def counted(client, place) -> list[Samples]:
    """What each service says after the first job, of this name, and before any other."""
    await client.submit(JOB | {"stop": {"rounds": ROUNDS}}, job="counted")
    async with asyncio.timeout(SOON_S):
        await client.wait("counted")
    logs = [place / "logs" / f"{name}.log" for name in SERVICES]
    return await asyncio.gather(*(asyncio.to_thread(scrape, log) for log in logs))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def known(counted, place) -> dict[str, set[str]]:
    """The labels of each metric of the four services."""
    found: dict[str, set[str]] = {}
    for name in SERVICES:
        for sample in await asyncio.to_thread(exported, place / "logs" / f"{name}.log"):
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def exported(log: Path) -> list[Sample]:
    """What the service with this log says now."""
    addresses = [json.loads(line)["address"] for line in log.read_text().splitlines() if '"metrics"' in line]
    with urllib.request.urlopen(f"http://{addresses[-1]}/metrics", timeout=SOON_S) as answer:
        text = answer.read().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def scrape(log: Path) -> Samples:
    """The same by name and labels, histograms without their buckets."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for sample in exported(log)
        if "le" not in sample.labels
    }


def summed(samples: Samples, name: str) -> float:
    return sum(value for key, value in samples.items() if key[0] == name)


def recorded(folder: Path, records: list[RoundRecord]) -> dict[tuple[str, int], list[float]]:
    """Every value that each name should have at each step."""
    random = RunFolder(folder).read_status().random
    greedy = {each.rounds: each.returns for record in records for each in record.evaluations}
    records = [replace(record, evaluation=greedy.get(record.round + 1)) for record in records]
    pairs = zip([None, *records], records, strict=False)
    return {
        (name, record.env_steps): [value]
        for before, record in pairs
        for name, value in scalars(record, before, random).items()
    }


def shown(folder: Path) -> dict[tuple[str, int], list[float]]:
    """Every value that TensorBoard's own reader finds."""
    found: dict[tuple[str, int], list[float]] = {}
    for name, step, value in points(folder):
        found.setdefault((name, step), []).append(value)
    return found


def is_random(point: tuple[str, int]) -> bool:
    return point[0].endswith("/random")


async def test_every_service_tells_prometheus_what_it_did(counted, place):
    coordinator, actors, learners, store = counted
    records = list(read(place / "runs" / "counted" / "rounds.jsonl"))

    invocations = [each for record in records for each in record.invocations]
    assert coordinator["marless_jobs", "SUCCEEDED"] == 1
    assert coordinator["marless_rounds_total",] == ROUNDS
    assert coordinator["marless_env_steps_total",] == records[-1].env_steps
    for function, count in Counter(each.function for each in invocations).items():
        inner = function not in EXECUTED
        counted, used = ("learner_functions", "learner_function") if inner else ("invocations", "invocation")
        assert coordinator[f"marless_{counted}_total", function] == count
        vcpu_s = sum(each.vcpu_s for each in invocations if each.function == function)
        assert coordinator[f"marless_{used}_vcpu_seconds_total", function] == pytest.approx(vcpu_s)
    # Whoever sums a metric over its labels counts nothing twice: every execution has a worker.
    assert summed(coordinator, "marless_invocations_total") == sum(bool(each.worker) for each in invocations)
    assert summed(coordinator, "marless_learner_functions_total") == sum(not each.worker for each in invocations)
    used_s = sum(each.vcpu_s for each in invocations if each.worker)
    assert summed(coordinator, "marless_invocation_vcpu_seconds_total") == pytest.approx(used_s)
    assert coordinator["marless_rpc_seconds_count", "OK", "CoordinatorService/SubmitJob"] == 1

    acted = sum(each.function in ("actor", "evaluation") for each in invocations)
    assert actors["marless_task_attempts_total", "done"] >= acted  # and the random baseline
    assert actors["marless_rpc_seconds_count", "OK", "ActorPoolService/Rollout"] > ROUNDS
    assert actors["marless_tasks_queued",] == 0
    assert actors["marless_workers", "idle"] >= 1

    assert learners["marless_uploads_total", "applied"] == sum(record.actors for record in records)
    assert learners["marless_uploads_total", "refused"] == 0
    assert learners["marless_intake_bytes",] == 0
    assert learners["marless_rpc_seconds_count", "OK", "LearnerPoolService/Update"] == ROUNDS
    as_the_coordinator_saw_it_s = sum(record.phases.update for record in records)
    assert 0 < learners["marless_rpc_seconds_sum", "OK", "LearnerPoolService/Update"] < as_the_coordinator_saw_it_s

    assert store["marless_rpc_seconds_count", "OK", "ParamStoreService/Publish"] >= ROUNDS
    assert store["marless_redis_restarts_total",] == 0
    assert all(samples["process_resident_memory_bytes",] > 2**20 for samples in (coordinator, actors, learners, store))


@pytest.mark.parametrize("title", queries())
async def test_what_the_dashboard_and_the_alerts_ask_for_is_exported(counted, known, title):
    """Red for a metric or a label that no service has, and for one whose name changes."""
    query = queries()[title]
    labels = set(OF_SCRAPES)
    for each in selected(query):
        assert each.metric in known
        assert each.labels <= known[each.metric] | OF_SCRAPES
        labels |= known[each.metric]
    assert grouped(query) <= labels


async def test_a_killed_coordinator_leaves_one_whole_curve(stack, client, counted, place):
    await client.submit(JOB | {"sinks": ["tensorboard"], "stop": {"rounds": ROUNDS}}, job="curve")
    folder = place / "runs" / "curve"
    async with asyncio.timeout(SOON_S):
        async for event in client.watch("curve"):
            if event.record and event.record.round == ROUNDS // 2:
                os.kill(stack.pid("coordinator"), signal.SIGKILL)
                break
        assert (await client.wait("curve")).resumes == 1
    records = list(read(folder / "rounds.jsonl"))
    assert len(records) == ROUNDS
    wanted = recorded(folder, records)
    deadline = time.monotonic() + SOON_S
    trained = {point for point in wanted if not is_random(point)}
    while not trained <= (found := shown(folder)).keys() and time.monotonic() < deadline:  # noqa: ASYNC110  # of a file
        await asyncio.sleep(0.05)
    assert trained == {point for point in found if not is_random(point)}
    assert found == {point: pytest.approx(wanted[point], rel=1e-6) for point in found}
    steps = {name: [step for each, step in sorted(found) if each == name] for name, _ in filter(is_random, found)}
    every = [record.env_steps for record in records]
    assert all(taken == every[-len(taken) :] for taken in steps.values())  # from when the baseline was measured
    assert len({path.name for path in (folder / "tensorboard").iterdir()}) == 2
