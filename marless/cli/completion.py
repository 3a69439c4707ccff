"""Words that the shell completes."""

from __future__ import annotations

import typer

from marless.errors import MarlessError

BUDGET_S = 0.3
"""Who presses Tab does not wait: after this, there is nothing to offer."""


def job_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the coordinator's jobs that begin so; none if it does not answer at once."""
    import asyncio

    from marless.client import AsyncClient

    async def ask() -> list[str]:
        client = AsyncClient(context.params.get("coordinator"), runs=context.params.get("runs"), contact_s=0.0)
        async with asyncio.timeout(BUDGET_S), client:
            return [job.job for job in await client.list() if job.job.startswith(incomplete)]

    try:
        return asyncio.run(ask())
    except (MarlessError, TimeoutError):
        return []
