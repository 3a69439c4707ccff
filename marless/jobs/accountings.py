"""The accountings: the ways in which the cost of a job is counted."""

from __future__ import annotations

from typing import Literal, TypeAlias

Accounting: TypeAlias = Literal["billed", "paper", "serverful", "machines"]
ACCOUNTINGS: tuple[Accounting, ...] = ("paper", "billed", "serverful")
"""Those that follow from the functions alone, so that they can be estimated, replayed and compared."""
ALL: tuple[Accounting, ...] = (*ACCOUNTINGS, "machines")
