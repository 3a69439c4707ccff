"""Keeps a group as large as the work of its pool needs: looks at it, decides by `plan`, and makes the calls."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from marless.core.errors import MarlessError, NotFoundError, UnavailableError, told
from marless.core.log import structlog
from marless.fleet.launchers.hosts.pool import Host, Hosts
from marless_ec2 import sentences
from marless_ec2.group import AutoScaling
from marless_ec2.plan import WAITS_TO_END, Load, MachineDemand, Plan, ScalingGroup, plan
from marless_ec2.settings import Ec2Settings

ASKED_S = 12.0
"""Seconds for which a refused worker counts as waiting: its pool asks again after five."""
QUIET_S = 60.0
"""Seconds between two looks at a group that has no machine and needs none."""
LONGEST_S = 120.0
"""Seconds between two attempts at a call that fails again and again, at most."""
SOONEST_S = 1.0
"""Seconds between two looks at least, whatever happens in between."""
CLOSE_S = 10.0
"""Seconds in which a pool that stops gives its machines back; its lease does so otherwise."""
HOOK_S = 240.0
"""Seconds after which a machine that its group ends is let go with its workers; hooks wait for five minutes."""
_log = structlog.get_logger("marless.ec2")


class Calls:
    """Makes calls, in threads; one that fails keeps no other back."""

    def __init__(self) -> None:
        self.errors: list[UnavailableError] = []

    async def make(self, method: Callable[..., object], *given: object, **named: object) -> bool:
        """Make a call; returns whether it succeeded."""
        try:
            await asyncio.to_thread(method, *given, **named)
        except UnavailableError as error:
            self.errors.append(error)
            return False
        return True


def load_of(host: Host) -> Load:
    """What a host does, for a plan."""
    leaving = host.leaving.result() if host.leaving.done() else ""
    return Load(len(host.launches), host.idle_s, leaving, is_due=time.monotonic() >= host.leaves_s)


class Scaling:
    """The size of one group. It does nothing until a worker waits, or a host dials in."""

    def __init__(self, aws: AutoScaling, hosts: Hosts, settings: Ec2Settings) -> None:
        self._aws = aws
        self._hosts = hosts
        self._settings = settings
        self._waiting: dict[str, float] = {}
        """When workers asked for room, by name."""
        self._slots = settings.slots
        self._silent_since_s: dict[str, float] = {}
        self._group: ScalingGroup | None = None
        self._hook = ""
        self._leased_s = float("-inf")
        self._trouble = ""
        """What the last look or call failed with."""
        self._failures = 0
        self._not_launched = ""
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def ask(self, worker: str) -> str:
        """Note that a worker waits for room; returns why it must."""
        first = not self._waiting
        self._waiting[worker] = time.monotonic()
        self.start()
        if first:
            self._wake.set()
        return self._why()

    def found_room(self, worker: str) -> None:
        """Note that a worker waits no longer."""
        self._waiting.pop(worker, None)

    def start(self) -> None:
        """Begin to look after the group."""
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    def changed(self) -> None:
        """Look soon if a host has become free that is leaving, or has got work and is not protected."""
        self.start()
        open_to_end = {each.id for each in self._group.serving if not each.is_protected} if self._group else set()
        for host in self._hosts.connected.values():
            if host.name in open_to_end if host.launches else host.leaving.done():
                self._wake.set()

    @property
    def machines(self) -> Collection[str]:
        """The machines that the group had when it was looked at last."""
        return tuple(each.id for each in self._group.instances) if self._group else ()

    async def close(self) -> None:
        """Give all machines back, unless it has never begun."""
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._release_machines()
        except (MarlessError, TimeoutError) as error:
            _log.error("machines.left", group=self._settings.group, reason=str(error), until_s=self._settings.lease_s)

    async def _release_machines(self) -> None:
        group = await asyncio.to_thread(self._aws.describe)
        # Their group would keep protected machines, whatever capacity it is told to have.
        if protected := [each.id for each in group.serving if each.is_protected]:
            await asyncio.to_thread(self._aws.protect, protected, protected=False)
        if group.desired > group.least:
            await asyncio.to_thread(self._aws.want, group.least)
            _log.info("machines.given_back", group=group.name, machines=len(group.serving))

    async def _run(self) -> None:
        while True:
            pause_s = await self._look()
            self._wake.clear()
            # After a failure nothing shortens the pause, because AWS may have had too many calls.
            await asyncio.sleep(pause_s if self._failures else min(SOONEST_S, pause_s))
            if not self._failures:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()

    async def _look(self) -> float:
        """Look at the group, and do what is to be done; returns the seconds until the next look."""
        try:
            self._group = group = await asyncio.to_thread(self._aws.describe)
            if unfit := sentences.unfit(group, self._settings):
                raise UnavailableError(unfit)
            await self._carry_out(group, self._plan(group))
        except (UnavailableError, NotFoundError) as error:
            return self._failed(str(error))
        except Exception as error:  # noqa: BLE001  # a bug here must not leave machines running unseen
            _log.exception("group.not_seen")
            return self._failed(f"{self._settings.where} cannot be looked after: {told(error)}")
        self._trouble, self._failures = "", 0
        is_quiet = not (self._waiting or group.instances or group.desired)
        return max(QUIET_S, self._settings.poll_s) if is_quiet else self._settings.poll_s

    def _failed(self, why: str) -> float:
        if why != self._trouble:
            _log.warning("group.not_scaled", reason=why)
        self._trouble = why
        self._failures += 1
        longest_s: float = min(LONGEST_S, self._settings.poll_s * 2 ** min(self._failures, 6))
        return random.uniform(0.5, 1.0) * longest_s  # pools that failed together ask again one by one

    def _plan(self, group: ScalingGroup) -> Plan:
        now_s = time.monotonic()
        self._waiting = {name: asked_s for name, asked_s in self._waiting.items() if now_s - asked_s < ASKED_S}
        hosts = self._hosts.connected
        silent = [each.id for each in group.serving if each.id not in hosts]
        self._silent_since_s = {name: self._silent_since_s.get(name, now_s) for name in silent}
        if hosts and not self._settings.slots:
            self._slots = round(sum(host.slots for host in hosts.values()) / len(hosts))
        for each in group.instances:
            if each.state == WAITS_TO_END:
                self._hosts.announce_end(each.id, "its group ends it", HOOK_S)
        without_room = max(0, len(self._waiting) - self._hosts.free)  # the others find room when they ask again
        return plan(
            group,
            {name: load_of(host) for name, host in hosts.items()},
            {name: now_s - since_s for name, since_s in self._silent_since_s.items()},
            MachineDemand(without_room, self._slots),
            self._settings,
        )

    async def _carry_out(self, group: ScalingGroup, to_do: Plan) -> None:
        """Make the calls; raises the first error after all of them."""
        calls = Calls()
        if group.desired or group.instances or to_do.desired:
            await self._renew_lease(calls)
        leased = not calls.errors  # without a lease, machines might cost for ever
        if leased and to_do.desired is not None and await calls.make(self._aws.want, to_do.desired):
            _log.info("group.resized", group=group.name, machines=to_do.desired, before=group.desired)
        if to_do.protect:
            await calls.make(self._aws.protect, to_do.protect, protected=True)
        if to_do.unprotect:
            await calls.make(self._aws.protect, to_do.unprotect, protected=False)
        for name, why in to_do.end.items():
            if await calls.make(self._aws.end, name):
                _log.info("machine.ended", machine=name, why=why)
        if to_do.complete:
            await self._complete(to_do.complete, calls)
        if calls.errors:
            raise calls.errors[0]
        lacks = group.desired > len(group.serving)
        self._not_launched = await asyncio.to_thread(self._aws.failure) if lacks else ""

    async def _renew_lease(self, calls: Calls) -> None:
        # At a third of its time, so that it does not run out because a call or two fail.
        if time.monotonic() - self._leased_s >= self._settings.lease_s / 3 and await calls.make(self._aws.lease):
            self._leased_s = time.monotonic()

    async def _complete(self, machines: Sequence[str], calls: Calls) -> None:
        if not self._hook:
            self._hook = await asyncio.to_thread(self._aws.hook)
        for name in machines if self._hook else ():
            if await calls.make(self._aws.complete, self._hook, name):
                _log.info("machine.let_go", machine=name, hook=self._hook)

    def _why(self) -> str:
        """Why a worker waits."""
        if self._trouble or self._not_launched or self._group is None:
            return self._trouble or self._not_launched or f"{self._settings.where} is looked at"
        return sentences.waiting(self._group, self._settings, len(self._silent_since_s))
