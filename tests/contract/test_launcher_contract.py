"""Our launcher passes the contract test, which sees each requirement that a launcher may miss."""

import asyncio
import sys

import pytest

from marless.fleet.launchers.base import ACCEPTED, Launch, LaunchOutcome
from marless.fleet.launchers.contract import check_launcher
from marless.fleet.launchers.local import LocalLauncher

MODULE = "marless.services.actor_pool.worker"


async def test_the_local_launcher_passes(templates):
    await check_launcher(lambda program: LocalLauncher(program, shared=templates.actors), MODULE)


class Leaves(LocalLauncher):
    async def close(self):
        pass


class Forgets(LocalLauncher):
    async def launch(self, orders):
        return (await super().launch(orders))[1:]


class Refuses(LocalLauncher):
    async def launch(self, orders):
        return [Launch(LaunchOutcome.REFUSED, "no room") for _ in orders]


class Pretends(LocalLauncher):
    connect_s = 0.1

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.connect_s = 0.1

    async def launch(self, orders):
        return [ACCEPTED for _ in orders]


class EndsAll(LocalLauncher):
    async def drain(self, worker, grace_s):
        for each in ("first", "second", "third"):
            await super().drain(each, grace_s)


class Tells(LocalLauncher):
    """Puts the ticket on the command line of a process."""

    async def launch(self, orders):
        command = [sys.executable, "-c", "input()", orders[0].ticket]
        self.telling = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        return await super().launch(orders)

    async def close(self):
        await super().close()
        self.telling.stdin.close()
        await self.telling.wait()


class SaysNothing(LocalLauncher):
    async def observe(self, worker):
        return ""


@pytest.mark.parametrize(
    ("launcher", "said"),
    [
        (Leaves, "was left running by close"),
        (Forgets, "gave 2 answers to 3 orders"),
        (Refuses, "first was not accepted: no room"),
        (Pretends, "did not connect"),
        (EndsAll, "ended another|released worker"),
        (Tells, "shows a ticket or a token in its cmdline"),
        (SaysNothing, "says that first has ended"),
    ],
)
async def test_a_launcher_that_misses_a_requirement_is_seen(launcher, said, templates, monkeypatch):
    monkeypatch.setattr("marless.fleet.launchers.contract.ENDS_S", 2.0)
    made = []

    def make(program):
        made.append(launcher(program, shared=templates.actors))
        return made[0]

    with pytest.raises(AssertionError, match=said):
        await check_launcher(make, MODULE)
    await LocalLauncher.close(made[0])
