"""What an arrival and a departure cost, who is woken by them, and how often a task is tried."""

import asyncio
import sys
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core.errors import UnavailableError
from marless.core.machine import Machine
from marless.fleet.dispatch import Dispatcher
from marless.fleet.machines import MachineAccounts
from marless.fleet.tenancy import MAX_ATTEMPTS
from marless.fleet.workers import ConnectedWorkers, LastWorkers, Worker
from marless.rpc.v1.common_pb2 import PoolMessage, TaskResult, WorkerHello, WorkerMessage


async def stream(dispatcher: Dispatcher, name: str, ticket: str, ends: asyncio.Event) -> None:
    async def messages():
        yield WorkerMessage(hello=WorkerHello(worker=name, ticket=ticket))
        await ends.wait()

    async def send(_message: PoolMessage) -> None: ...

    await dispatcher.attach(messages(), send)


async def come_and_go(count: int) -> int:
    """Let workers connect and disconnect while each is waited for, as by a fleet; returns the calls that it takes."""
    dispatcher, ends, calls = Dispatcher(), asyncio.Event(), 0

    async def kept(name: str) -> None:
        await dispatcher.connected.present([name])
        await dispatcher.connected.absent(name)

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    names = [f"actor-{index}" for index in range(count)]
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(kept(name))
        everyone = group.create_task(dispatcher.connected.present(names))
        await asyncio.sleep(0)
        sys.setprofile(counted)
        try:
            for name in names:
                group.create_task(stream(dispatcher, name, dispatcher.launching(name), ends))
                await asyncio.sleep(0)
            await everyone
            ends.set()
            for name in names:
                await dispatcher.connected.absent(name)
        finally:
            sys.setprofile(None)
    return calls


async def test_an_arrival_costs_the_same_however_many_workers_are_waited_for():
    """Red before: each arrival woke all who waited for any worker, 27 s of event loop for 2,000 workers."""
    few, many = await come_and_go(50), await come_and_go(400)
    assert many / 400 < 1.2 * few / 50


def worker(name: str) -> Worker:
    async def send(_message: PoolMessage) -> None: ...

    return Worker(WorkerHello(worker=name), send, 0.0, MachineAccounts().arrive(Machine(id="m"), 0.0))


async def test_waiting_for_several_workers_ends_once_all_are_there_at_the_same_time():
    here, a, b = ConnectedWorkers(), worker("a"), worker("b")
    waiting = asyncio.create_task(here.present(["a", "b"]))
    await asyncio.sleep(0)
    here.arrive("a", a)
    await asyncio.sleep(0)
    here.release("a", a)
    here.arrive("b", b)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    here.arrive("a", a)
    await asyncio.wait_for(waiting, 5)


async def test_a_worker_that_was_replaced_leaves_nothing():
    here, first, second = ConnectedWorkers(), worker("a"), worker("a")
    here.arrive("a", first)
    here.arrive("a", second)
    here.release("a", first)
    assert here["a"] is second
    gone = asyncio.create_task(here.absent("a"))
    await asyncio.sleep(0)
    here.release("a", second)
    await asyncio.wait_for(gone, 5)
    waiting = asyncio.create_task(here.some())
    await asyncio.sleep(0)
    here.arrive("b", first)
    await asyncio.wait_for(waiting, 5)


@given(st.lists(st.tuples(st.sampled_from(["put", "leave"]), st.integers(0, 5), st.integers(0, 2))), st.integers(1, 4))
def test_homes_are_those_of_the_affinities_used_last(actions, most):
    async def check() -> None:
        homes, workers = LastWorkers(most), [worker(name) for name in "abc"]
        model: OrderedDict[str, Worker] = OrderedDict()
        for what, affinity, index in actions:
            if what == "put":
                homes.put(str(affinity), workers[index])
                model[str(affinity)] = workers[index]
                model.move_to_end(str(affinity))
                if len(model) > most:
                    model.popitem(last=False)
            else:
                homes.release(workers[index])
                model = OrderedDict((key, each) for key, each in model.items() if each is not workers[index])
            assert {key: homes.find(key) for key in map(str, range(6))} == {
                key: model.get(key) for key in map(str, range(6))
            }

    asyncio.run(check())


# How often a task is tried


def test_losses_of_one_percent_end_no_job_of_a_thousand_actors_and_ten_thousand_rounds():
    tasks, loss = 1_000 * 10_000, 0.01
    assert tasks * loss**MAX_ATTEMPTS <= 1.000001e-9


@given(st.integers(0, MAX_ATTEMPTS + 2), st.integers(1, 4))
def test_a_task_ends_only_by_as_many_losses_in_a_row_as_there_are_attempts(losses, workers):
    """Whatever the number of workers, of which each run loses its own."""

    async def check() -> None:
        dispatcher, left = Dispatcher(), losses

        async def serve(name: str) -> None:
            nonlocal left
            tasks: asyncio.Queue[PoolMessage] = asyncio.Queue()

            async def messages():
                nonlocal left
                yield WorkerMessage(hello=WorkerHello(worker=name, ticket=ticket))
                task = (await tasks.get()).task
                if left:
                    left -= 1
                    return
                yield WorkerMessage(result=TaskResult(id=task.id, attempt=task.attempt, payload=b"done"))
                await asyncio.Event().wait()

            while True:
                ticket = dispatcher.launching(name)
                await dispatcher.attach(messages(), tasks.put)

        serving = [asyncio.create_task(serve(f"w-{index}")) for index in range(workers)]
        run = dispatcher.run("job/task", lambda: b"", timeout_s=30.0, setting="a field")
        if losses < MAX_ATTEMPTS:
            result = await run
            assert (result.payload, result.invocation.attempt, len(result.lost)) == (b"done", losses + 1, losses)
        else:
            with pytest.raises(UnavailableError, match=f"of {MAX_ATTEMPTS} workers that ran it, {MAX_ATTEMPTS} died"):
                await run
        for each in serving:
            each.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    asyncio.run(check())
