"""Shell completion of job ids, states and presets."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from marless.core.errors import MarlessError

BUDGET_S = 0.3
"""Seconds within which a coordinator must answer; completion must not make the user wait."""


def job_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Job ids that begin with `incomplete`: the coordinator's, if it answers in time, and those of run folders."""
    runs = Path(context.params.get("runs") or os.environ.get("MARLESS_RUNS") or "runs")
    here = [path.parent.name for path in runs.glob("*/job.json")]
    known = dict.fromkeys([*_asked(context, runs), *sorted(here)])
    return [job for job in known if job.startswith(incomplete)]


def _asked(context: typer.Context, runs: Path) -> list[str]:
    import asyncio

    from marless.app.client import AsyncClient

    async def ask() -> list[str]:
        # Without patience: a coordinator that is not there is asked once.
        client = AsyncClient(context.params.get("coordinator"), runs=runs, contact_s=0.0)
        async with asyncio.timeout(BUDGET_S), client:
            return [job.job for job in await client.list()]

    try:
        return asyncio.run(ask())
    except (MarlessError, TimeoutError):
        return []


def states(incomplete: str) -> list[str]:
    """Job states that begin with `incomplete`, in the same case."""
    from marless.app.client import JobState

    case = str.lower if incomplete.islower() else str.upper
    return [case(state) for state in JobState if state.startswith(incomplete.upper())]


def presets(incomplete: str) -> list[str]:
    """Comma-separated lists of presets that complete the last name of `incomplete`."""
    from marless.jobs.presets import PRESETS

    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{name}" for name in PRESETS if name.startswith(last) and name not in given]
