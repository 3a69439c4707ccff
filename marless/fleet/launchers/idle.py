"""A module of workers that exit at once, by which a launcher can check that it can start some."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Do nothing."""
