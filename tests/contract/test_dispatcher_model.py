"""Dispatcher and fleet against what they promise, for any sequence of tasks, cancellations, deaths and late answers.

`-m slow` runs 500 examples of 50 steps. Seeded defects show that the models see what they are for.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from marless.core.errors import MarlessError, OverloadedError
from marless.fleet import dispatch, tenancy
from marless.fleet.dispatch import Dispatcher
from marless.fleet.fleet import Fleet
from marless.fleet.launchers.base import ACCEPTED, Launch, LaunchOrder, LaunchOutcome
from marless.fleet.tenancy import Renewal
from marless.fleet.workers import Idle
from marless.rpc.admission import FairQueue
from marless.rpc.v1 import common_pb2

QUEUE, LIMIT, GRACE_S, LONG_S = 6, 3, 0.02, 600.0
JOBS = st.sampled_from("abc")
WORKERS = st.sampled_from(["w0", "w1", "w2"])
SMALL = settings(max_examples=25, stateful_step_count=30, deadline=None)
FULL = settings(max_examples=500, stateful_step_count=50, deadline=None)
HUNT = settings(
    max_examples=600, stateful_step_count=40, deadline=None, database=None, phases=[Phase.generate], derandomize=True
)


class Worker:
    """One stream, as the worker sees it: what it was sent, and what it has not answered."""

    def __init__(self, dispatcher: Dispatcher, name: str, sent: Callable[[str], None]) -> None:
        self.name = name
        self.sent = sent
        self.open: list[common_pb2.Task] = []
        self.cancels: list[common_pb2.Cancel] = []
        self.jobs: set[str] = set()
        """Whose tasks this stream was sent."""
        self.renews = False
        """True once it was asked to exit, so that a fresh one comes in its place."""
        self.says: asyncio.Queue[common_pb2.WorkerMessage | None] = asyncio.Queue()
        ticket = dispatcher.launching(name)
        self.says.put_nowait(common_pb2.WorkerMessage(hello=common_pb2.WorkerHello(worker=name, ticket=ticket)))
        self.attached = asyncio.create_task(dispatcher.attach(self.messages(), self.send))

    async def send(self, message: common_pb2.PoolMessage) -> None:
        if message.HasField("task"):
            self.open.append(message.task)
            self.jobs.add(message.task.id.partition("/")[0])
            self.sent(message.task.id)
        elif message.HasField("cancel"):
            self.cancels.append(message.cancel)
        else:
            self.renews = message.drain.renew
            self.says.put_nowait(None)

    async def messages(self) -> AsyncIterator[common_pb2.WorkerMessage]:
        while (message := await self.says.get()) is not None:
            yield message

    def answer(self, task: common_pb2.Task, **changes: object) -> None:
        result = common_pb2.TaskResult(**{"id": task.id, "attempt": task.attempt, "payload": task.payload} | changes)
        self.says.put_nowait(common_pb2.WorkerMessage(result=result))


class DispatcherMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.do(self.begin())

    async def begin(self) -> None:
        self.dispatcher = self.made()
        self.workers: dict[str, Worker] = {}
        self.tasks: dict[str, asyncio.Task[common_pb2.TaskResult]] = {}
        self.given_up: set[str] = set()
        self.serial = 0
        self.behind: Counter[tuple[str, str]] = Counter()
        """(job that waits, other job) → turns that the other one had meanwhile."""
        self.unfair: list[str] = []

    def made(self) -> Dispatcher:
        return Dispatcher(queue_limit=QUEUE)

    def teardown(self) -> None:
        self.do(self.end())
        self.runner.close()

    async def end(self) -> None:
        self.dispatcher.close("over")
        for worker in self.workers.values():
            worker.says.put_nowait(None)
        await asyncio.wait([worker.attached for worker in self.workers.values()] or [asyncio.ensure_future(settled())])
        await settled()
        stuck = [name for name, task in self.tasks.items() if not task.done()]
        assert not stuck, f"{stuck} wait for a pool that is closed"

    def do(self, coroutine) -> None:
        async def then_settle() -> None:
            await coroutine
            await settled()

        self.runner.run(then_settle())

    def sent(self, task: str) -> None:
        """A task has reached a worker: whoever else waits was passed by its job."""
        job = task.partition("/")[0]
        for other in {name.partition("/")[0] for name in self.queued()} - {job}:
            self.behind[other, job] += 1
            if self.behind[other, job] > 2:  # not raised here, where the dispatcher would take it for a broken stream
                self.unfair.append(f"{job} had three turns while {other} waited")
        for pair in [pair for pair in self.behind if pair[0] == job]:
            del self.behind[pair]

    def held(self) -> list[common_pb2.Task]:
        return [task for worker in self.workers.values() for task in worker.open if not worker.attached.done()]

    def queued(self) -> list[str]:
        running = {task.id for task in self.held()}
        return [name for name, task in self.tasks.items() if not task.done() and name not in running]

    @rule(job=JOBS)
    def submit(self, job: str) -> None:
        self.serial += 1
        name = f"{job}/{self.serial}"
        full = len(self.queued()) >= QUEUE
        self.do(self.submitted(name))
        if full:
            with pytest.raises(OverloadedError):
                self.tasks[name].result()

    async def submitted(self, name: str) -> None:
        run = self.dispatcher.run(name, name.encode, timeout_s=3600, setting="s")
        self.tasks[name] = asyncio.create_task(run)
        self.tasks[name].add_done_callback(lambda task: task.cancelled() or task.exception())  # heard

    @rule(name=WORKERS)
    def attach(self, name: str) -> None:
        if name not in self.workers:
            self.do(self.attached(name))

    async def attached(self, name: str) -> None:
        self.workers[name] = Worker(self.dispatcher, name, self.sent)

    @rule(name=WORKERS, code=st.sampled_from(["", "", "StaleError"]))
    def answer(self, name: str, code: str) -> None:
        worker = self.workers.get(name)
        if worker is None or not worker.open:
            return
        task = worker.open.pop(0)
        worker.answer(task, error_code=code)
        self.do(settled())
        if task.id not in self.given_up:
            assert self.tasks[task.id].done(), f"{task.id} was answered, and waits"
            if not code:
                assert self.tasks[task.id].result().payload == task.id.encode()

    @rule(name=WORKERS, attempt=st.sampled_from([0, 1, 7]))
    def answer_late(self, name: str, attempt: int) -> None:
        """What this worker was asked long ago, or another attempt of what it runs now."""
        if worker := self.workers.get(name):
            task = common_pb2.Task(id="a/1" if attempt < 2 else (worker.open or [common_pb2.Task(id="a/1")])[0].id)
            if not any((each.id, each.attempt) == (task.id, attempt) for each in worker.open):
                worker.answer(task, attempt=attempt, payload=b"late")
                self.do(settled())

    @rule(name=WORKERS)
    def die(self, name: str) -> None:
        if worker := self.workers.pop(name, None):
            worker.says.put_nowait(None)
            self.do(ended(worker))

    @rule(index=st.integers(0, 20), stops=st.booleans())
    def cancel(self, index: int, stops: bool) -> None:
        alive = [name for name, task in self.tasks.items() if not task.done()]
        if not alive:
            return
        name = alive[index % len(alive)]
        self.given_up.add(name)
        holder = next((w for w in self.workers.values() if any(task.id == name for task in w.open)), None)
        dispatch.CANCEL_GRACE_S = LONG_S if stops else GRACE_S
        self.tasks[name].cancel()
        self.do(settled())
        if holder is None:
            return
        if stops:
            assert [(each.id, each.attempt) for each in holder.cancels[-1:]] == [
                (holder.open[0].id, holder.open[0].attempt)
            ]
            holder.answer(holder.open.pop(0), error_code="InternalError")
            self.do(settled())
            assert holder.renews or not holder.attached.done(), "a worker that stops is kept"
        else:
            self.do(asyncio.wait_for(ended(holder), 5))
            self.workers.pop(holder.name)

    @rule(name=WORKERS)
    def drain(self, name: str) -> None:
        if (worker := self.workers.get(name)) and not worker.open:
            self.do(self.dispatcher.drain(name))
            self.do(ended(worker))
            self.workers.pop(name)

    @invariant()
    def no_task_is_lost_or_run_twice(self) -> None:
        assert not self.unfair
        held = Counter(task.id for task in self.held())
        assert all(count == 1 for count in held.values()), f"{held}: at two workers"
        assert all(len(worker.open) <= 1 for worker in self.workers.values()), "two tasks at one worker"
        assert self.dispatcher.queued == len(self.queued()), "a task neither waits nor runs"
        assert self.dispatcher.queued <= QUEUE + len(self.workers) + LIMIT
        idle = [worker.name for worker in self.workers.values() if not worker.open]
        assert not (idle and self.queued()), f"{idle} have nothing to do while tasks wait"
        busy = {info.worker for info in self.dispatcher.workers() if info.busy}
        assert busy == {worker.name for worker in self.workers.values() if worker.open}


class ApartMachine(DispatcherMachine):
    """With workers that exit between jobs, each of which is followed at once by a fresh one of its name."""

    def made(self) -> Dispatcher:
        return Dispatcher(queue_limit=QUEUE, apart=True)

    def do(self, coroutine) -> None:
        super().do(coroutine)
        while leaving := [worker for worker in self.workers.values() if worker.renews]:
            for worker in leaving:
                super().do(ended(worker))
                self.unfair += [f"{worker.name} was renewed with a task"] if worker.open else []
                super().do(self.attached(worker.name))

    def sent(self, task: str) -> None:
        """Turns are not counted: a job that has its share of the workers waits for those."""

    @invariant()
    def no_worker_has_tasks_of_two_jobs(self) -> None:
        mixed = {worker.name: worker.jobs for worker in self.workers.values() if len(worker.jobs) > 1}
        assert not mixed, f"{mixed}: tasks of two jobs at one worker"


class TurnsMachine(DispatcherMachine):
    """Jobs that only submit, and workers that only answer: what is unfair between jobs shows after fewer steps."""

    answer_late = die = cancel = drain = None


async def settled() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


async def ended(worker: Worker) -> None:
    await asyncio.wait([worker.attached])


class Process:
    """What a launcher starts: a process that is there until it dies or is killed."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()


class FleetMachine(RuleBasedStateMachine):
    """A fleet whose processes connect, hang and die as they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.processes: list[tuple[str, Process]] = []
        self.refuses = False
        self.stillborn = 0
        """Processes that died before they connected, since the last one that did."""
        self.runner.run(self.begin())

    async def begin(self) -> None:
        self.dispatcher = Dispatcher()
        self.workers: dict[str, Worker] = {}
        self.asked: list[asyncio.Task[None]] = []
        self.fleet = Fleet(self.dispatcher, self, prefix="w", limit=LIMIT, keep_alive_s=3600)
        await self.fleet.__aenter__()

    connect_s = 60.0

    async def launch(self, orders: Sequence[LaunchOrder]) -> list[Launch]:
        if self.refuses:
            return [Launch(LaunchOutcome.FAILED, "no process can be started")] * len(orders)
        self.processes += [(order.worker, Process()) for order in orders]
        return [ACCEPTED] * len(orders)

    async def observe(self, name: str) -> str:
        await dict(self.processes)[name].gone.wait()
        return "exit code 1"

    async def drain(self, name: str, grace_s: float) -> None:
        if process := dict(self.processes).get(name):
            process.gone.set()

    def alive(self) -> list[tuple[str, Process]]:
        return [(name, process) for name, process in self.processes if not process.gone.is_set()]

    def do(self, action: Callable[[], object]) -> None:
        async def act() -> None:
            action()
            await settled()
            await settled()

        self.runner.run(act())

    def ask(self, coroutine) -> None:
        self.asked.append(asyncio.ensure_future(coroutine))

    @rule(workers=st.integers(0, LIMIT + 2))
    def expect(self, workers: int) -> None:
        self.do(lambda: self.fleet.expect(workers))

    @rule(workers=st.integers(0, LIMIT + 1))
    def scale(self, workers: int) -> None:
        self.do(lambda: self.ask(self.fleet.scale(workers)))

    @rule(index=st.integers(0, 5))
    def connect(self, index: int) -> None:
        silent = [(name, process) for name, process in self.alive() if name not in self.workers]
        if silent:
            name, _ = silent[index % len(silent)]
            self.stillborn = 0
            self.do(lambda: self.workers.update({name: self.hello(name)}))

    def hello(self, name: str) -> Worker:
        worker = Worker(self.dispatcher, name, lambda _: None)
        worker.attached.add_done_callback(lambda _: self.workers.pop(name, None))
        return worker

    @rule(index=st.integers(0, 5))
    def die(self, index: int) -> None:
        if alive := self.alive():
            name, process = alive[index % len(alive)]
            self.stillborn += name not in self.workers
            given_up = self.refuses or self.stillborn  # or will be soon
            comes_back = name in self.workers and not given_up and all(task.done() for task in self.asked)

            def end() -> None:
                process.gone.set()
                if worker := self.workers.get(name):
                    worker.says.put_nowait(None)

            self.do(end)
            assert not comes_back or name in dict(self.alive()), f"{name} died, and nothing came in its place"

    @rule(index=st.integers(0, 5))
    def lose_the_stream(self, index: int) -> None:
        """The process hangs: it is there, and says nothing."""
        if self.workers:
            worker = list(self.workers.values())[index % len(self.workers)]
            hangs = dict(self.alive())[worker.name]
            self.do(lambda: worker.says.put_nowait(None))
            assert hangs.gone.is_set(), f"{worker.name} hangs, and was left"

    @rule(refuses=st.booleans())
    def refuse(self, refuses: bool) -> None:
        self.refuses = refuses

    @invariant()
    def never_more_than_allowed(self) -> None:
        names = Counter(name for name, _ in self.alive())
        assert len(self.alive()) <= LIMIT, f"{names} above the limit"
        assert all(count == 1 for count in names.values()), f"{names}: two processes of a name"
        connected = {info.worker for info in self.dispatcher.workers()}
        assert connected <= set(names), f"{connected - set(names)} are connected, and gone"

    def teardown(self) -> None:
        async def end() -> None:
            try:
                async with asyncio.timeout(2):
                    await self.fleet.stop()
                    done = await asyncio.gather(*self.asked, return_exceptions=True)
            except TimeoutError:
                raise AssertionError(f"the fleet does not stop, and {self.alive()} were left") from None
            assert all(each is None or isinstance(each, MarlessError) for each in done), done

        with self.runner:
            self.runner.run(end())
        assert not self.alive(), f"{self.alive()} were left"


@pytest.fixture(autouse=True)
def grace(monkeypatch):
    """Put back what the model sets; kill a worker that hangs at once."""
    monkeypatch.setattr("marless.fleet.fleet.TOLD_S", 0.0)
    monkeypatch.setattr(dispatch, "CANCEL_GRACE_S", LONG_S)
    monkeypatch.setattr(tenancy, "IDLE_S", 0.0)
    monkeypatch.setattr(tenancy, "TURN_S", 0.0)


@pytest.mark.parametrize("machine", [DispatcherMachine, ApartMachine, FleetMachine])
def test_pools_keep_their_promises(machine):
    run_state_machine_as_test(machine, settings=SMALL)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("machine", [DispatcherMachine, ApartMachine, FleetMachine])
def test_pools_keep_their_promises_at_full_size(machine):
    run_state_machine_as_test(machine, settings=FULL)


def keeps_no_order(self: FairQueue, job: str, waiter: object, *, again: bool = False) -> None:
    """The job that came last is always next."""
    self._jobs.setdefault(job, type(self._jobs)())[waiter] = None
    self._jobs.move_to_end(job, last=False)
    self._count += 1


def forgets_a_release(self: Dispatcher, worker: object) -> None:
    worker.running = None


async def loses_the_cancelled(self: Dispatcher, worker, running, task) -> None:
    worker.lose()


def hears_everything(self: object, name: str, value: object) -> None:
    """Any result is taken for the expected one."""


async def looks_at_processes_only(self: Fleet, name: str) -> str:
    return await self._launcher.observe(name)


async def launches_once(self: Fleet, name: str) -> str:
    await self._launch(name)
    try:
        return await self._until_gone(name)
    finally:
        await self._launcher.drain(name, 0.0)
        await self._dispatcher.disconnect(name)


def ignores_the_limit(self: Fleet, workers: int) -> None:
    self._wanted = max(self._wanted, workers)
    self._start()


async def forgets_nobody(self: Dispatcher, job: str, *, again: bool) -> object:
    if len(self._waiting) >= QUEUE:
        raise OverloadedError("full")
    waiter = asyncio.get_running_loop().create_future()
    self._waiting.add(job, waiter, again=again)
    return await waiter


def finds_any(self: Idle, job: str) -> object:
    return next(iter(self), None)


def renews_nobody(self: Renewal) -> None:
    """Idle workers of other jobs stay as they are."""


async def ends_nothing(self: FleetMachine, name: str, grace_s: float) -> None:
    """A launcher that leaves its workers."""


SAYS = {
    "jobs do not take turns": "had three turns while",
    "a worker is not given back": "have nothing to do while tasks wait|a task neither waits nor runs",
    "a cancelled task loses its worker": r"assert \[\] == \[",
    "who is cancelled in the queue stays there": "a task neither waits nor runs",
    "a queue without a bound": "Result is not set",
    "a worker goes from job to job": "tasks of two jobs at one worker",
    "a job keeps workers that it does not use": "have nothing to do while tasks wait",
    "more workers than the limit": "above the limit",
    "a worker that hangs is left": "hangs, and was left",
    "a worker that died is not replaced": "nothing came in its place",
    "a process that is not ended with its worker": "were left|hangs, and was left",
}
"""What a model says to the defect: that it fails for another reason does not count."""
MUTANTS = {
    "jobs do not take turns": (TurnsMachine, FairQueue, "add", keeps_no_order),
    "a worker is not given back": (DispatcherMachine, Dispatcher, "_release", forgets_a_release),
    "a cancelled task loses its worker": (DispatcherMachine, Dispatcher, "_take_back", loses_the_cancelled),
    "who is cancelled in the queue stays there": (DispatcherMachine, Dispatcher, "_wait", forgets_nobody),
    "a queue without a bound": (
        DispatcherMachine,
        Dispatcher,
        "_queue_limit",
        property(lambda _: 10**6, lambda *_: None),
    ),
    "a worker goes from job to job": (ApartMachine, Idle, "find", finds_any),
    "a job keeps workers that it does not use": (ApartMachine, Renewal, "make_room", renews_nobody),
    "more workers than the limit": (FleetMachine, Fleet, "expect", ignores_the_limit),
    "a worker that hangs is left": (FleetMachine, Fleet, "_until_gone", looks_at_processes_only),
    "a worker that died is not replaced": (FleetMachine, Fleet, "_keep", launches_once),
    "a process that is not ended with its worker": (FleetMachine, FleetMachine, "drain", ends_nothing),
}


LONG_TO_FIND = {
    "a cancelled task loses its worker",
    "a queue without a bound",
    "who is cancelled in the queue stays there",
    "a process that is not ended with its worker",
}


@pytest.mark.parametrize(
    "defect", [pytest.param(each, marks=pytest.mark.slow) if each in LONG_TO_FIND else each for each in MUTANTS]
)
def test_the_models_see_a_seeded_defect(defect, monkeypatch):
    gc.collect()  # else what other defects have left is collected in the midst of an ast: python/cpython issue 106905
    machine, owner, name, mutant = MUTANTS[defect]
    monkeypatch.setattr(owner, name, mutant, raising=False)
    with pytest.raises((AssertionError, asyncio.InvalidStateError), match=SAYS[defect]):
        run_state_machine_as_test(machine, settings=HUNT)
