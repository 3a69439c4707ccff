"""Checks of the launchers that pools may be given by --launcher: whether each can start workers on this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

from marless.app.cli.doctor.finding import Finding, Level, fail, ok
from marless.core import process_environment
from marless.core.errors import MarlessError, SpecError, told
from marless.fleet.launchers.base import Checked, Condition, WorkerProgram
from marless.fleet.launchers.registry import LAUNCHERS, Choice, launching, parse

CHECK_S = 20.0
"""Seconds that the check of one launcher may take."""
_WORKERS = "services.actor_pool.worker"


def launchers() -> Iterator[Finding]:
    """One finding for each launcher; a problem matters for the one that $MARLESS_LAUNCHER names, or `local`."""
    try:
        chosen = parse(os.environ.get("MARLESS_LAUNCHER", "local"))
    except SpecError as error:
        yield fail("launcher", f"$MARLESS_LAUNCHER: {error}", "correct it, or unset it")
        return
    for name in sorted(LAUNCHERS.names() | {chosen.name}):
        choice = chosen if name == chosen.name else Choice(name)
        yield finding(name, asyncio.run(_condition(choice)), is_chosen=name == chosen.name)


def finding(name: str, condition: Condition, *, is_chosen: bool) -> Finding:
    """What a launcher says about itself; only the chosen one keeps jobs from running."""
    if condition.advice and is_chosen:
        return fail(f"launcher-{name}", condition.found, condition.advice)
    if condition.advice:
        found = f"not chosen, and not usable: {condition.found}"
        return Finding(check=f"launcher-{name}", level=Level.ok, found=found, advice=condition.advice)
    return ok(f"launcher-{name}", condition.found if is_chosen else f"not chosen; {condition.found}")


async def _condition(choice: Choice) -> Condition:
    program = WorkerProgram(_WORKERS, (), process_environment.inherited(os.environ), str, process_environment.ACTOR)
    try:
        async with asyncio.timeout(CHECK_S), launching(choice, program) as launcher:
            if isinstance(launcher, Checked):
                return await launcher.check()
            return Condition("it has no check of its own")
    except TimeoutError:
        return Condition(f"its check took more than {CHECK_S:g} s", "see what it connects to")
    except MarlessError as error:
        found = str(error).removeprefix(f"launcher {choice.name}: ")
        what, _, install = found.rpartition(": ")
        return Condition(what, install) if install.startswith("pip ") else Condition(found, "correct $MARLESS_LAUNCHER")
    except Exception as error:  # noqa: BLE001  # a bug of third parties must not hide the other findings
        return Condition(f"its check failed: {told(error)}", "tell its author")
