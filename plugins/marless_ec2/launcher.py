"""The pool's side of the launcher `ec2`: workers on the machines of an Auto Scaling group."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from marless.core.errors import NotFoundError, UnavailableError
from marless.core.machine import Machine
from marless.fleet.launchers.base import Condition, Launch, Launcher, LaunchOrder, LaunchOutcome, Options, WorkerProgram
from marless.fleet.launchers.hosts.pool import Hosts, Messages, Send
from marless_ec2 import sentences
from marless_ec2.group import AutoScaling
from marless_ec2.scaling import Scaling
from marless_ec2.settings import Ec2Settings, check_installed, read
from marless_ec2.spot import SpotPrices


class Ec2Launcher:
    """Starts workers on machines that dial in, and has its group get and end machines."""

    def __init__(self, program: WorkerProgram, settings: Ec2Settings) -> None:
        self.connect_s = settings.connect_s
        self._settings = settings
        self._aws = AutoScaling(settings)
        self._prices = SpotPrices(settings)
        self._hosts = Hosts(program, self._changed, settings.slots)
        self._scaling = Scaling(self._aws, self._hosts, settings)

    def capacity(self) -> int:
        """Room on the machines that are connected; further ones come when workers wait."""
        return self._hosts.free

    async def launch(self, orders: Sequence[LaunchOrder]) -> Sequence[Launch]:
        """Start workers where there is room; for others the group grows, and the pool orders them again."""
        return await asyncio.gather(*(self._launch(order) for order in orders))

    async def observe(self, worker: str) -> str:
        """Wait for the end of its process, or its machine."""
        return await self._hosts.observe(worker)

    async def leaving(self, worker: str) -> str:
        """Wait until its machine is about to end."""
        return await self._hosts.leaving(worker)

    async def drain(self, worker: str, grace_s: float) -> None:
        """End its process, and all that it has started."""
        await self._hosts.drain(worker, grace_s)

    async def close(self) -> None:
        """End all workers, and all machines."""
        await self._prices.close()
        await self._hosts.close()
        await self._scaling.close()

    async def attach(self, messages: Messages, send: Send) -> None:
        """Serve the stream of a machine of the group."""
        await self._hosts.attach(messages, send)

    def machines(self) -> Collection[str]:
        """The machines of the group, as it was seen last: with workers, without, starting, or ending."""
        return self._scaling.machines

    def usd_h(self, machine: Machine) -> float | None:
        """The spot price of its type in its zone; None for machines of other markets."""
        return self._prices.usd_h(machine)

    async def check(self) -> Condition:
        """Look at the group; changes nothing."""
        try:
            group = await asyncio.to_thread(self._aws.describe)
            hook = await asyncio.to_thread(self._aws.hook)
        except (UnavailableError, NotFoundError) as error:
            found, _, advice = str(error).partition(": ")
            return Condition(found, advice or "see the group")
        if unfit := sentences.unfit(group, self._settings):
            found, _, advice = unfit.rpartition(": ")
            return Condition(found, advice)
        most = f"{len(group.serving)} of at most {group.most} machines run"
        ends = f"ends are announced by its hook {hook}" if hook else "it has no hook that announces ends"
        return Condition(f"{self._settings.where}: {most}; {ends}")

    async def _launch(self, order: LaunchOrder) -> Launch:
        if not self._hosts.free:
            return Launch(LaunchOutcome.REFUSED, self._scaling.ask(order.worker))
        self._scaling.found_room(order.worker)  # before it starts, which may take seconds
        return await self._hosts.start(order)

    def _changed(self) -> None:
        self._scaling.changed()
        self._prices.learn(host.machine for host in self._hosts.connected.values())


def make(program: WorkerProgram, options: Options) -> Launcher:
    """The launcher `ec2`; its options are those of `marless_ec2.settings.Ec2Settings`."""
    check_installed()
    return Ec2Launcher(program, read(program.module, options))
