"""The idempotency keys of versions: by equal keys, the parameter store knows that a write is repeated."""

from __future__ import annotations


def request_id(job: str, what: int | str, policy: str) -> str:
    """The key of a policy's next version; `what` is the round's number, or "init" for the job's first versions."""
    return f"{job}/{what}/{policy}"
