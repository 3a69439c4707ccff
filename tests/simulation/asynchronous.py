"""What must hold in every state of a simulated asynchronous job, and what must have come of it in the end.

The order of events differs from seed to seed, and with it the weights. So there is no run to compare with: the job is
computed once more from its records, in one process, and must have come to the same weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from marless.core.state import PolicyState
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.events import read
from marless.jobs.schedules.overlapping import makes_versions
from marless.learning.data.trajectory import Trajectory
from marless.rpc.gradients import learner_of
from marless.services.param_store import store as stores
from tests.integration.one_process_asynchronous import Asynchronous, check_counts, check_same_weights
from tests.simulation.canned import Canned
from tests.simulation.checks import Checks, Reference
from tests.simulation.system import System


class CannedAsynchronous(Asynchronous):
    """A recorded job by plain function calls, with what the workers of a simulation compute."""

    def _play(self, rollout: int, clock: int) -> Trajectory:
        acting: Mapping[str, PolicyState] = self.states[clock]
        task = SimpleNamespace(settings=SimpleNamespace(seed=self._job.spec.seed), round=rollout, index=0)
        of_agent = {agent: acting[group.start] for group in self._groups[clock] for agent in group.agents}
        return Canned(self._job).act(task, of_agent)[0]


class AsynchronousChecks(Checks):
    """Follows one simulation of an asynchronous job."""

    def __init__(self, system: System, found: Callable[[str], None]) -> None:
        super().__init__(system, Reference(), found)
        self._job = system.job
        self._applied: set[int] = set()
        """The learners whose gradients are part of a version that the store has had."""
        self._used = self._used_before = 0
        """The newest epochs under which versions were made: now, and before the store lost everything."""

    def wiped(self) -> None:
        super().wiped()
        self._applied.clear()
        self._used_before = self._used

    def evaluated(self, script: bytes, keys: list[bytes], arguments: list[bytes], answer: Any) -> None:
        super().evaluated(script, keys, arguments, answer)
        if script == stores._ADVANCE.encode() and answer[0] == b"published":
            self._advanced(keys, arguments, answer)
        if not self._heads:  # the job is deleted
            self._applied.clear()

    def _advanced(self, keys: list[bytes], arguments: list[bytes], answer: Any) -> None:
        """Gradients have become versions, or had become them before."""
        at = 5 + 3 * (len(keys) - 3)
        policies, removed = [each.decode() for each in arguments[5:at:3]], arguments[at:]
        applied = [each.decode() for each in removed[: 2 * int(arguments[4]) : 2]]
        if all(version <= self._heads.get(name, 0) for name, version in zip(policies, answer[1:], strict=True)):
            return
        self._is_in_order(int(arguments[1]), policies, answer[1:])
        for learner in {learner_of(name) for name in applied}:
            if learner in self._applied:
                self._found(f"the gradient of learner {learner} was applied twice")
            self._applied.add(learner)
        discarded = [each.decode() for each in removed[2 * int(arguments[4]) :]]
        for name in (*applied, *discarded):
            self._heads.pop(name, None)
            if name.encode() in self._redis._data[keys[1]]:
                self._found(f"{name} is done with, and it is still in the store")

    def _is_in_order(self, epoch: int, policies: list[str], versions: list[int]) -> None:
        if epoch < self._epoch:
            self._found(f"epoch {epoch} has aggregated, and epoch {self._epoch} has begun")
        if epoch <= self._used_before:
            self._found(f"epoch {epoch} has aggregated again, after the store had lost everything")
        self._epoch, self._used = max(self._epoch, epoch), max(self._used, epoch)
        for name, version in zip(policies, versions, strict=True):
            if version != self._heads.get(name, 0) + 1:
                self._found(f"{name} went from version {self._heads.get(name, 0)} to {version}")
            self._heads[name] = version

    def _is_the_same(self, policy: str, version: int, key: bytes) -> None:
        """The order of events decides what weights are, and there is no run to compare them with.

        A gradient may come back after it was applied, if its publish arrives twice: it is never applied again, and
        stays until the job ends or another coordinator takes it over.
        """

    def _has_content(self, round_: int, actor: int, crc32: int) -> None:
        """The versions that act in a rollout depend on the order of events."""

    def _comes_to_the_same(self) -> None:
        records = self._records()
        learned = Counter(r for record in records for g in _made_of(record) for r in g.rollouts)
        if again := [rollout for rollout, times in learned.items() if times > 1]:
            self._found(f"rollouts {again} were learned from more than once")
        try:
            check_same_weights(self._folder, CannedAsynchronous(self._job))
            check_counts(self._job, records)
        except AssertionError as error:
            self._found(f"the job has come to something else than its records: {error!r}")

    def _bills_all(self, record: RoundRecord) -> None:
        assert record.aggregation is not None
        happened = Counter(each.kind for each in read(record.aggregation.arrivals))
        billed = Counter(function for function, _ in {(each.function, each.id) for each in record.invocations})
        wanted = {
            "actor": happened["rollout"],
            "policy": happened["gradient"] * len(record.groups),
            "parameter": 0 if makes_versions(self._job.spec.algorithm) else 1,
        }
        for function, times in wanted.items():
            if billed[function] != times:
                self._found(
                    f"the record of round {record.round} bills {billed[function]} of function {function}, not {times}"
                )


def _made_of(record: RoundRecord) -> Any:
    assert record.aggregation is not None
    return record.aggregation.gradients
