"""Training runs of `bench.algorithms`: what is asked for, what came of it, and the file that keeps it.

A comparison takes many hours. The file has one finished run a line, so that an interrupted comparison goes on with the
runs that are missing. Returns after equally many env steps do not depend on the machine; times do, so each line names
it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import Row
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
    """Finished runs by system and request, in memory and, if a path is given, in a file of JSON lines."""

    def __init__(self, path: Path | None, about: Row) -> None:
        """`about` describes this machine; it is written beside each new run. Raises ValueError for damaged lines."""
        self._path = path
        self._about = about
        self._found: dict[str, Outcome] = {}
        if path and path.exists():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    row = json.loads(line)
                    self._found[json.dumps(row["run"])] = _outcome(row)
                except (ValueError, KeyError, TypeError) as error:
                    raise ValueError(f"{path}, line {number} is no run ({error!r}): delete the line") from None

    def get(self, system: str, request: Request) -> Outcome | None:
        """The outcome of this run, if it is known."""
        return self._found.get(json.dumps(_key(system, request)))

    def put(self, system: str, request: Request, outcome: Outcome) -> None:
        """Keep the outcome of a run."""
        key = _key(system, request)
        self._found[json.dumps(key)] = outcome
        if self._path is None:
            return
        curve = [[point.env_steps, round(point.wall_s, 2), point.greedy_return] for point in outcome.curve]
        row = {"run": key, "random": outcome.random, "sides": dict(outcome.sides), "curve": curve}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, "machine": self._about}) + "\n")


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


def _outcome(row: Row) -> Outcome:
    rates = row["run"]["rates"]
    return Outcome(
        tuple(Point(*point) for point in row["curve"]),
        row["random"],
        Rates(**rates) if rates else None,
        row["sides"],
    )
