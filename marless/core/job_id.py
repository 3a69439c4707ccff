"""Job ids: which names are valid. They name run folders and Redis keys."""

from __future__ import annotations

import re

from marless.core.errors import SpecError, shown

_VALID = re.compile(r"[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?")


def is_id(job_id: str) -> bool:
    """True if this is a valid job id."""
    return _VALID.fullmatch(job_id) is not None


def check_id(job_id: str) -> None:
    """Raises SpecError unless this is a valid job id."""
    if not is_id(job_id):
        raise SpecError(f"job id {shown(job_id)}: use lower-case letters, digits and dashes, at most 100")
