"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How grave a finding is."""

    ok = "ok"
    warn = "warn"
    """Works, but not as well as it could, or not for everything."""
    fail = "fail"
    """Jobs cannot run on this machine, or not reliably."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the doctor's report."""

    check: str
    level: Level
    found: str
    advice: str = ""
    """What to do; "" if all is well."""


def ok(check: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(check=check, level=Level.ok, found=found)


def warn(check: str, found: str, advice: str) -> Finding:
    """Something could be better."""
    return Finding(check=check, level=Level.warn, found=found, advice=advice)


def fail(check: str, found: str, advice: str) -> Finding:
    """Something must be done."""
    return Finding(check=check, level=Level.fail, found=found, advice=advice)
