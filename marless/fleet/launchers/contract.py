"""Contract test for launchers: checks that a launcher satisfies the protocol of `marless.fleet.launchers.base`.

For marless's tests and those of third parties; see docs/extending/launcher.md.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from marless.core import process_environment
from marless.core.errors import require
from marless.fleet.dispatch import Dispatcher
from marless.fleet.launchers.base import Launch, Launcher, LaunchOrder, LaunchOutcome, WorkerProgram
from marless.fleet.launchers.hosts.pool import attach
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.rpc.v1 import common_pb2, hosts_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceServicer, add_ActorPoolServiceServicer_to_server

Make = Callable[[WorkerProgram], Launcher]
ENDS_S = 10.0
"""Seconds within which a worker that is killed must be gone."""


async def check_launcher(make: Make, module: str, *, listen: str = "") -> None:
    """Have a launcher start and end actor workers; raises AssertionError, saying which requirement failed.

    Args:
        make: Makes the launcher of a program.
        module: The workers' module, "marless.services.actor_pool.worker".
        listen: The address at which the pool listens, if workers do not run on this machine; its host is dialled.
    """
    async with AsyncExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="marless-"))
        dispatcher = Dispatcher()
        made: list[Launcher] = []
        pool = _pool(dispatcher, made, listen or f"unix:{place}/pool.sock")
        address = await stack.enter_async_context(pool)
        token = f"token-{secrets.token_hex(16)}"
        arguments = ["--pool", address, "--param-store", address]
        settings = process_environment.ACTOR
        program = WorkerProgram(
            module, arguments, process_environment.inherited(os.environ) | settings, lambda: token, settings
        )
        launcher = make(program)
        made.append(launcher)
        stack.push_async_callback(launcher.close)
        await _check(launcher, dispatcher, token)


async def _check(launcher: Launcher, dispatcher: Dispatcher, token: str) -> None:
    room = launcher.capacity()
    require(room is None or room >= 0, f"capacity() is {room}: give a number of workers, or None")
    orders = [LaunchOrder(name, dispatcher.launching(name)) for name in ("first", "second", "third")]
    answers = await launcher.launch(orders)
    _require_accepted(orders, answers)
    await _within(
        launcher.connect_s, dispatcher.connected.present([order.worker for order in orders]), "did not connect"
    )
    _require_hidden([token, *(order.ticket for order in orders)])
    await _released(launcher, dispatcher, "first")
    await _killed(launcher, dispatcher, "second")
    await _within(ENDS_S, launcher.drain("unheard-of", 0.0), "drain() of a name that was never ordered did not return")
    again = [LaunchOrder("first", dispatcher.launching("first"))]
    _require_accepted(again, await launcher.launch(again))
    await _within(
        launcher.connect_s, dispatcher.connected.present(["first"]), "did not connect when it was ordered again"
    )
    for _ in range(2):
        await _within(2 * ENDS_S, launcher.close(), "close() did not return")
    for name in ("first", "third"):
        await _within(ENDS_S, dispatcher.connected.absent(name), f"{name} was left running by close()")


async def _released(launcher: Launcher, dispatcher: Dispatcher, name: str) -> None:
    """A worker that its pool releases exits by itself."""
    observed = asyncio.create_task(launcher.observe(name))
    await asyncio.sleep(0)
    require(not observed.done(), f"observe() says that {name} has ended, and it runs")
    await dispatcher.drain(name)
    await _within(2 * ENDS_S, launcher.drain(name, ENDS_S), "drain() of a released worker did not return")
    await _within(ENDS_S, observed, "observe() did not return after its worker had ended")
    require(bool(observed.result()), "observe() says nothing about how a worker ended")
    await _within(ENDS_S, dispatcher.connected.absent(name), "a released worker is still connected")


async def _killed(launcher: Launcher, dispatcher: Dispatcher, name: str) -> None:
    """A worker that was not released does not exit by itself, and is killed."""
    observed = asyncio.create_task(launcher.observe(name))
    await _within(ENDS_S, launcher.drain(name, 0.0), "drain() without grace did not return")
    await _within(ENDS_S, observed, "observe() did not return after its worker was killed")
    await _within(ENDS_S, dispatcher.connected.absent(name), "drain() without grace left its worker running")
    require("third" in dispatcher.connected, "drain() of one worker ended another")


@asynccontextmanager
async def _pool(dispatcher: Dispatcher, made: Sequence[Launcher], listen: str) -> AsyncIterator[str]:
    """A pool that only admits workers, and hosts for its launcher once that is made; yields the address to dial."""

    class Servicer(ActorPoolServiceServicer):
        async def Work(  # type: ignore[override]  # noqa: N802  # writes to the context instead of yielding
            self,
            request_iterator: AsyncIterator[common_pb2.WorkerMessage],
            context: Any,  # Any: of every method
        ) -> None:
            await dispatcher.attach(request_iterator, context.write)

        async def Host(  # type: ignore[override]  # noqa: N802
            self,
            request_iterator: AsyncIterator[hosts_pb2.HostMessage],
            context: Any,  # Any: of every method
        ) -> None:
            await attach(made[-1] if made else None, request_iterator, context.write)

    @asynccontextmanager
    async def build(_address: str) -> AsyncIterator[ServedService]:
        servicer = Servicer()  # type: ignore[abstract]  # the other methods answer that they are not implemented
        yield ServedService(partial(add_ActorPoolServiceServicer_to_server, servicer))

    async with serving(ServerOptions(listen, Security()), build) as address:
        yield address


def _require_accepted(orders: Sequence[LaunchOrder], answers: Sequence[Launch]) -> None:
    require(len(answers) == len(orders), f"launch() gave {len(answers)} answers to {len(orders)} orders")
    for order, answer in zip(orders, answers, strict=True):
        require(answer.outcome is LaunchOutcome.ACCEPTED, f"{order.worker} was not accepted: {answer.reason}")


def _require_hidden(hidden: Sequence[str]) -> None:
    """No secret is on a command line or in an environment of this machine."""
    for process in Path("/proc").iterdir():
        for name in ("cmdline", "environ"):
            try:
                shown = (process / name).read_bytes()
            except OSError:
                continue  # no process, or one of another user
            found = any(secret.encode() in shown for secret in hidden)
            require(not found, f"process {process.name} shows a ticket or a token in its {name}")


async def _within(limit_s: float, awaited: Any, otherwise: str) -> None:  # Any: a coroutine or a task of any result
    try:
        async with asyncio.timeout(limit_s):
            await awaited
    except TimeoutError:
        raise AssertionError(f"{otherwise} (within {limit_s:g} s)") from None
