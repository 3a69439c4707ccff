"""Dispatcher, fleet and session over a real gRPC server: workers that die, hang, err, come late or never come."""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from types import SimpleNamespace

import grpc
import pytest
from structlog.testing import capture_logs

from marless.core.errors import (
    InternalError,
    NotFoundError,
    OverloadedError,
    SpecError,
    UnauthenticatedError,
    UnavailableError,
)
from marless.fleet import dispatch, session
from marless.fleet.dispatch import Dispatcher
from marless.fleet.fleet import Fleet
from marless.fleet.handover import Handover, Tickets, new_ticket
from marless.fleet.launchers.base import ACCEPTED, Launch, LaunchOrder, LaunchOutcome
from marless.fleet.session import CANCELLED_S, DETAIL_BYTES, OVERDUE_S, work
from marless.fleet.worker_process import Watchdog, WorkerOptions
from marless.rpc.client import Peer
from marless.rpc.concurrency import stoppable, to_the_end
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.rpc.v1 import actor_pool_pb2, common_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub, add_ActorPoolServiceServicer_to_server
from marless.services.actor_pool.servicer import ActorPoolServicer
from marless.services.relay.__main__ import build as build_relay
from marless.services.relay.__main__ import parse as parse_relay

PATIENCE_S = 30.0
LONG_S = 600.0


class Bench:
    """What tasks do: "fast" answers at once, "slow" waits for `go`, others raise. Remembers who ran what."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.ran: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        self.released = threading.Event()
        self.started = asyncio.Condition()

    async def handle(self, worker: str, payload: bytes) -> bytes:
        what = payload.decode()
        self.ran.append((worker, what))
        async with self.started:
            self.started.notify_all()
        if what.startswith("slow"):
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled.append(what)
                raise
        if what == "stubborn":
            await to_the_end(self.released.wait, PATIENCE_S)
        if what == "bad":
            raise NotFoundError("policy 'p' has no version 7")
        if what == "defect":
            raise ZeroDivisionError("1/0")
        if what == "deep":
            down(300)
        if what == "exit":
            await stoppable(lambda _: sys.exit(3))
        if what == "long":
            raise OSError("x\n" * 2_500_000)  # as much as no message takes
        if what == "mute":
            raise MuteError
        return f"{what} by {worker}".encode()

    async def until_started(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.started:
            await self.started.wait_for(lambda: len(self.ran) >= count)


class MuteError(Exception):
    """Cannot even say what is wrong."""

    def __str__(self) -> str:
        raise ValueError


def down(depth: int) -> None:
    """Fail at the bottom of a long traceback, in which no line follows itself; `depth` is even."""
    if depth:
        up(depth - 1)
    raise ZeroDivisionError("1/0 at the bottom of φ")


def up(depth: int) -> None:
    down(depth - 1)


class Noted(Watchdog):
    """Ends nothing; notes its limits in seconds, and None for none."""

    def __init__(self) -> None:
        super().__init__()
        self.limits_s: list[float | None] = []

    def arm(self, limit_s: float) -> None:
        self.limits_s.append(limit_s)

    def disarm(self) -> None:
        self.limits_s.append(None)


class Pool:
    """A dispatcher behind a real server, and workers in this process that dial it."""

    def __init__(self, address: str, dispatcher: Dispatcher) -> None:
        self.address = address
        self.dispatcher = dispatcher
        self.bench = Bench()
        self.watchdog = Noted()
        self.tasks: list[asyncio.Task[None]] = []
        self.tickets: dict[str, str] = {}

    def start(self, name: str, ticket: str = "") -> asyncio.Task[None]:
        """A worker with the ticket of its name, or with another one."""
        self.tickets[name] = ticket or self.tickets.get(name) or new_ticket()
        task = asyncio.create_task(self._work(name, self.tickets[name]))
        self.tasks.append(task)
        return task

    async def connect(self, *names: str) -> list[asyncio.Task[None]]:
        tasks = [self.start(name) for name in names]
        async with asyncio.timeout(PATIENCE_S):
            await self.dispatcher.connected.present(list(names))
        return tasks

    async def run(
        self, what: str, timeout_s: float = LONG_S, affinity: str = "", job: str = "job"
    ) -> common_pb2.TaskResult:
        return await self.dispatcher.run(
            f"{job}/{what}", what.encode, timeout_s=timeout_s, setting="field.s", affinity=affinity
        )

    def submit(self, what: str, timeout_s: float = LONG_S, job: str = "job") -> asyncio.Task[common_pb2.TaskResult]:
        return asyncio.create_task(self.run(what, timeout_s, job=job))

    async def gone(self, name: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.dispatcher.connected.absent(name)

    async def _work(self, name: str, ticket: str) -> None:
        peer = Peer(self.address, Security())
        given = {"launched": False, "handover": Handover(ticket), "watchdog": self.watchdog}
        options = WorkerOptions(name, self.address, "", Security(), **given)
        try:
            await work(options, peer, ActorPoolServiceStub(peer.channel).Work, partial(self.bench.handle, name))
        finally:
            await peer.close()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@asynccontextmanager
async def pool_at(address: str, dispatcher: Dispatcher, most: int = 100) -> AsyncIterator[Pool]:
    @asynccontextmanager
    async def build(_address: str) -> AsyncIterator[ServedService]:
        servicer = ActorPoolServicer(None, dispatcher, SimpleNamespace(most_streams=lambda: most))
        yield ServedService(partial(add_ActorPoolServiceServicer_to_server, servicer), drain=servicer.end_relays)

    async with serving(ServerOptions(address, Security()), build) as bound:
        pool = Pool(bound, dispatcher)
        yield pool
        await pool.close()


@asynccontextmanager
async def relayed(pool: Pool, address: str) -> AsyncIterator[None]:
    """While the context lasts, the pool's workers dial a relay of it."""
    options = parse_relay(["--listen", address, "--actor-pool", pool.address, "--learner-pool", pool.address])
    async with serving(options.server, partial(build_relay, options)) as bound:
        pool.address, direct = bound, pool.address
        yield
        pool.address = direct


@pytest.fixture(params=["dialled", "relayed"])
async def pool(request, tmp_path) -> AsyncIterator[Pool]:
    async with (
        pool_at(f"unix:{tmp_path}/pool.sock", Dispatcher(queue_limit=2, tickets=Tickets(others=True))) as pool,
        relayed(pool, f"unix:{tmp_path}/relay.sock") if request.param == "relayed" else nullcontext(),
    ):
        yield pool


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(20):
        await asyncio.sleep(0)


# One dispatcher


async def test_a_task_runs_and_is_recorded(pool):
    await pool.connect("w")
    first, second = await pool.run("fast"), await pool.run("fast")
    record = first.invocation
    assert first.payload == b"fast by w"
    assert (record.id, record.attempt, record.worker) == ("job/fast", 1, "w")
    assert 0 < record.queued_s <= record.start_s <= record.end_s
    assert record.vcpu_s >= 0
    assert 10 * 2**20 < record.memory_bytes < 2**40
    assert [first.invocation.cold, second.invocation.cold] == [True, False]
    assert first.invocation.init_cpu_s > 0 == second.invocation.init_cpu_s
    [info] = pool.dispatcher.workers()
    assert (info.worker, info.busy, info.invocations) == ("w", False, 2)
    assert info.pid > 0


async def test_waiting_tasks_run_in_the_order_they_came(pool):
    waiting = [pool.submit("fast-1"), pool.submit("fast-2")]
    await settle()
    assert (pool.dispatcher.queued, pool.dispatcher.busy) == (2, True)
    await pool.connect("w")
    await asyncio.gather(*waiting)
    assert [what for _, what in pool.bench.ran] == ["fast-1", "fast-2"]
    assert (pool.dispatcher.queued, pool.dispatcher.busy) == (0, False)


async def test_a_worker_runs_one_task_at_a_time(pool):
    await pool.connect("w")
    slow, fast = pool.submit("slow"), pool.submit("fast")
    await pool.bench.until_started(1)
    await settle()
    assert pool.bench.ran == [("w", "slow")]
    pool.bench.go.set()
    await asyncio.gather(slow, fast)


async def test_a_task_prefers_the_worker_that_knows_its_affinity(pool):
    await pool.connect("a", "b")
    first = {name: (await pool.run("fast", affinity=name)).invocation.worker for name in "xy"}
    assert sorted(first.values()) == ["a", "b"]
    for name in "yxxyyx":
        assert (await pool.run("fast", affinity=name)).invocation.worker == first[name]


async def test_a_full_queue_refuses_for_now(pool):
    waiting = [pool.submit("fast"), pool.submit("fast")]
    await settle()
    with pytest.raises(OverloadedError, match=r"^no room in the pool's queue: 2 tasks wait"):
        await pool.run("fast")
    waiting[0].cancel()
    await settle()
    assert pool.dispatcher.queued == 1
    waiting.append(pool.submit("fast"))  # the place of the one that was given up is free again
    await pool.connect("w")
    assert len(await asyncio.gather(*waiting[1:])) == 2


async def test_a_domain_error_arrives_as_itself_and_a_defect_as_an_internal_error(pool):
    await pool.connect("w")
    with pytest.raises(NotFoundError, match=r"^policy 'p' has no version 7$"):
        await pool.run("bad")
    with pytest.raises(InternalError, match=r"^ZeroDivisionError: 1/0 \(in w\)$"):
        await pool.run("defect")
    assert (await pool.run("fast")).invocation.worker == "w"  # neither ended the worker


@pytest.mark.parametrize("what", ["exit", "long", "mute"])
async def test_whatever_a_task_raises_is_a_failed_task_in_one_short_line(pool, what):
    await pool.connect("w")
    with pytest.raises(InternalError, match=r"^(the code .* process: SystemExit: 3|OSError: x x .*…|Mute) ?") as caught:
        await pool.run(what)
    assert len(str(caught.value)) < 600
    assert (await pool.run("fast")).invocation.worker == "w"  # neither ended the worker


async def test_the_end_of_a_traceback_travels_with_a_defect(pool):
    await pool.connect("w")
    with pytest.raises(InternalError) as caught:
        await pool.run("defect")
    assert caught.value.detail.startswith("Traceback (most recent call last):\n")
    assert caught.value.detail.endswith("\nZeroDivisionError: 1/0")
    with pytest.raises(InternalError) as caught:
        await pool.run("deep")
    assert 4000 < len(caught.value.detail.encode()) <= DETAIL_BYTES
    assert caught.value.detail.endswith("\nZeroDivisionError: 1/0 at the bottom of φ")
    with pytest.raises(NotFoundError) as caught:
        await pool.run("bad")
    assert caught.value.detail == ""


async def test_jobs_that_wait_take_turns_and_a_task_that_lost_its_worker_goes_first(tmp_path):
    """50 actors of one job do not starve the two of another."""
    async with pool_at(f"unix:{tmp_path}/pool.sock", Dispatcher(tickets=Tickets(others=True))) as pool:
        [doomed] = await pool.connect("a")
        tasks = [pool.submit("slow", job="big")]
        await pool.bench.until_started(1)
        tasks += [pool.submit(f"big-{index}", job="big") for index in range(50)]
        tasks += [pool.submit(f"small-{index}", job="small") for index in range(2)]
        await settle()
        doomed.cancel()
        await pool.gone("a")
        pool.bench.go.set()
        await settle()
        await pool.connect("b")
        await asyncio.gather(*tasks)
        ran = [what for _, what in pool.bench.ran[1:]]
    assert ran[:5] == ["slow", "small-0", "big-0", "small-1", "big-1"]
    assert ran[5:] == [f"big-{index}" for index in range(2, 50)]


async def test_a_task_whose_worker_dies_runs_elsewhere_with_the_next_attempt(pool):
    [doomed] = await pool.connect("a")
    running = pool.submit("slow")
    await pool.bench.until_started(1)
    doomed.cancel()
    await pool.gone("a")
    pool.bench.go.set()
    await pool.connect("b")
    result = await running
    assert (result.invocation.worker, result.invocation.attempt) == ("b", 2)
    assert result.invocation.id == "job/slow"
    [lost] = result.lost  # it ran, and is paid for, until its worker died
    assert (lost.id, lost.worker, lost.attempt, lost.cold) == ("job/slow", "a", 1, True)
    assert lost.queued_s <= lost.start_s <= lost.end_s <= result.invocation.end_s


async def test_a_task_that_loses_a_worker_in_each_attempt_is_given_up(pool):
    running = pool.submit("slow")
    for attempt, name in enumerate("abcdefgh", start=1):
        [doomed] = await pool.connect(name)
        await pool.bench.until_started(attempt)
        doomed.cancel()
        await pool.gone(name)
    with pytest.raises(UnavailableError, match="task job/slow: of 8 workers that ran it, 8 died; the pool's log"):
        await running


async def test_a_hung_worker_is_dropped_and_its_task_runs_elsewhere(pool):
    await pool.connect("hung")
    running = pool.submit("slow", timeout_s=0.5)
    await pool.gone("hung")
    pool.bench.go.set()
    await pool.connect("b")
    result = await running
    assert (result.invocation.worker, result.invocation.attempt) == ("b", 2)


async def test_a_task_that_two_workers_had_no_time_for_is_too_slow_and_says_which_setting_it_is(pool):
    await pool.connect("a")
    await pool.connect("b")
    await pool.connect("c")
    with pytest.raises(UnavailableError, match=r"job/slow took longer than field.s = 0.05 s on each of 2 workers"):
        await pool.submit("slow", timeout_s=0.05)
    await pool.gone("b")
    assert [worker.worker for worker in pool.dispatcher.workers()] == ["c"]


async def test_a_worker_that_is_gone_when_its_turn_comes_costs_one_attempt_not_the_task(pool):
    async def broken(message: common_pb2.PoolMessage) -> None:
        raise grpc.aio.UsageError("RPC already finished.")

    hello = common_pb2.WorkerMessage(hello=common_pb2.WorkerHello(worker="ghost", ticket="its own"))
    forever = asyncio.Event()

    async def messages() -> AsyncIterator[common_pb2.WorkerMessage]:
        yield hello
        await forever.wait()

    ghost = asyncio.create_task(pool.dispatcher.attach(messages(), broken))
    await pool.dispatcher.connected.present(["ghost"])
    running = pool.submit("fast")
    await ghost  # given up
    await pool.connect("w")
    result = await running
    assert (result.invocation.worker, result.invocation.attempt) == ("w", 2)


async def test_a_task_that_is_given_up_is_cancelled_and_its_worker_takes_the_next(pool):
    """Red before: the worker was dropped, and its fleet killed it."""
    await pool.connect("a")
    for started in range(1, 4):
        running = pool.submit("slow")
        await pool.bench.until_started(started)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert (await pool.run("fast")).payload == b"fast by a"
    assert (pool.bench.cancelled, pool.dispatcher.attempts["cancelled"]) == (["slow"] * 3, 3)
    assert pool.dispatcher.workers()[0].invocations == 4


async def test_a_worker_that_does_not_stop_is_dropped_so_that_no_late_result_meets_the_next(pool, monkeypatch):
    monkeypatch.setattr(dispatch, "CANCEL_GRACE_S", 0.05)
    await pool.connect("a")
    running = pool.submit("stubborn")
    await pool.bench.until_started(1)
    running.cancel()
    await pool.gone("a")
    following = pool.submit("fast")
    await pool.connect("b")
    assert (await following).payload == b"fast by b"
    pool.bench.released.set()


async def test_a_worker_has_a_time_limit_while_it_runs_a_task_and_once_it_is_to_end(pool):
    [worker] = await pool.connect("a")
    await pool.run("fast", timeout_s=30.0)
    cancelled = pool.submit("slow", timeout_s=40.0)
    await pool.bench.until_started(2)
    cancelled.cancel()
    await pool.run("fast", timeout_s=50.0)
    await pool.dispatcher.drain("a")
    await worker
    limits_s = [30 + OVERDUE_S, None, 40 + OVERDUE_S, CANCELLED_S, None, 50 + OVERDUE_S, None, OVERDUE_S]
    assert pool.watchdog.limits_s == limits_s


class ByHand:
    """A worker whose side of the stream the test plays: what it was told, and what it says."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.told: list[common_pb2.PoolMessage] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self._says: asyncio.Queue[common_pb2.WorkerMessage] = asyncio.Queue()
        self._says.put_nowait(common_pb2.WorkerMessage(hello=common_pb2.WorkerHello(worker="w", ticket="its own")))
        self._writing = False
        self.attached = asyncio.create_task(dispatcher.attach(self._messages(), self._send))

    async def _send(self, message: common_pb2.PoolMessage) -> None:
        assert not self._writing, "gRPC takes one message at a time"
        self.told.append(message)
        self._writing = True
        await self.reads.wait()
        self._writing = False

    async def _messages(self) -> AsyncIterator[common_pb2.WorkerMessage]:
        while True:
            yield await self._says.get()

    def kinds(self) -> list[str | None]:
        return [each.WhichOneof("message") for each in self.told]

    def answer(self, task: common_pb2.Task, **changes: object) -> None:
        result = common_pb2.TaskResult(**{"id": task.id, "attempt": task.attempt, "payload": task.payload} | changes)
        self._says.put_nowait(common_pb2.WorkerMessage(result=result))


async def test_a_result_that_crosses_its_cancellation_meets_no_other_task(pool):
    """The task is done as it is given up: its worker hears of a cancellation of what it does not run any more."""
    worker = ByHand(pool.dispatcher)
    first = pool.submit("first")
    await settle()
    first.cancel()
    await settle()
    assert worker.kinds() == ["task", "cancel"]
    worker.answer(worker.told[0].task)  # done all the same
    second = pool.submit("second")
    await settle()
    worker.answer(worker.told[0].task)  # once more
    worker.answer(worker.told[2].task, attempt=7)
    await settle()
    assert not second.done()
    worker.answer(worker.told[2].task)
    assert (await second).payload == b"second"
    worker.attached.cancel()


@pytest.mark.parametrize("answered", ["before", "after"])
async def test_a_task_that_is_given_up_while_it_is_sent_costs_no_worker(pool, answered):
    """Red before: the write was cut off, which breaks a stream of gRPC, and the worker was dropped."""
    worker = ByHand(pool.dispatcher)
    await settle()
    worker.reads.clear()
    first = pool.submit("first")
    await settle()
    if answered == "before":
        worker.answer(worker.told[0].task)  # a worker can be faster than the answer to the write
        await settle()
    first.cancel()
    second = pool.submit("second")
    await settle()
    assert worker.kinds() == ["task"]
    worker.reads.set()
    await settle()
    if answered == "after":
        assert worker.kinds() == ["task", "cancel"]
        worker.answer(worker.told[0].task, error_code="InternalError")
        await settle()
    worker.answer(worker.told[-1].task)
    async with asyncio.timeout(PATIENCE_S):
        assert (await second).payload == b"second"
    worker.attached.cancel()


def hello(name: str) -> common_pb2.WorkerMessage:
    return common_pb2.WorkerMessage(hello=common_pb2.WorkerHello(worker=name, ticket="its own"))


async def test_a_worker_that_keeps_sending_what_nobody_asked_for_is_let_go():
    async def flood() -> AsyncIterator[common_pb2.WorkerMessage]:
        yield hello("w")
        while True:
            await asyncio.sleep(0)
            yield common_pb2.WorkerMessage(result=common_pb2.TaskResult(id="another's" * 1000))

    dispatcher = Dispatcher(tickets=Tickets(others=True))
    with capture_logs() as logs, pytest.raises(SpecError, match="more than 100 results that nobody has asked for"):
        async with asyncio.timeout(PATIENCE_S):
            await dispatcher.attach(flood(), lambda _: settle())
    assert len(str(logs)) < 100_000
    assert not dispatcher.workers()


@pytest.mark.parametrize(
    "forged", [{"start_s": float("nan")}, {"end_s": -1.0}, {"vcpu_s": 1e300}, {"memory_bytes": -5}]
)
async def test_a_worker_that_forges_numbers_is_let_go(forged):
    await forging(common_pb2.Invocation(**forged), ends=True)


async def test_a_pool_says_itself_who_ran_what_and_what_was_lost():
    result = await forging(common_pb2.Invocation(id="x", attempt=9, worker="somebody else", end_s=1.0), ends=False)
    run = result.invocation
    assert (run.id, run.attempt, run.worker, list(result.lost)) == ("job/a", 1, "w", [])


@pytest.mark.parametrize(
    "forged",
    [{"usd_h": 1e9}, {"usd_h": float("nan")}, {"vcpus": -1.0}, {"launched_s": float("inf")}, {"market": "free"},
     {"type": "x" * 500}, {"id": "a\nb"}],
)  # fmt: skip
async def test_a_worker_on_a_machine_that_cannot_be_is_refused(forged):
    """Or what it says would be billed."""

    async def messages() -> AsyncIterator[common_pb2.WorkerMessage]:
        machine = common_pb2.Machine(**{"id": "m"} | forged)
        yield common_pb2.WorkerMessage(hello=common_pb2.WorkerHello(worker="w", ticket="own", machine=machine))
        await asyncio.sleep(PATIENCE_S)

    dispatcher = Dispatcher(tickets=Tickets(others=True))
    with pytest.raises(SpecError, match="of a machine is"):
        async with asyncio.timeout(PATIENCE_S):
            await dispatcher.attach(messages(), lambda _: settle())
    assert not dispatcher.machines.present


async def test_the_machine_of_a_worker_works_for_the_job_of_its_task(pool):
    await pool.connect("w")
    run = (await pool.run("fast")).invocation
    [use] = pool.dispatcher.machines.of(run.id.partition("/")[0])
    assert run.machine == use.presence.machine.id != ""
    assert run.ready_s > 0
    assert use.account.work_s > 0
    assert use.is_last
    assert (await pool.run("fast")).invocation.ready_s == 0


async def forging(invocation: common_pb2.Invocation, *, ends: bool) -> common_pb2.TaskResult | None:
    """A worker that answers its first task with this; `ends` says that it is let go for that."""
    asked: asyncio.Queue[common_pb2.PoolMessage] = asyncio.Queue()

    async def messages() -> AsyncIterator[common_pb2.WorkerMessage]:
        yield hello("w")
        task = (await asked.get()).task
        lost = [common_pb2.Invocation(end_s=1e6)] * 3
        yield common_pb2.WorkerMessage(
            result=common_pb2.TaskResult(id=task.id, attempt=task.attempt, invocation=invocation, lost=lost)
        )
        await asked.get()

    dispatcher = Dispatcher(tickets=Tickets(others=True))
    working = asyncio.create_task(dispatcher.attach(messages(), asked.put))
    running = asyncio.create_task(dispatcher.run("job/a", bytes, timeout_s=LONG_S, setting="field.s"))
    try:
        async with asyncio.timeout(PATIENCE_S):
            if not ends:
                return await running
            with pytest.raises(SpecError, match="of an invocation is"):
                await working
            return None
    finally:
        for task in (working, running):
            task.cancel()
        await asyncio.gather(working, running, return_exceptions=True)


async def test_draining_waits_for_a_task_that_is_being_cancelled(pool):
    [worker] = await pool.connect("w")
    running = pool.submit("slow")
    await pool.bench.until_started(1)
    running.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await pool.dispatcher.drain("w")
        await worker
    assert pool.bench.cancelled == ["slow"]


async def test_giving_a_task_up_in_the_moment_it_gets_a_worker_does_not_leak_the_worker(pool):
    waiting = pool.submit("fast-1")
    await settle()
    released = asyncio.Event()
    hand_over = pool.dispatcher._release

    def release_then_cancel(worker: object) -> None:
        hand_over(worker)
        waiting.cancel()  # the future has its worker, the task has not run yet
        released.set()

    pool.dispatcher._release = release_then_cancel
    await pool.connect("w")
    await released.wait()
    pool.dispatcher._release = hand_over
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(PATIENCE_S):
        assert (await pool.run("fast-2")).payload == b"fast-2 by w"


async def test_draining_finishes_the_running_task_and_takes_no_new_one(pool):
    [worker] = await pool.connect("w")
    slow = pool.submit("slow")
    await pool.bench.until_started(1)
    draining = asyncio.create_task(pool.dispatcher.drain("w"))
    following = pool.submit("fast")
    await settle()
    assert not draining.done()
    pool.bench.go.set()
    assert (await slow).payload == b"slow by w"
    await draining
    await worker  # it left by itself
    await pool.gone("w")
    assert not following.done()
    await pool.connect("next")
    assert (await following).invocation.worker == "next"


async def test_draining_a_worker_that_dies_ends(pool):
    [worker] = await pool.connect("w")
    slow = pool.submit("slow")
    await pool.bench.until_started(1)
    draining = asyncio.create_task(pool.dispatcher.drain("w"))
    await settle()
    worker.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await draining
    assert list(pool.dispatcher.workers()) == []
    assert not slow.done()  # it waits for another worker
    slow.cancel()


async def test_a_second_stream_under_the_same_name_takes_the_place_of_the_first(pool):
    [first] = await pool.connect("w")
    second = pool.start("w")
    async with asyncio.timeout(PATIENCE_S):
        await first  # its stream was ended
    assert (await pool.run("fast")).payload == b"fast by w"
    assert not second.done()
    assert [info.worker for info in pool.dispatcher.workers()] == ["w"]


async def test_a_stream_without_a_hello_is_refused(pool):
    peer = Peer(pool.address, Security())
    stream = ActorPoolServiceStub(peer.channel).Work(metadata=peer.metadata)
    await stream.write(common_pb2.WorkerMessage(result=common_pb2.TaskResult(id="x")))
    assert (await stream.code()).name == "INVALID_ARGUMENT"
    assert pool.dispatcher.workers() == []
    await peer.close()


async def test_a_closed_dispatcher_fails_what_waits_and_takes_no_more(pool):
    waiting = pool.submit("fast")
    await settle()
    pool.dispatcher.close("the pool is stopping")
    for task in (waiting, pool.submit("fast")):
        with pytest.raises(UnavailableError, match="the pool is stopping"):
            await task


# A fleet


class Handle:
    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task

    def kill(self) -> None:
        self.task.cancel()


class InProcessLauncher:
    """Starts workers as tasks of this process, or, told so, workers that die before they connect."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.stillborn = 0
        self.how = "exit code 1"
        self.answer = ACCEPTED
        self.may_launch = asyncio.Event()
        self.may_launch.set()
        self.batches: list[list[str]] = []
        self.drained: list[str] = []
        self.handles: dict[str, Handle] = {}
        self.leave = asyncio.Event()
        """Set when the machine of the worker that is launched first is about to end."""

    @property
    def launched(self) -> list[str]:
        return [worker for batch in self.batches for worker in batch]

    connect_s = 60.0

    def capacity(self) -> int:
        return 5

    async def launch(self, orders: Sequence[LaunchOrder]) -> list[Launch]:
        self.batches.append([order.worker for order in orders])
        await self.may_launch.wait()
        return [self._launch(order) for order in orders]

    def _launch(self, order: LaunchOrder) -> Launch:
        if self.answer.outcome is not LaunchOutcome.ACCEPTED:
            return self.answer
        if self.stillborn:
            self.stillborn -= 1
            self.handles[order.worker] = Handle(asyncio.create_task(asyncio.sleep(0)))
        else:
            self.handles[order.worker] = Handle(self.pool.start(order.worker, order.ticket))
        return ACCEPTED

    async def observe(self, worker: str) -> str:
        if worker in self.handles:
            await asyncio.wait([self.handles[worker].task])
        else:
            await asyncio.Event().wait()  # it may still start
        return self.how

    async def leaving(self, worker: str) -> str:
        await (self.leave.wait() if self.launched == [worker] else asyncio.Event().wait())
        return "its machine ends"

    async def drain(self, worker: str, grace_s: float) -> None:
        if handle := self.handles.get(worker):
            if grace_s:
                await asyncio.wait([handle.task], timeout=grace_s)
            handle.kill()
            await asyncio.wait([handle.task])
        self.drained.append(worker)


Make = Callable[..., Fleet]


@pytest.fixture
def launcher(pool) -> InProcessLauncher:
    return InProcessLauncher(pool)


@pytest.fixture
async def make(pool, launcher) -> AsyncIterator[Make]:
    fleets: list[Fleet] = []

    async def fleet(*, limit: int = 3, keep_alive_s: float = LONG_S, warm: int = 0) -> Fleet:
        made = Fleet(pool.dispatcher, launcher, prefix="actor", limit=limit, keep_alive_s=keep_alive_s, warm=warm)
        fleets.append(await made.__aenter__())
        return made

    yield fleet
    for made in fleets:
        await made.stop()


class Clock:
    """A module `time` whose clock stands."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.looks = 0
        self.time = time.time

    def monotonic(self) -> float:
        self.looks += 1
        return self.now_s

    async def looked_at(self) -> None:
        """Until somebody has asked for the time twice: once perhaps before it was what it is now."""
        enough = self.looks + 2
        async with asyncio.timeout(PATIENCE_S):
            while self.looks < enough:  # noqa: ASYNC110  # a clock tells nobody
                await asyncio.sleep(0.001)


def names(pool: Pool) -> list[str]:
    return sorted(info.worker for info in pool.dispatcher.workers())


async def test_warm_workers_start_before_anyone_asks(pool, make):
    await make(warm=2)
    async with asyncio.timeout(PATIENCE_S):
        await pool.dispatcher.connected.present(["actor-0", "actor-1"])
    assert (await pool.run("fast")).invocation.cold


async def test_ensure_starts_workers_up_to_the_limit_and_never_removes_any(pool, make):
    fleet = await make(limit=2)
    await fleet.ensure(7)
    async with asyncio.timeout(PATIENCE_S):
        await pool.dispatcher.connected.present(["actor-0", "actor-1"])
    await fleet.ensure(1)
    assert names(pool) == ["actor-0", "actor-1"]


async def test_the_first_task_of_a_worker_says_how_long_the_worker_took_to_start(pool, make, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("marless.fleet.dispatch.time", clock)
    fleet = await make(limit=1)
    fleet.expect(1)
    await asyncio.sleep(0)  # the launch
    clock.now_s += 1.5
    async with asyncio.timeout(PATIENCE_S):
        await pool.dispatcher.connected.present(["actor-0"])
    first, second = await pool.run("fast"), await pool.run("fast")
    assert (first.invocation.cold, first.invocation.init_s) == (True, 1.5)
    assert (second.invocation.cold, second.invocation.init_s) == (False, 0.0)


async def test_a_worker_that_somebody_else_started_took_no_time_that_we_know_of(pool):
    await pool.connect("w")
    record = (await pool.run("fast")).invocation
    assert (record.cold, record.init_s) == (True, 0.0)


async def test_prewarming_answers_at_once_starts_what_there_is_room_for_and_removes_none(pool, make, launcher):
    fleet = await make(limit=2)
    servicer = ActorPoolServicer(None, pool.dispatcher, fleet)
    await servicer.Prewarm(actor_pool_pb2.PrewarmRequest(actors=5), None)
    assert names(pool) == []  # nobody waits for them
    async with asyncio.timeout(PATIENCE_S):
        await pool.dispatcher.connected.present(["actor-0", "actor-1"])
    await servicer.Prewarm(actor_pool_pb2.PrewarmRequest(actors=1), None)
    assert launcher.launched == names(pool) == ["actor-0", "actor-1"]


async def test_a_pool_lists_its_workers_what_they_are_drained_for_and_what_it_has_for_others(pool, make):
    fleet = await make(limit=3)
    servicer = ActorPoolServicer(None, pool.dispatcher, fleet)

    async def listed() -> common_pb2.ListWorkersResponse:
        return await servicer.ListWorkers(common_pb2.ListWorkersRequest(), None)

    await fleet.scale(2)
    running = pool.submit("slow")
    await pool.bench.until_started(1)
    before = await listed()
    assert [each.drain for each in before.workers] == ["", ""] and (before.limit, before.queued, before.room) == (
        3,
        0,
        5,
    )
    [machine] = before.machines
    assert (machine.workers, machine.tasks, machine.machine.id) == (2, 1, before.workers[0].machine)
    scaling = asyncio.create_task(fleet.scale(0))
    async with asyncio.timeout(PATIENCE_S):
        while len((found := await listed()).workers) > 1:  # noqa: ASYNC110  # until the idle one is gone
            await asyncio.sleep(0.01)
    [worker] = found.workers
    assert (worker.busy, worker.job, worker.drain) == (True, "job", "fewer workers are wanted")
    pool.bench.go.set()
    await running
    await scaling
    assert not (after := await listed()).workers and not after.machines


async def test_a_worker_that_dies_is_replaced_and_its_task_goes_on(pool, make, launcher):
    fleet = await make(limit=1)
    await fleet.ensure(1)
    running = pool.submit("slow")
    await pool.bench.until_started(1)
    launcher.handles["actor-0"].kill()
    await pool.bench.until_started(2)
    pool.bench.go.set()
    assert (await running).invocation.attempt == 2
    assert launcher.launched == ["actor-0", "actor-0"]


async def test_how_a_worker_ended_is_told_though_its_stream_ends_first(pool, make, launcher):
    told = asyncio.Event()

    async def observe(_worker: str) -> str:
        await told.wait()
        return "out of memory"

    launcher.observe = observe
    with capture_logs() as logs:
        fleet = await make(limit=1)
        await fleet.ensure(1)
        launcher.handles["actor-0"].kill()
        async with asyncio.timeout(PATIENCE_S):
            await pool.dispatcher.connected.absent("actor-0")
            told.set()
            while len(launcher.launched) < 2:  # noqa: ASYNC110  # the launcher tells nobody
                await asyncio.sleep(0.001)
    assert {each["how"] for each in logs if each["event"] == "worker.ended"} == {"out of memory"}


async def test_a_hung_worker_is_killed_and_replaced(pool, make, launcher, monkeypatch):
    monkeypatch.setattr("marless.fleet.fleet.TOLD_S", 0.01)
    fleet = await make(limit=1)
    await fleet.ensure(1)
    hung = launcher.handles["actor-0"]
    running = pool.submit("slow", timeout_s=0.5)  # in which the second worker answers on a busy machine, too
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([hung.task])
    pool.bench.go.set()
    assert (await running).invocation.attempt >= 2


async def test_workers_that_never_connect_fail_whoever_waits_with_the_reason(pool, make, launcher):
    launcher.stillborn = 1000
    fleet = await make(limit=1)
    waiting = pool.submit("fast")
    with pytest.raises(UnavailableError, match=r"worker actor-0 could not start \(exit code 1\)"):
        await fleet.ensure(1)
    with pytest.raises(UnavailableError, match="could not start"):
        await waiting
    assert launcher.launched == ["actor-0"] * 3


async def test_workers_that_are_killed_before_they_connect_are_waited_for(pool, make, launcher, monkeypatch):
    monkeypatch.setattr("marless.fleet.fleet.REFUSED_S", 0.01)
    launcher.stillborn, launcher.how = 5, "killed by signal 9"
    fleet = await make(limit=1)
    waiting = pool.submit("fast")
    with pytest.raises(
        OverloadedError, match=r"no actor workers: worker actor-0 could not start \(killed by signal 9\)"
    ):
        await fleet.ensure(1)
    with pytest.raises(OverloadedError, match="could not start"):
        await waiting
    async with asyncio.timeout(PATIENCE_S):
        await pool.dispatcher.connected.some()
    assert launcher.launched == ["actor-0"] * 6
    assert (await pool.run("fast")).payload.startswith(b"fast by actor-0")


async def test_after_a_broken_start_the_next_request_tries_again(pool, make, launcher):
    launcher.stillborn = 3
    fleet = await make(limit=2)
    with pytest.raises(UnavailableError):
        await fleet.ensure(1)
    async with asyncio.timeout(PATIENCE_S):
        assert not await fleet.ready()
        await fleet.ensure(1)
        assert (await pool.run("fast")).payload.startswith(b"fast by actor-")
        assert await fleet.ready()


async def test_a_machine_that_starts_no_process_fails_whoever_waits(pool, make, launcher):
    launcher.answer = Launch(LaunchOutcome.FAILED, "cannot start worker actor-0: Resource temporarily unavailable")
    fleet = await make(limit=1)
    waiting = pool.submit("fast")
    with pytest.raises(UnavailableError, match="cannot start worker actor-0"):
        await fleet.ensure(1)
    with pytest.raises(UnavailableError, match="cannot start worker actor-0"):
        await waiting


async def test_scaling_down_drains_and_scaling_up_returns_when_all_are_warm(pool, make):
    fleet = await make(limit=3)
    await fleet.scale(3)
    assert len(names(pool)) == 3
    await fleet.scale(1)
    assert len(names(pool)) == 1
    await fleet.scale(2)
    assert len(names(pool)) == 2
    await fleet.scale(0)
    assert names(pool) == []


async def test_scaling_down_releases_those_that_are_idle_longest_and_none_in_mid_task(pool, make, launcher):
    fleet = await make(limit=12)
    await fleet.scale(12)
    running = [pool.submit("slow") for _ in range(3)]
    await pool.bench.until_started(3)
    idle = [info.worker for info in pool.dispatcher.workers() if not info.busy]
    assert len(idle) == 9
    async with asyncio.timeout(PATIENCE_S):
        await fleet.scale(4)
        assert sorted(launcher.drained) == sorted(idle[:8])
        await fleet.scale(3)
    busy = {info.worker for info in pool.dispatcher.workers()}
    pool.bench.go.set()
    assert {(await task).invocation.worker for task in running} == busy
    assert {(await task).invocation.attempt for task in running} == {1}


async def test_a_released_worker_may_exit_by_itself(pool, make, launcher):
    fleet = await make(limit=1)
    await fleet.scale(1)
    await fleet.scale(0)
    assert not launcher.handles["actor-0"].task.cancelled()


async def test_workers_that_are_asked_for_together_are_one_batch(pool, make, launcher):
    fleet = await make(limit=3)
    await fleet.scale(3)
    assert launcher.batches == [["actor-0", "actor-1", "actor-2"]]


async def test_a_worker_that_there_is_no_room_for_is_ordered_again_and_jobs_are_told(pool, make, launcher, monkeypatch):
    monkeypatch.setattr("marless.fleet.fleet.REFUSED_S", 0.01)
    launcher.answer = Launch(LaunchOutcome.REFUSED, "no memory left")
    fleet = await make(limit=1)
    waiting = pool.submit("fast")
    async with asyncio.timeout(PATIENCE_S):
        for needed in (fleet.ensure(1), waiting):
            with pytest.raises(OverloadedError, match=r"^no actor workers: no memory left$"):
                await needed
    launcher.answer = ACCEPTED
    async with asyncio.timeout(PATIENCE_S):
        await pool.dispatcher.connected.some()
        assert (await pool.submit("fast")).payload == b"fast by actor-0"
    assert len(launcher.batches) > 1


async def test_a_task_waits_for_a_worker_that_is_connected_though_there_is_no_room_for_more(
    pool, make, launcher, monkeypatch
):
    monkeypatch.setattr("marless.fleet.fleet.REFUSED_S", 0.01)
    fleet = await make(limit=2)
    await fleet.ensure(1)
    running, waiting = pool.submit("slow"), pool.submit("fast")
    await pool.bench.until_started(1)
    launcher.answer = Launch(LaunchOutcome.REFUSED, "no memory left")
    fleet.expect(2)
    async with asyncio.timeout(PATIENCE_S):
        while len(launcher.batches) < 3:  # noqa: ASYNC110  # the launcher tells nobody
            await asyncio.sleep(0.01)
    pool.bench.go.set()
    async with asyncio.timeout(PATIENCE_S):
        assert [(await each).payload for each in (running, waiting)] == [b"slow by actor-0", b"fast by actor-0"]


async def test_workers_that_there_is_no_room_for_are_released_before_those_that_run(pool, make, launcher, monkeypatch):
    monkeypatch.setattr("marless.fleet.fleet.REFUSED_S", 0.01)
    fleet = await make(limit=3)
    await fleet.scale(2)
    launcher.answer = Launch(LaunchOutcome.REFUSED, "no memory left")
    fleet.expect(3)
    async with asyncio.timeout(PATIENCE_S):
        while len(launcher.batches) < 3:  # noqa: ASYNC110  # the launcher tells nobody
            await asyncio.sleep(0.01)
        await fleet.scale(1)
    [kept] = [info.worker for info in pool.dispatcher.workers()]
    assert kept in ("actor-0", "actor-1"), "one of those that run"


async def test_an_unknown_launch_is_waited_for_and_drained_before_the_next(pool, make, launcher):
    launcher.answer = Launch(LaunchOutcome.UNKNOWN, "no answer came")
    launcher.connect_s = 0.05
    fleet = await make(limit=1)
    fleet.expect(1)
    async with asyncio.timeout(PATIENCE_S):
        while len(launcher.batches) < 2:  # noqa: ASYNC110  # the launcher tells nobody
            await asyncio.sleep(0.01)
    assert launcher.drained == ["actor-0"]


async def test_a_launcher_with_a_bug_fails_whoever_waits_and_what_it_launched_is_drained(pool, make, launcher):
    launcher.connect_s = 0.02
    launcher.launch = lambda orders: 1 / 0
    fleet = await make(limit=1)
    with pytest.raises(UnavailableError, match="the launcher failed: ZeroDivisionError: division by zero"):
        await fleet.ensure(1)
    await fleet.stop()
    assert "actor-0" in launcher.drained


async def test_a_pool_that_starts_none_uses_those_that_dial_in(pool, make, launcher):
    launcher.connect_s = 0.05
    fleet = await make(limit=0)
    with pytest.raises(UnavailableError, match=r"no actor worker connected within 0\.05 s; this pool starts none"):
        await fleet.ensure(2)
    launcher.connect_s = PATIENCE_S
    ensuring = asyncio.create_task(fleet.ensure(2))
    await pool.connect("dials-in")
    await ensuring
    assert (await pool.run("fast")).payload == b"fast by dials-in"
    assert launcher.batches == []


async def test_scaling_down_lets_a_running_task_finish(pool, make):
    fleet = await make(limit=1)
    await fleet.scale(1)
    running = pool.submit("slow")
    await pool.bench.until_started(1)
    scaling = asyncio.create_task(fleet.scale(0))
    await settle()
    assert not scaling.done()
    pool.bench.go.set()
    assert (await running).invocation.attempt == 1
    await scaling
    assert names(pool) == []


async def test_a_worker_whose_machine_ends_finishes_its_task_and_is_launched_anew_elsewhere(pool, make, launcher):
    fleet = await make(limit=1)
    await fleet.scale(1)
    running = pool.submit("slow")
    await pool.bench.until_started(1)
    waiting = pool.submit("slow-next")
    launcher.leave.set()
    await settle()
    assert (names(pool), launcher.launched) == (["actor-0"], ["actor-0"])
    pool.bench.go.set()
    assert {(await task).invocation.attempt for task in (running, waiting)} == {1}
    assert launcher.launched == ["actor-0"] * 2
    assert pool.dispatcher.attempts["lost"] == 0


@pytest.mark.parametrize("workers", [-1, 4])
async def test_a_number_of_workers_that_cannot_be_is_refused(make, workers):
    fleet = await make(limit=3)
    with pytest.raises(SpecError, match=rf"^{workers} workers asked for; this pool has 0 to 3 \(--actor-workers\)$"):
        await fleet.scale(workers)


async def test_idle_workers_are_released_and_come_back_when_needed(pool, make, launcher):
    fleet = await make(limit=1, keep_alive_s=0.02)
    await fleet.ensure(1)
    await pool.gone("actor-0")
    await fleet.ensure(1)
    assert (await pool.run("fast")).invocation.worker == "actor-1"


async def test_prewarming_keeps_workers_that_would_be_released(pool, make, launcher, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("marless.fleet.fleet.time", clock)
    with capture_logs() as logs:
        fleet = await make(limit=1, keep_alive_s=0.02)  # by the clock above
        await fleet.ensure(1)
        for _ in range(3):
            clock.now_s += 0.015
            fleet.expect(1)
            await clock.looked_at()
            assert names(pool) == ["actor-0"]
        clock.now_s += 0.03
        await pool.gone("actor-0")
    events = [(each["event"], each["worker"]) for each in logs if each["event"].startswith("worker.")]
    assert events[:3] == [(f"worker.{what}", "actor-0") for what in ("launched", "connected", "released")]


async def test_a_worker_that_is_waited_for_is_not_released_however_long_it_takes_to_start(
    pool, make, launcher, monkeypatch
):
    clock = Clock()
    monkeypatch.setattr("marless.fleet.fleet.time", clock)
    fleet = await make(limit=1, keep_alive_s=0.02)  # by the clock above
    launcher.may_launch.clear()
    waiting = asyncio.create_task(fleet.ensure(1))
    for _ in range(3):
        await clock.looked_at()
        clock.now_s += 1.0
    await clock.looked_at()
    launcher.may_launch.set()
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    assert launcher.launched == ["actor-0"]


async def test_a_busy_worker_is_not_released_however_long_its_task_takes(pool, make, launcher):
    fleet = await make(limit=1, keep_alive_s=0.01)
    await fleet.ensure(1)
    running = pool.submit("slow")
    await pool.bench.until_started(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await pool.dispatcher.connected.absent("actor-0")
    following = pool.submit("fast")
    pool.bench.go.set()
    async with asyncio.timeout(PATIENCE_S):
        assert [(await task).invocation.worker for task in (running, following)] == ["actor-0", "actor-0"]
    assert launcher.launched == ["actor-0"]


async def test_workers_asked_for_while_the_last_ones_are_released_come_up(pool, make):
    fleet = await make(limit=2)
    await fleet.ensure(1)
    running = pool.submit("slow")
    await pool.bench.until_started(1)
    scaling = asyncio.create_task(fleet.scale(0))
    await settle()
    await fleet.ensure(1)
    waiting = pool.submit("fast")
    pool.bench.go.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(running, waiting, scaling)
    assert waiting.result().payload.startswith(b"fast by actor-")
    assert len(pool.dispatcher.workers()) == 1


async def test_workers_asked_for_while_the_last_ones_exit_come_up(pool, make, launcher, monkeypatch):
    fleet = await make(limit=1)
    await fleet.ensure(1)
    drain, exited, go_on = pool.dispatcher.drain, asyncio.Event(), asyncio.Event()

    async def slowly(name: str, why: str = "") -> None:
        """As `drain`, but returns long after the worker has exited."""
        await drain(name, why)
        await pool.gone(name)
        exited.set()
        await go_on.wait()

    monkeypatch.setattr(pool.dispatcher, "drain", slowly)
    scaling = asyncio.create_task(fleet.scale(0))
    async with asyncio.timeout(PATIENCE_S):
        await exited.wait()
        ensuring = asyncio.create_task(fleet.ensure(1))
        await settle()
        assert not ensuring.done()
        go_on.set()
        await asyncio.gather(ensuring, scaling)
        assert (await pool.run("fast")).invocation.worker == "actor-1"
    assert launcher.launched == ["actor-0", "actor-1"], "a worker that was released is not started again"


async def test_stopping_fails_what_runs_and_starts_nothing_again(pool, make, launcher):
    fleet = await make(limit=1)
    await fleet.ensure(1)
    running, waiting = pool.submit("slow"), pool.submit("fast")
    await pool.bench.until_started(1)
    async with asyncio.timeout(PATIENCE_S):
        await fleet.stop()
        await fleet.stop()
    for task in (running, waiting):
        with pytest.raises(UnavailableError, match="the pool is stopping"):
            await task
    with pytest.raises(UnavailableError, match="the pool is stopping"):
        await fleet.ensure(1)
    assert launcher.launched == ["actor-0"]
    assert names(pool) == []


async def test_a_worker_whose_pool_does_not_answer_says_so_until_it_does(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "WAITING_S", 0.05)
    address = f"unix:{tmp_path}/pool.sock"
    early = Pool(address, Dispatcher(queue_limit=2, tickets=Tickets(others=True)))
    with capture_logs() as logs:
        early.start("early")
        async with asyncio.timeout(PATIENCE_S):
            while len([line for line in logs if line["event"] == "worker.waiting"]) < 2:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.01)
        assert logs[0]["pool"] == address
        assert "failed to connect" in logs[0]["reason"]
        async with pool_at(address, Dispatcher(queue_limit=2, tickets=Tickets(others=True))) as pool:
            async with asyncio.timeout(PATIENCE_S):
                await pool.dispatcher.connected.present(["early"])
            said = len(logs)
            assert (await pool.run("fast")).payload == b"fast by early"
            await asyncio.sleep(0.2)  # several times as long as it would wait before it says so again
            assert [line for line in logs[said:] if line["event"] == "worker.waiting"] == []
    await early.close()


async def test_a_worker_that_is_refused_raises_the_reason(pool):
    await pool.connect("taken")
    with pytest.raises(UnauthenticatedError, match="ticket"):
        await pool.start("taken", "a guess")
