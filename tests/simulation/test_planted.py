"""The simulation finds bugs that are planted into the system, and nothing in the same seeds without them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from marless.fleet.attendance import Attendance
from marless.rpc import idempotency
from services.coordinator.state.run_folder import RunFolder
from services.learner_pool import trajectory_buffer
from services.param_store import store
from tests.simulation.run import PLANS, plan_of, simulate, undisturbed

Plant = Callable[[pytest.MonkeyPatch], None]


def _in_publish(correct: str, wrong: str) -> Plant:
    def plant(patched: pytest.MonkeyPatch) -> None:
        assert store._PUBLISH.count(correct) == 1
        patched.setattr(store, "_PUBLISH", store._PUBLISH.replace(correct, wrong))

    return plant


def _repeated_writes_are_new(patched: pytest.MonkeyPatch) -> None:
    """An update that is repeated publishes under another key than the first time."""
    request_id, serial = idempotency.request_id, itertools.count()
    patched.setattr(idempotency, "request_id", lambda *given: f"{request_id(*given)}/{next(serial)}")


def _departures_wake_nobody(patched: pytest.MonkeyPatch) -> None:
    leave = Attendance.leave

    def silent(attendance: Attendance, name: str, worker: object) -> None:
        waiting = dict(attendance._departures)
        attendance._departures.clear()
        leave(attendance, name, worker)
        attendance._departures.update(waiting)

    patched.setattr(Attendance, "leave", silent)


def _pending_is_not_written(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(RunFolder, "write_pending", lambda folder, pending: None)


def _uploads_are_never_there(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(trajectory_buffer, "_is_there", lambda known, header: False)


@pytest.mark.parametrize(
    ("plant", "seeds", "problem"),
    [
        (_pending_is_not_written, 4, "before its rollout was written"),
        (_departures_wake_nobody, 16, ""),
        (_uploads_are_never_there, 16, "was accepted twice"),
        (_in_publish("redis.call('HGET', requests, req_id)", "false"), 16, "this write expects"),
        (_repeated_writes_are_new, 24, "this write expects"),
        (_in_publish("if epoch < newest then", "if epoch < newest - 1 then"), 60, "has begun"),
    ],
    ids=["pending", "lost wake-up", "upload's key", "publish's key", "published anew", "fence"],
)
def test_a_planted_bug_is_found(plant: Plant, seeds: int, problem: str) -> None:
    for plan in PLANS:
        undisturbed(plan)  # made without the bug
    with pytest.MonkeyPatch.context() as patched:
        plant(patched)
        found = next((seed, got) for seed in range(seeds) if (got := simulate(seed, plan_of(seed)).problems))
    seed, problems = found
    assert any(problem in each for each in problems), problems
    assert all(not simulate(each, plan_of(each)).problems for each in range(max(0, seed - 2), seed + 1))
