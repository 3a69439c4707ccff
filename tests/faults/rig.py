"""A stack on this machine whose services come back however often they are killed, and the jobs that run on it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from marless.app.cli.stack import SERVICES, LocalStack, StackOptions
from marless.app.cli.supervision import RestartLimits
from marless.jobs import spec as specs
from marless.jobs.record import RoundRecord, from_json
from marless.rpc.client import Peer
from marless.rpc.concurrency import retry
from marless.rpc.security import Security
from marless.rpc.v1 import coordinator_pb2
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from tests.faults.pools import DOCUMENT

WITNESS = Path(__file__).parent / "witness"
WITNESSES = {"ippo": "witnessed", "vdn": "remembering"}
CHECKPOINT_EVERY = 5
POLL_S = 0.005
SUBMIT_S = 60.0
LEASE_S = 2.0
GIVE_UP_S = 60.0
"""Longest wait for a sign of life before a scenario is given up; the figures that count are measured."""
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


async def until(reached: Callable[[], bool], otherwise: str, *, within_s: float = GIVE_UP_S) -> None:
    """Wait for something that other processes do; raises AssertionError with that sentence if it does not come."""
    give_up_s = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < give_up_s, f"{otherwise} ({within_s:g} s)"
        await asyncio.sleep(POLL_S)


def data_of(place: Path) -> Path:
    """Where the store of a rig in this place keeps its data."""
    return place / "store"


def spec_of(rounds: int, small: Mapping[str, Any]) -> str:  # Any: YAML
    """A small job as it is submitted, if possible with an algorithm that notes every update.

    Only services know the policies.
    """
    checkpoint = {"every": CHECKPOINT_EVERY, "keep": 2}
    document = {**small, "stop": {**small["stop"], "rounds": rounds}, "checkpoint": checkpoint}
    policies = {section: document.pop(section) for section in ("scaling", "sharing") if section in document}
    spec = json.loads(specs.parse(document, "small").to_json())
    spec["algorithm"]["name"] = WITNESSES.get(spec["algorithm"]["name"], spec["algorithm"]["name"])
    return json.dumps(spec | policies)


@dataclass(frozen=True)
class Rig:
    """What scenarios do their worst to, one after another."""

    stack: LocalStack
    place: Path
    document: Mapping[str, Any] = field(default_factory=lambda: DOCUMENT)  # Any: YAML
    """The job that `submit` has run."""

    async def submit(self, name: str, rounds: int) -> Disturbed:
        """Have its job run; the request is repeated until there is an answer."""
        name = f"{self.document['name']}-{name}"
        self.trainings_path.write_text("")
        peer = Peer(self.stack.coordinator, Security())
        stub = CoordinatorServiceStub(peer.channel)
        request = coordinator_pb2.SubmitJobRequest(
            job=name, spec_json=spec_of(rounds, self.document), request_id="once"
        )
        try:
            await retry(lambda: peer.call(stub.SubmitJob, request, timeout_s=10.0), patience_s=SUBMIT_S)
        finally:
            await peer.close()
        return Disturbed(self, name)

    @property
    def trainings_path(self) -> Path:
        """Where learner workers note what they train."""
        return self.place / "trainings"

    @property
    def _hold_path(self) -> Path:
        return self.place / "hold"

    def hold(self, training: int) -> None:
        """Have the training of this number, counted from 1, and later ones take until `release`."""
        new = self._hold_path.with_suffix(".new")
        new.write_text(f"{training}")
        new.replace(self._hold_path)

    def release(self) -> None:
        """Let trainings go on; twice is safe."""
        self._hold_path.unlink(missing_ok=True)

    def log(self, name: str) -> str:
        """What a service has logged."""
        return (self.place / "logs" / f"{name}.log").read_text()

    def processes(self, service: str) -> list[psutil.Process]:
        """The process of a service; none while it is being started again."""
        with suppress(psutil.NoSuchProcess):
            return [psutil.Process(self.stack.pid(service))]
        return []

    def workers(self, pool: str) -> list[psutil.Process]:
        """The living workers of a pool."""
        module, found = f"marless.services.{pool}.worker", []
        for process in self.processes(pool):
            with suppress(psutil.NoSuchProcess):
                found += [child for child in process.children(recursive=True) if module in child.cmdline()]
        return found

    def redis(self) -> list[psutil.Process]:
        """The Redis of this rig, whoever its parent is by now."""
        home = str(data_of(self.place) / "redis")
        return [process for process in psutil.process_iter(["name"]) if _serves(process, home)]

    async def restart(self, service: str, **environment: str) -> None:
        """Kill a service; returns once the next one has been started, with these variables."""
        before = self.stack.restarts[service]
        self.stack.prepare(service, **environment)
        for process in self.processes(service):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await until(lambda: self.stack.restarts[service] > before, f"{service} was not started again")


def _serves(process: psutil.Process, home: str) -> bool:
    if not (process.info["name"] or "").startswith(("redis-server", "valkey-server")):
        return False
    try:
        return process.cwd() == home
    except psutil.Error:
        return False


@asynccontextmanager
async def running_rig(place: Path, of_service: Mapping[str, Mapping[str, str]] | None = None) -> AsyncIterator[Rig]:
    """Start a stack, with these variables for single services."""
    (place / "spool").mkdir(parents=True)
    common = {
        "PYTHONPATH": str(WITNESS),
        "TRAININGS": str(place / "trainings"),
        "MARLESS_SPOOL": str(place / "spool"),
        "MARLESS_ACTOR_WORKERS": "2",
        "MARLESS_LEARNER_THREADS": "1",
        "MARLESS_LEASE_S": f"{LEASE_S}",
        "OMP_NUM_THREADS": "1",
    }
    own = of_service or {}
    options = StackOptions(
        environment={name: {**common, **own.get(name, {})} for name in SERVICES},
        restarts=RestartLimits(deaths=10**6, unserved=10**6),
    )
    stack = LocalStack(runs=place / "runs", logs=place / "logs", data=data_of(place), options=options)
    async with stack:
        yield Rig(stack, place)


@dataclass
class Disturbed:
    """A job on a rig."""

    rig: Rig
    name: str
    _records: list[RoundRecord] = field(default_factory=list)
    _file: IO[bytes] | None = None
    """rounds.jsonl, held open: its inode is given to no other file meanwhile."""
    _offset: int = 0

    @property
    def folder(self) -> Path:
        """Its run folder."""
        return self.rig.place / "runs" / self.name

    def records(self) -> list[RoundRecord]:
        """What is recorded; read on from where the last call ended, unless the file has been replaced or cut."""
        path = self.folder / "rounds.jsonl"
        if not path.exists():
            return []
        status = path.stat()
        if self._file is None or os.fstat(self._file.fileno()).st_ino != status.st_ino or status.st_size < self._offset:
            self._records, self._file, self._offset = [], path.open("rb"), 0
        self._file.seek(self._offset)
        for line in self._file:
            if not line.endswith(b"\n"):
                break  # it is being written: what a further read would give begins in mid-line
            self._records.append(from_json(line.decode()))
            self._offset += len(line)
        return self._records

    def status(self) -> Mapping[str, Any]:  # Any: JSON
        """The content of job.json."""
        return json.loads((self.folder / "job.json").read_text())

    def trainings(self) -> Counter[int]:
        """How often each round was trained, if this is the newest job of its rig."""
        return Counter(map(int, self.rig.trainings_path.read_text().split()))

    async def rounds(self, more: int) -> None:
        """Wait for so many more rounds; raises AssertionError if the job ends before."""
        enough = len(self.records()) + more
        await self.until(lambda: len(self.records()) >= enough)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for something that happens while the job runs; raises AssertionError if the job ends before."""
        await until(lambda: reached() or self.over(), f"{self.name} is stuck: {self.status()['reason']}")
        assert reached(), f"{self.name} has ended too soon: {self.status()['reason']}"

    async def recorded_after(self, since_s: float) -> float:
        """When the first record after this moment was written, Unix time; or now, if the job has ended without one."""
        await until(
            lambda: any(record.ended_s > since_s for record in self.records()[-1:]) or self.over(),
            f"{self.name} does not go on: {self.status()['reason']}",
        )
        return next((record.ended_s for record in self.records() if record.ended_s > since_s), time.time())

    def over(self) -> bool:
        """True once it has ended."""
        return self.status()["state"] in ENDED

    async def succeeded(self, *, within_s: float = 2 * GIVE_UP_S) -> None:
        """Wait for its end, which must be a good one."""
        await until(self.over, f"{self.name} does not end: {self.status()['reason']}", within_s=within_s)
        assert self.status()["state"] == "SUCCEEDED", self.status()["reason"]
