"""What remains of attempts at a task whose workers were lost: their invocations, and the errors of a task given up."""

from __future__ import annotations

from marless.core.errors import UnavailableError
from marless.core.stopwatch import Stopwatch
from marless.fleet.attached import Worker
from marless.rpc.v1 import common_pb2

MAX_ATTEMPTS = 8
"""Workers that a task may lose before it fails. If one attempt in a hundred is lost, as on spot machines, a job of
1,000 actors and 10,000 rounds ends by it with a probability of 10^7 · 0.01^8 = 10^-9."""
MAX_TIMEOUTS = 2
"""Workers on which a task may exceed its time limit before it fails. The first one may have been paused or hung, so the
task is retried elsewhere; if that also takes too long, the task itself is too slow."""


def too_slow(task: str, timeout_s: float, setting: str) -> UnavailableError:
    """The error of a task that exceeded its time limit on too many workers."""
    return UnavailableError(
        f"task {task} took longer than {setting} = {timeout_s:g} s on each of {MAX_TIMEOUTS} workers, and would again; "
        f"raise {setting}, or have it do less"
    )


def given_up(task: str, died: int, hung: int) -> UnavailableError:
    """The error of a task that has lost too many workers."""
    ways = " and ".join(f"{count} {how}" for count, how in ((died, "died"), (hung, "hung")) if count)
    return UnavailableError(
        f"task {task}: of {died + hung} workers that ran it, {ways}; the pool's log says how each ended"
    )


def lost(task: str, attempt: int, worker: Worker, started: Stopwatch, waited_s: float) -> common_pb2.Invocation:
    """The invocation of an attempt whose worker was lost: billed until now, with unknown CPU time."""
    cold = worker.invocations <= 1
    return common_pb2.Invocation(
        id=task,
        attempt=attempt,
        worker=worker.hello.worker,
        machine=worker.presence.machine.id,
        queued_s=started.started_s - waited_s,
        start_s=started.started_s,
        end_s=started.now_s,
        cold=cold,
        init_s=worker.init_s if cold else 0.0,
        ready_s=worker.ready_s if cold else 0.0,
    )
