"""The figures of scenarios, and those of several together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Figures = Mapping[str, float]
"""Counts, and seconds: their names end with "(s)"."""


def total(every: Sequence[Figures]) -> Figures:
    """Counts added up; of seconds, the longest."""
    names = list(dict.fromkeys(name for figures in every for name in figures))
    joined = {name: [figures[name] for figures in every if name in figures] for name in names}
    return {name: max(values) if name.endswith("(s)") else sum(values) for name, values in joined.items()}
