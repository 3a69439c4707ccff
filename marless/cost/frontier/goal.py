"""The goal of a frontier: the return that settings are asked to reach, and when a run first reaches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from marless.core.errors import SpecError
from marless.cost.frontier.grid import StaticSetting
from marless.cost.frontier.progress import RunProgress

SHARE = 0.9
"""Where the goal lies between the random policy and the best static setting, unless it is given."""


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """A finished run of a contender."""

    run: str
    """Its job id."""
    seed: int
    progress: RunProgress
    random: float
    """Return of the random policy, per agent."""
    greedy: float
    """Greedy return at the end, per agent."""
    actors: float
    """Mean over rounds."""
    waiting: float = 0.0
    """Seconds that actors waited while they ran, as a fraction of their CPU seconds; see `marless.jobs.usage`."""

    def arrival(self, goal: float) -> int | None:
        """Index of the first round at whose end the smoothed return is at least `goal`; None if there is none."""
        returns = enumerate(self.progress.returns)
        return next((index for index, value in returns if value is not None and value >= goal), None)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A static setting or a preset, with its runs over seeds."""

    name: str
    about: str = ""
    static: StaticSetting | None
    """None for a preset."""
    runs: tuple[SeedRun, ...]
    """In the order of seeds."""
    failed: tuple[str, ...] = ()
    """Ids of runs that did not finish."""

    @property
    def complete(self) -> bool:
        """True if every run has finished and has a return at its end."""
        return not self.failed and bool(self.finals) and len(self.finals) == len(self.runs)

    @property
    def finals(self) -> list[float]:
        """The smoothed return at the end of each run that has one."""
        found = (each.progress.final for each in self.runs)
        return [value for value in found if value is not None]

    def reached(self, goal: float) -> int:
        """Number of seeds that reach the goal."""
        return sum(each.arrival(goal) is not None for each in self.runs)

    def arrivals(self, goal: float) -> list[int] | None:
        """Index of the round that reaches the goal, for each seed; None unless all have finished and reach it."""
        found = [index for each in self.runs if (index := each.arrival(goal)) is not None]
        return found if self.complete and len(found) == len(self.runs) else None


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The return to reach, and where it comes from."""

    value: float
    random: float | None = None
    """Return of the random policy; None if the goal was given, as for all that follow."""
    best: str | None = None
    """The static setting with the best mean final return."""
    best_return: float | None = None

    @property
    def rule(self) -> str:
        """The goal in one sentence."""
        if self.random is None:
            return f"Goal: a return of {self.value:.4g}, as given with --to."
        return (
            f"Goal: a return of {self.value:.4g}, nine tenths of the way from the random policy's ({self.random:.4g}) "
            f"to the best static setting's mean final return ({self.best_return:.4g}, {self.best})."
        )


def goal_of(contenders: Sequence[Contender]) -> Goal:
    """The goal at `SHARE` of the way from the random policy to the best static setting all of whose runs finished.

    The random policy's return is the mean over all runs, each of which measures it.

    Raises SpecError if no static setting has finished, or none ends above the random policy.
    """
    static = [each for each in contenders if each.static and each.complete]
    if not static:
        raise SpecError("no static setting has finished with every seed, so no goal follows; give one with --to RETURN")
    best = max(static, key=lambda each: fmean(each.finals))
    top, random = fmean(best.finals), fmean(run.random for each in contenders for run in each.runs)
    if top <= random:
        raise SpecError(
            f"no static setting ends above the random policy ({random:.4g}; the best, {best.name}: {top:.4g}), so no "
            "goal follows; train for longer, or give a goal with --to RETURN"
        )
    return Goal(value=random + SHARE * (top - random), random=random, best=best.name, best_return=top)
