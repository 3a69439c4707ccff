"""What must hold in every state of a simulated system, and what must have come of it in the end.

The reference is a run of the same job that nothing befell. As jobs are deterministic, every version, carry, trajectory
and record of a disturbed run must be that of the reference.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from marless.cost.billing.ledger import Ledger
from marless.cost.pricing import usd
from marless.jobs import prices
from marless.jobs.record import RoundRecord
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.learner_pool.trajectory_buffer import TrajectoryFile
from marless.services.param_store import store as stores
from marless.storage.round_file import read
from tests.integration.running import outcome
from tests.simulation.system import JOB, System

CONTENT = (b"acting:0", b"learning:0", b"carry:0")
"""Fields of a version that follow from the job alone; its report holds times."""


@dataclass
class Reference:
    """What an undisturbed run comes to."""

    versions: dict[tuple[str, int, bytes], str] = field(default_factory=dict)
    """Digests of the parts of policies and carries, by name, version and part."""
    trajectories: dict[tuple[int, int], int] = field(default_factory=dict)
    """Checksums by (round, actor)."""
    outcome: Any = None
    """Records, digests of the last checkpoint, and evaluations."""


class Checks:
    """Follows one simulation. Without a reference, it makes one."""

    def __init__(self, system: System, reference: Reference | None, found: Callable[[str], None]) -> None:
        self._folder = RunFolder(system.runs / JOB)
        self._spec = system.job.spec
        self._redis = system.redis
        self._reference = reference or Reference()
        self._makes = reference is None
        self._found = found
        self._epoch = 0
        self._given: dict[bytes, int] = {}
        """Epochs by the requests for them."""
        self._heads: dict[str, int] = {}
        system.redis.evaluated, system.wiped = self.evaluated, self.wiped

    # The store

    def wiped(self) -> None:
        """The store has lost everything; it counts epochs from 1 again."""
        self._epoch = 0
        self._heads.clear()

    def evaluated(self, script: bytes, keys: list[bytes], arguments: list[bytes], answer: Any) -> None:
        """A script of the store has run."""
        if script == stores._PUBLISH.encode():
            self._published(arguments, answer)
        elif script == stores._ACQUIRE_EPOCH.encode():
            if answer < self._epoch and self._given.get(arguments[0]) != answer:  # else a late repetition
                self._found(f"epoch {answer} was given after epoch {self._epoch}")
            self._given[arguments[0]] = answer
            self._epoch = max(self._epoch, answer)
        elif script == stores._DELETE_JOB.encode() and answer == 0:
            if 0 < int(arguments[2]) < self._epoch:  # a late repetition, which has deleted nothing
                if self._heads:
                    self._found(f"epoch {int(arguments[2])} deletes the job, and epoch {self._epoch} has begun")
                return
            self._heads.clear()
            self._epoch += 1 if self._epoch else 0

    def _published(self, arguments: list[bytes], answer: Any) -> None:
        prefix, policy, epoch = arguments[0], arguments[1].decode(), arguments[4]
        if answer[0] != b"published" or answer[1] <= self._heads.get(policy, 0):  # refused, or a repeated request
            return
        version, before = answer[1], self._heads.get(policy, 0)
        if before and version != before + 1:
            self._found(f"{policy} went from version {before} to {version}")
        if int(epoch) < self._epoch:
            self._found(f"epoch {int(epoch)} has published {policy}@{version}, and epoch {self._epoch} has begun")
        self._epoch, self._heads[policy] = max(self._epoch, int(epoch)), version
        self._is_the_same(policy, version, prefix + f"{version}:{policy}".encode())

    def _is_the_same(self, policy: str, version: int, key: bytes) -> None:
        stored = self._redis._data[key]
        for part in CONTENT:
            if part in stored:  # a version that only acts is restored without its other part
                digest = hashlib.sha256(stored[part]).hexdigest()
                what = f"{part.decode()} of {policy}@{version} is"
                self._equal(self._reference.versions, (policy, version, part), digest, what)

    def _equal(self, known: dict[Any, Any], key: Any, value: Any, what: str) -> None:
        if self._makes:
            known.setdefault(key, value)
        if known.get(key) != value:
            self._found(f"{what} {value}; undisturbed, it is {known.get(key)}")

    # The pools

    def stored(self, before: TrajectoryFile | None, file: TrajectoryFile) -> None:
        """The learner pool accepts a trajectory; it holds another one of this actor and round already, or None."""
        round_, actor, crc32 = file.header.round, file.header.index, file.header.crc32
        if before and before.header.crc32 == crc32:
            self._found(f"the trajectory of actor {actor}, round {round_} was accepted twice")
        self._has_content(round_, actor, crc32)

    def _has_content(self, round_: int, actor: int, crc32: int) -> None:
        what = f"the trajectory of actor {actor}, round {round_} has checksum"
        self._equal(self._reference.trajectories, (round_, actor), crc32, what)

    def requested(self, round_: int, epoch: int) -> None:
        """A coordinator has requested the update of a round: that its rollout is done must be on the disk."""
        if epoch < self._epoch or round_ < len(self._records()):
            return  # a coordinator that has been replaced, or a late request
        pending = self._folder.path / "pending.json"
        lines = pending.read_text().splitlines() if pending.exists() else []
        if round_ not in [json.loads(line)["round"] for line in lines if line.endswith("}")]:
            self._found(f"the update of round {round_} was requested before its rollout was written to pending.json")

    # The run folder

    def passed(self, failpoint: str) -> None:
        """A process has passed a failpoint."""
        if failpoint in ("coordinator.record.after", "coordinator.take_over.after", "coordinator.cut.after"):
            self._records()

    def _records(self) -> list[RoundRecord]:
        records = list(read(self._folder.rounds_path))
        if [record.round for record in records] != list(range(len(records))):
            self._found(f"rounds.jsonl holds rounds {[record.round for record in records]}")
        for record in records:
            done = Counter((each.id, each.attempt) for each in record.invocations if each.function == "actor")
            if doubled := [each for each, count in done.items() if count > 1]:
                self._found(f"the record of round {record.round} bills {doubled} twice")
        return records

    # The end

    def ended(self, state: str, reason: str) -> Reference:
        """The job has ended."""
        if (state, reason) != ("SUCCEEDED", f"{self._spec.stop.rounds} rounds done"):
            self._found(f"the job ended {state}: {reason}")
            return self._reference
        self._comes_to_the_same()
        self._bills()
        return self._reference

    def _comes_to_the_same(self) -> None:
        came_to = outcome(self._folder)
        if self._makes:
            self._reference.outcome = came_to
        for what, ours, theirs in zip(
            ("records", "weights", "evaluations"), came_to, self._reference.outcome, strict=True
        ):
            if ours != theirs:
                self._found(f"the job's {what} are {ours}; undisturbed, they are {theirs}")

    def _bills(self) -> None:
        ledger, picos = Ledger(self._spec, prices.merged(self._spec.bill.prices)), 0
        for record in self._records():
            picos += ledger.add(record).picos(self._spec.bill.accounting)
            self._bills_all(record)
        summary = json.loads(self._folder.read_status().summary_json)
        if summary["cost_usd"] != usd(picos):
            self._found(f"the summary's cost is {summary['cost_usd']}, that of all invocations {usd(picos)}")

    def _bills_all(self, record: RoundRecord) -> None:
        actors = sorted({each.index for each in record.invocations if each.function == "actor" and each.vcpu_s})
        if actors != list(range(record.actors)):
            self._found(f"the record of round {record.round} bills the actors {actors}")
