"""The contenders of a frontier: static settings of a job and presets, each a variant with the same env steps; and the
goal, the return that they are asked to reach, and when a run first reaches it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from marless.core.errors import SpecError
from marless.cost.comparison.runs import Variant
from marless.cost.frontier.progress import RunProgress
from marless.jobs import spec as specs
from marless.jobs.presets import Preset, own_settings, training_key
from marless.jobs.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class StaticSetting:
    """What a user could have set by hand: the same actors, groups and schedule from the first round to the last."""

    actors: int
    groups: str
    """`independent` or `shared`, as in `sharing.groups`."""
    schedule: str

    @property
    def name(self) -> str:
        """The setting as tables show it: "16 shared pipelined"."""
        return f"{self.actors} {self.groups} {self.schedule}"

    @property
    def label(self) -> str:
        """The part of its runs' ids, which does not depend on the rest of the grid."""
        return re.sub("[^A-Za-z0-9]+", "-", self.name)

    def variant(self, job: JobSpec) -> Variant:
        """The job with this setting; raises SpecError, naming the setting, if the result is invalid."""
        sections: dict[str, dict[str, Any]] = {  # Any: what a job file can hold
            "actors": {"count": self.actors},
            "scaling": {"name": "fixed", "within_budget": False, "deadline_s": None},
            "sharing": {"name": "fixed", "groups": self.groups},
            "schedule": {"name": self.schedule},
        }
        spec = Preset(name=self.name, about="", accounting="billed", sections=sections, noun="setting").applied(job)
        return Variant(name=self.name, label=self.label, counts="billed", settings=(), spec=spec)


def settings(actors: Sequence[int], groups: Sequence[str], schedules: Sequence[str]) -> tuple[StaticSetting, ...]:
    """Every combination, the actors in ascending order; what is named twice counts once."""
    axes = sorted(set(actors)), dict.fromkeys(groups), dict.fromkeys(schedules)
    return tuple(
        StaticSetting(actors=count, groups=group, schedule=schedule)
        for count, group, schedule in itertools.product(*axes)
    )


def usual_actors(most: int) -> tuple[int, ...]:
    """Numbers of actors where none are given: 1, 4, 16, … below `most`, and `most`."""
    return (*itertools.takewhile(lambda count: count < most, (4**power for power in itertools.count())), most)


def equal_job(job: JobSpec) -> JobSpec:
    """The job that ends after its env steps, and evaluates at its end alone.

    The env steps are `stop.env_steps`, or else those of `stop.rounds` rounds with `actors.count` actors. Other stop
    rules are left out, because they would end some runs earlier than others. Functions are charged by CPU seconds,
    unless the job sets `bill.time`: so a run is not dearer for running beside another. Raises SpecError for a job
    without a length.
    """
    stop, actors = job.stop, job.actors
    if (steps := stop.env_steps) is None:
        if stop.rounds is None:
            raise SpecError("a frontier compares runs with equal env steps: set stop.env_steps or stop.rounds")
        steps = stop.rounds * actors.count * actors.envs * actors.steps
    document = job.model_dump(mode="json", by_alias=True)
    document["stop"], document["evaluation"]["every"] = {"env_steps": steps}, 0
    if "time" not in job.bill.model_fields_set:
        document["bill"]["time"] = "cpu"
    return specs.parse(document, "job")


def preset_variant(job: JobSpec, preset: Preset) -> Variant:
    """The job with a preset applied; raises SpecError, naming the preset, if the result is invalid.

    If it trains as a static setting does, both have the same label, and so the same runs.
    """
    spec = preset.applied(job)
    label = preset.name
    if isinstance(spec.sharing.groups, str):
        static = StaticSetting(actors=spec.actors.count, groups=spec.sharing.groups, schedule=spec.schedule.name)
        if training_key(static.variant(job).spec) == training_key(spec):
            label = static.label
    return Variant(
        name=preset.name,
        label=label,
        about=preset.about,
        counts=preset.accounting,
        settings=own_settings(spec),
        spec=spec,
    )


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
