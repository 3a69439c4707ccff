"""Checks of what is running: the stack in the background, its coordinator, and unfinished jobs that are not running."""

from __future__ import annotations

from collections.abc import Sequence

from marless.app.cli.background import RunningStack
from marless.app.cli.doctor.finding import Finding, fail, ok, warn
from marless.app.cli.runs import Unfinished
from marless.app.client import Info


def stack(noted: RunningStack | None, supervisor: int | None, last_words: str) -> Finding:
    """Check the stack of `marless up`: stack.json, the supervisor's process, and the last supervisor's error."""
    if supervisor is not None:
        if noted and noted.pid == supervisor:
            return ok("stack", f"up: {noted.coordinator}, supervised by process {supervisor}")
        return warn(
            "stack", f"process {supervisor} is starting or stopping it", "run `marless doctor` again in a moment"
        )
    if noted:
        return warn(
            "stack", f"its supervisor, process {noted.pid}, was killed", "`marless up` starts it and its jobs again"
        )
    if last_words:
        return warn("stack", f"it gave up: {last_words}", "fix this, then run `marless up`")
    return ok("stack", "not up; `marless up` starts the services, `marless train` does not need them")


def coordinator(address: str, info: Info | None, reason: str) -> Finding:
    """Check the coordinator that commands use, and the other services as it sees them."""
    if info is None:
        return fail("coordinator", f"{address}: {reason}", "`marless up`, or correct $MARLESS_COORDINATOR")
    silent = [service.name for service in info.services if not service.serving]
    if silent:
        return fail(
            "coordinator", f"{address}: it cannot use {', '.join(silent)}", "their logs say why; they are started again"
        )
    return ok("coordinator", f"{address}: marless {info.version}, run folders in {info.runs}")


def jobs(unfinished: Sequence[Unfinished], *, is_up: bool) -> Finding:
    """Check for unfinished jobs that no coordinator runs."""
    idle = [job for job in unfinished if not job.run_by_somebody]
    if not idle:
        running = len(unfinished)
        return ok("jobs", f"{running} running" if running else "none is unfinished")
    ways = [f"`marless train --resume {job.job}`" for job in idle if job.attached]
    if len(ways) < len(idle):
        ways.append("`marless list` says what they wait for" if is_up else "`marless up`")
    return warn("jobs", f"interrupted: {', '.join(job.job for job in idle)}", "; ".join(ways))
