"""Plans the runs of a comparison: every preset with every seed; presets that train identically share a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from marless.core.errors import SpecError
from marless.core.limits import check_id
from marless.jobs.presets import PRESETS, Preset, training_key
from marless.jobs.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run of a comparison."""

    id: str
    """Job id, and name of its run folder."""
    seed: int
    spec: JobSpec
    presets: tuple[str, ...]
    """Names of the presets that share this run."""


def jobs(job: JobSpec, presets: Sequence[Preset]) -> dict[str, JobSpec]:
    """The job with each preset applied, by name; raises SpecError, naming the preset, if the result is invalid."""
    return {preset.name: preset.applied(job) for preset in presets}


def runs(job: JobSpec, presets: Sequence[Preset], seeds: int) -> tuple[Run, ...]:
    """The runs to make, seed by seed, so that an interrupted comparison has complete pairs.

    Seeds count up from the job's and are the same for all presets. The order of presets rotates with the seed, so that
    none benefits from its position. Ids do not depend on which other presets are compared.
    """
    found: list[Run] = []
    specs = jobs(job, presets)
    labels = {training_key(spec): _label(job, name, spec) for name, spec in specs.items()}
    for offset in range(seeds):
        seed = job.seed + offset
        turn = offset % len(labels)
        for key, label in (*list(labels.items())[turn:], *list(labels.items())[:turn]):
            names = tuple(name for name, spec in specs.items() if training_key(spec) == key)
            run_id = f"{job.name}-{label}-seed{seed}"
            check_id(run_id)
            found.append(Run(id=run_id, seed=seed, spec=_seeded(specs[names[0]], seed), presets=names))
    return tuple(found)


def _seeded(spec: JobSpec, seed: int) -> JobSpec:
    return spec.model_copy(update={"seed": seed})


def _label(job: JobSpec, name: str, spec: JobSpec) -> str:
    """The name of the first built-in preset that trains identically, compared or not; else the preset's own name."""
    for ours in PRESETS.values():
        with suppress(SpecError):
            if training_key(ours.applied(job)) == training_key(spec):
                return ours.name
    return name
