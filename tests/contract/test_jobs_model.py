"""The Job API against a model of it that is a few dictionaries: any sequence of requests, rounds and restarts."""

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from marless.core.errors import AlreadyExistsError, JobStateError, MarlessError, NotFoundError
from marless.jobs.record import PhaseSeconds, RoundRecord
from marless.services.coordinator.jobs import job_queue
from marless.services.coordinator.jobs.jobs import Jobs, JobsOptions
from marless.services.coordinator.jobs.submission import IfExists, Submission
from marless.services.coordinator.jobs.view import ended
from marless.services.coordinator.state import bucket_state, run_folder
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.runs import BucketRuns
from marless.services.coordinator.state.status import JobStatus
from marless.storage.places import Address
from tests.integration.running import spec
from tests.unit.storage.bucket.memory import MemoryObjects

RUNNING = 1
PATIENCE_S = 2.0
SPECS = {seed: spec(seed=seed, stop={"rounds": 10_000}).to_json() for seed in (1, 2)}
NAMES = st.sampled_from("abc")
REQUESTS = st.sampled_from(["", "r"])


class ScriptedRun:
    """A job's run that does what it is told: `rounds` and `finish` are the script."""

    def __init__(self, *, folder: RunFolder, status: JobStatus, changed: Callable[..., None], **_rest: object) -> None:
        self.folder = folder
        self.status = status
        self.changed = changed
        self.detail = ""
        self.script: asyncio.Queue[str] = asyncio.Queue()

    def cancel(self) -> None:
        self.script.put_nowait("CANCELLED")

    async def run(self) -> None:
        try:
            self.folder.take_over()
            resumes = self.status.resumes + (self.status.state == "RUNNING")
            self._set(replace(self.status, state="RUNNING", resumes=resumes))
            while (told := await self.script.get()) == "round":
                done = RoundRecord(
                    **{"job": self.status.job, "round": len(list(self.folder.records())), "env_steps": 1, "actors": 1},
                    **{"groups": (), "versions": {}, "started_s": 1.0, "ended_s": 2.0, "returns": None},
                    **{"evaluation": None, "metrics": {}, "invocations": (), "decisions": ()},
                    phases=PhaseSeconds(rollout=0.0, update=0.0, evaluation=0.0),
                )
                self.folder.append(done)
                self.folder.flush()
                self.changed(done)
            self._set(ended(self.status, self.folder, told, "as told"))
        finally:
            self.folder.release()

    def _set(self, status: JobStatus) -> None:
        self.status = status
        self.folder.write_status(status)
        self.folder.flush()
        self.changed(None)


class NoPools:
    """Pools and a store that know of no job."""

    @property
    def store(self) -> "NoPools":
        return self

    async def close_job(self, job: str, *, keep_replay: bool = False) -> None: ...

    async def delete_job(self, job: str) -> None: ...


@dataclass
class ModelJob:
    seed: int
    request_id: str
    accepted: int
    state: str = "PENDING"
    rounds: int = 0
    resumes: int = 0
    resume_request_id: str = ""

    @property
    def over(self) -> bool:
        return self.state not in ("PENDING", "RUNNING")


class Model:
    """What the coordinator promises."""

    def __init__(self) -> None:
        self.jobs: dict[str, ModelJob] = {}
        self.queue: list[str] = []
        self.serial = 0

    def fill(self) -> None:
        while self.queue and sum(job.state == "RUNNING" for job in self.jobs.values()) < RUNNING:
            self.jobs[self.queue.pop(0)].state = "RUNNING"

    def leave(self, name: str, state: str) -> None:
        with suppress(ValueError):
            self.queue.remove(name)
        self.jobs[name].state = state
        self.fill()

    def get(self, name: str) -> ModelJob:
        if name not in self.jobs:
            raise NotFoundError
        return self.jobs[name]

    def submit(self, name: str, seed: int, request: str, if_exists: IfExists) -> None:
        if known := self.jobs.get(name):
            equal = known.seed == seed
            if request and request == known.request_id:
                if not equal and not known.resumes:
                    raise AlreadyExistsError
                return
            if if_exists is not IfExists.REPLACE:
                if equal and not (request and if_exists is IfExists.FAIL):
                    return
                raise AlreadyExistsError
            if equal and not request:
                return
            self.leave(name, "GONE")
        self.serial += 1
        self.jobs[name] = ModelJob(seed, request, self.serial)
        self.queue.append(name)
        self.fill()

    def cancel(self, name: str) -> None:
        if not self.get(name).over:
            self.leave(name, "CANCELLED")

    def delete(self, name: str) -> None:
        if not self.get(name).over:
            raise JobStateError
        del self.jobs[name]

    def resume(self, name: str, request: str) -> None:
        job = self.get(name)
        if request and request == job.resume_request_id:
            return
        if not job.over:
            raise JobStateError
        job.state, job.resumes, job.resume_request_id = "PENDING", job.resumes + 1, request
        self.queue.append(name)
        self.fill()

    def restart(self) -> None:
        unfinished = [name for name, job in self.jobs.items() if not job.over]
        self.queue = sorted(unfinished, key=lambda name: (self.jobs[name].state, self.jobs[name].accepted))
        self.queue.sort(key=lambda name: self.jobs[name].state != "RUNNING")
        for name in unfinished:
            self.jobs[name].resumes += self.jobs[name].state == "RUNNING"
            self.jobs[name].state = "PENDING"
        self.fill()


class JobsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.runs = Path(tempfile.mkdtemp(prefix="marless-model-"))
        self.model = Model()
        self.hosts = 0
        self.objects = MemoryObjects()
        self.jobs = self.start()
        self.repeat: Callable[[], None] = self.restart

    def teardown(self) -> None:
        self.runner.run(self.jobs.stop())
        self.runner.close()
        shutil.rmtree(self.runs)

    def start(self) -> Jobs:
        jobs = Jobs(self.runs, NoPools(), JobsOptions(running=RUNNING, lease_s=0.2))
        return self.runner.run(jobs.__aenter__())

    def both(self, asked, expected) -> None:
        """The same request to the coordinator and to the model: the same error, or none."""
        try:
            expected()
        except MarlessError as error:
            with pytest.raises(type(error)):
                self.runner.run(asked)
        else:
            self.runner.run(asked)

    @rule(name=NAMES, seed=st.sampled_from([1, 2]), request=REQUESTS, if_exists=st.sampled_from(IfExists))
    def submit(self, name: str, seed: int, request: str, if_exists: IfExists) -> None:
        self.repeat = lambda: self.submit(name, seed, request, if_exists)
        asked = Submission(job=name, spec_json=SPECS[seed], request_id=request, if_exists=if_exists)
        self.both(self.jobs.submit(asked), lambda: self.model.submit(name, seed, request, if_exists))

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        self.both(self.jobs.cancel(name), lambda: self.model.cancel(name))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.both(self.jobs.delete(name, allow_missing=False), lambda: self.model.delete(name))

    @rule(name=NAMES, request=REQUESTS)
    def resume(self, name: str, request: str) -> None:
        self.repeat = lambda: self.resume(name, request)
        self.both(self.jobs.resume(name, request, ""), lambda: self.model.resume(name, request))

    @rule()
    def again(self) -> None:
        """The last submission or resumption, whose answer was lost."""
        self.repeat()

    @rule(name=NAMES, told=st.sampled_from(["round", "round", "SUCCEEDED", "FAILED"]))
    def go_on(self, name: str, told: str) -> None:
        job = self.model.jobs.get(name)
        if job is None or job.state != "RUNNING":
            return
        self.jobs.live(name).job_run.script.put_nowait(told)
        if told == "round":
            job.rounds += 1
        else:
            self.model.leave(name, told)

    @rule()
    def restart(self) -> None:
        self.runner.run(self.jobs.stop())
        on_disk = {name: self.state(name) for name in self.model.jobs}
        assert on_disk == {name: job.state for name, job in self.model.jobs.items()}
        self.jobs = self.start()
        self.model.restart()

    def state(self, name: str) -> str:
        return RunFolder(self.runs / name).read_status().state

    @invariant()
    def agrees(self) -> None:
        """Within a moment, for what is told to a run takes its time."""
        expected = [
            (name, job.state, job.rounds, job.resumes)
            for name, job in sorted(self.model.jobs.items(), key=lambda item: -item[1].accepted)
        ]
        until_s = time.monotonic() + PATIENCE_S
        while (found := self.runner.run(self.listed())) != expected:
            assert time.monotonic() < until_s, f"{found}, not {expected}"

    async def listed(self) -> list[tuple[str, str, int, int]]:
        token, found = "", []
        while not found or token:
            views, token = await self.jobs.page(2, token, ())
            found += views
            if not views:
                break
        await asyncio.sleep(0.001)
        return [(view.status.job, view.status.state, view.rounds, view.status.resumes) for view in found]


class BucketMachine(JobsMachine):
    """The same with run folders in a bucket; each coordinator is on a host of its own, with an empty disk."""

    def start(self) -> Jobs:
        for thread in threading.enumerate():
            if thread.name == bucket_state.RELEASE:
                thread.join()
        self.hosts += 1
        runs = BucketRuns(self.runs / f"host-{self.hosts}", self.objects, Address("bucket", "runs"), lease_s=30.0)
        jobs = Jobs(runs, NoPools(), JobsOptions(running=RUNNING, lease_s=0.2))
        return self.runner.run(jobs.__aenter__())

    def state(self, name: str) -> str:
        return RunFolder(self.runs / f"host-{self.hosts}" / name).read_status().state


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    monkeypatch.setattr(job_queue, "JobRun", ScriptedRun)
    monkeypatch.setattr(run_folder, "fsync", lambda _path: None)  # what survives a power cut is not in question here


@pytest.mark.parametrize("kept", [JobsMachine, BucketMachine])
def test_after_a_restart_what_ran_goes_on_before_older_jobs_that_waited(kept):
    machine = kept()
    machine.submit("a", 1, "", IfExists.FAIL)
    machine.go_on("a", "SUCCEEDED")
    machine.agrees()
    machine.submit("b", 1, "", IfExists.FAIL)
    machine.resume("a", "r")
    machine.restart()
    machine.agrees()
    machine.teardown()
    assert [machine.model.jobs[name].state for name in "ab"] == ["PENDING", "RUNNING"]


@pytest.mark.parametrize("kept", [JobsMachine, BucketMachine])
@pytest.mark.parametrize("examples", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_the_job_api_is_its_model(examples, kept):
    run_state_machine_as_test(kept, settings=settings(max_examples=examples, stateful_step_count=40))
