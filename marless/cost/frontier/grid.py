"""The grid of a frontier: static settings of a job, and presets, each a variant with the same env steps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marless.core.errors import SpecError
from marless.cost.comparison.runs import Variant
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
