"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Severity of a finding."""

    ok = "ok"
    warn = "warn"
    """Jobs can run, but not as well as possible, or not all of them."""
    fail = "fail"
    """Jobs cannot run on this machine, or not reliably."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the doctor's report."""

    check: str
    level: Level
    found: str
    advice: str = ""
    """What to do; "" if nothing."""


def ok(check: str, found: str) -> Finding:
    """A finding that needs no action."""
    return Finding(check=check, level=Level.ok, found=found)


def warn(check: str, found: str, advice: str) -> Finding:
    """A finding of something that could be improved."""
    return Finding(check=check, level=Level.warn, found=found, advice=advice)


def fail(check: str, found: str, advice: str) -> Finding:
    """A finding of a problem that must be solved."""
    return Finding(check=check, level=Level.fail, found=found, advice=advice)
