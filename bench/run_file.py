"""Training runs of `bench.algorithms`: what is asked for, what came of it, and the file that keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import Row
from bench.kept_rows import KeptRows
from bench.systems import Curve, Point
from bench.task import Rates


@dataclass(frozen=True)
class Request:
    """One training run."""

    game: str
    algorithm: str
    seed: int
    env_steps: int
    timeout_s: float
    rates: Rates | None = None
    """None: the system's own settings, `bench.task.OWN` in marless."""
    alike: bool = False
    """Whether marless has `bench.task.ALIKE`, too."""


@dataclass(frozen=True)
class Outcome:
    """The result of one training run."""

    curve: Curve
    random: float | None = None
    """Return of the random baseline, if the run measured it."""
    rates: Rates | None = None
    """Those of its request."""
    sides: Mapping[str, float] = field(default_factory=dict)
    """In competitive games, by agent class: return against random opponents, minus that of a random policy."""

    @property
    def final(self) -> float:
        """The last greedy return per agent; raises ValueError if there was no evaluation."""
        greedy = [point.greedy_return for point in self.curve if point.greedy_return is not None]
        if not greedy:
            raise ValueError("a run without an evaluation has no final return")
        return greedy[-1]


class RunFile:
    """Finished runs by system and request."""

    def __init__(self, path: Path | None, about: Row) -> None:
        """See `KeptRows`. Raises ValueError for damaged lines."""
        self._rows = KeptRows(path, about)

    def get(self, system: str, request: Request) -> Outcome | None:
        """The outcome of this run, if it is known."""
        key = _key(system, request)
        row = self._rows.get(key)
        return None if row is None else _outcome(key["rates"], row)

    def put(self, system: str, request: Request, outcome: Outcome) -> None:
        """Keep the outcome of a run."""
        curve = [[point.env_steps, round(point.wall_s, 2), point.greedy_return] for point in outcome.curve]
        row = {"random": outcome.random, "sides": dict(outcome.sides), "curve": curve}
        self._rows.put(_key(system, request), row)


def _key(system: str, request: Request) -> Row:
    """What identifies a run: all that its result depends on, so not its time limit."""
    found: Row = {
        "system": system,
        "game": request.game,
        "algorithm": request.algorithm,
        "seed": request.seed,
        "env_steps": request.env_steps,
        "rates": vars(request.rates) if request.rates else None,
    }
    return found | ({"alike": True} if request.alike and system == "marless" else {})


def _outcome(rates: Row | None, row: Row) -> Outcome:
    return Outcome(
        tuple(Point(*point) for point in row["curve"]),
        row["random"],
        Rates(**rates) if rates else None,
        row["sides"],
    )
