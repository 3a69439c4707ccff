"""Controls of a comparison: what a variant that decides must beat, before what it saves is credited to its decisions.

Each control has the variant's settings but for one thing, and is paired with it by seed:

- `mean`: in every round as many actors as the variant had on average over rounds and seeds;
- `shuffled`: the numbers of actors of its run with the same seed, in shuffled order;
- `final`: the groups in which its run with the same seed ended, from the first round on;
- `placebo`: random numbers in place of the signal that its scaling policy reads, log-normal with the median and the
  standard deviation of logarithms of all that its runs measured (see `marless.jobs.scaling.placebo`).

The first two and the last need a variant that decides the number of actors, `final` one that decides groups.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import Any, Literal

from marless.core.errors import SpecError
from marless.core.limits import check_id
from marless.cost.comparison.runs import Run, Variant
from marless.jobs.presets import Preset, training_key
from marless.jobs.prices import Accounting
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import LARGEST, METRICS, SCALING_POLICIES
from marless.jobs.spec import JobSpec

ControlKind = Literal["mean", "shuffled", "final", "placebo"]
_UNDECIDED = ("fixed", "max", "given")
"""Scaling policies that decide nothing."""
_DIGITS = 4
"""Significant digits of a placebo's distribution."""
_DIGEST = 6
_Runs = Mapping[int, Sequence[RoundRecord]]
"""Seed → records of the variant's run."""
_Changes = Mapping[str, Mapping[str, Any]]  # Any: what a job file can hold
"""Section of a job → fields that a control sets there."""
_Plan = tuple[str, Mapping[int, _Changes]]
"""What a control has in place of the variant's decisions, and what it changes, by seed; or why it cannot be had, and
nothing."""


@dataclass(frozen=True, kw_only=True)
class Control:
    """One control of a variant, over the seeds of the variant's runs."""

    name: str
    """As tables show it: "marless~mean"."""
    kind: ControlKind
    of: str
    """Name of the variant."""
    about: str
    """What it has in place of the variant's decisions: "40 actors in every round"."""
    counts: Accounting
    """The variant's."""
    specs: Mapping[int, JobSpec]
    """By seed."""
    labels: Mapping[int, str]
    """By seed: part of its run's id. It names the variant and what the control has in place of its decisions."""

    @property
    def spec(self) -> JobSpec:
        """The job of the first seed."""
        return next(iter(self.specs.values()))


def kinds_of(spec: JobSpec) -> tuple[ControlKind, ...]:
    """The controls that make sense for a job; none if it decides nothing."""
    found: list[ControlKind] = []
    scales = spec.scaling.name not in _UNDECIDED
    if scales:
        found += ["mean", "shuffled"]
    if spec.sharing.name != "fixed":
        found.append("final")
    if scales and _metric(spec) and spec.scaling.placebo is None:
        found.append("placebo")
    return tuple(found)


def expected_runs(variants: Sequence[Variant], seeds: int) -> Mapping[str, int]:
    """The most runs that the controls of each deciding variant take, in the order of the variants."""
    counts = {variant.name: len(kinds_of(variant.spec)) * seeds for variant in variants}
    return {name: count for name, count in counts.items() if count}


def controls(
    variant: Variant, runs: Mapping[int, Sequence[RoundRecord]], *, label: str, check: Callable[[JobSpec], object]
) -> Iterator[Control | str]:
    """Yield the controls of a variant, and a sentence for each that cannot be had.

    Args:
        runs: The records of all its finished runs, by seed.
        label: The part of these runs' ids that names the variant.
        check: Raises SpecError for a job that cannot run.
    """
    for kind in kinds_of(variant.spec):
        about, changes = _PLANS[kind](variant.spec, runs)
        name = f"{variant.name}~{kind}"
        if not changes:
            yield f"{name} is left out: {about}"
            continue
        try:
            made = _control(variant, kind, about, changes, label)
            for spec in {training_key(spec): spec for spec in made.specs.values()}.values():
                check(spec)
            for run in control_runs(variant.spec, [made]):
                check_id(run.id)  # a long name of a job and a variant, which has an id itself, may leave no room
        except SpecError as error:
            yield f"{name} is left out: {error}"
        else:
            yield made


def control_runs(job: JobSpec, planned: Sequence[Control]) -> tuple[Run, ...]:
    """The runs to make, seed by seed; the order of controls rotates with the seed, as that of variants does.

    Controls that share an id train identically, and share the run.
    """
    found: dict[str, Run] = {}
    for number, seed in enumerate(planned[0].specs if planned else ()):
        turn = number % len(planned)
        for each in (*planned[turn:], *planned[:turn]):
            run_id = f"{job.name}-{each.labels[seed]}-seed{seed}"
            names = (*(found[run_id].variants if run_id in found else ()), each.name)
            found[run_id] = Run(id=run_id, seed=seed, spec=each.specs[seed], variants=names)
    return tuple(found.values())


def decided_actors(records: Sequence[RoundRecord]) -> tuple[int, ...]:
    """The numbers of actors that were decided, one with each round, in the order of the decisions."""
    return tuple(
        next((int(each.outcome.partition(" ")[0]) for each in record.decisions if each.kind == "scaling"), 1)
        for record in records
    )


def shuffled(numbers: Sequence[int], seed: int) -> tuple[int, ...]:
    """The numbers in an order that depends on nothing but the seed."""
    order = list(numbers)
    random.Random(seed).shuffle(order)
    return tuple(order)


def log_normal(values: Sequence[float]) -> Mapping[str, float] | None:
    """Median, and standard deviation of logarithms, of the positive values; None if there are none.

    Values that scaling policies leave out are left out: those that are not finite, or beyond `LARGEST`.
    """
    logs = [math.log(value) for value in values if 0 < value <= LARGEST]
    if not logs:
        return None
    return {"median": _short(math.exp(median(logs))), "deviation": _short(pstdev(logs))}


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _metric(spec: JobSpec) -> str:
    """The metric that the scaling policy reads; "" unless it reads exactly one."""
    signals = list(SCALING_POLICIES.find(spec.scaling.name).signals(spec.scaling))
    return METRICS[signals[0]] if len(signals) == 1 else ""


def _mean(spec: JobSpec, runs: _Runs) -> _Plan:
    mean = fmean(fmean(decided_actors(records)) for records in runs.values())
    count = max(math.floor(mean + 0.5), 1)
    scaling = {"name": "fixed", **_limits(spec)}
    return f"{count} actors in every round", {seed: {"scaling": scaling, "actors": {"count": count}} for seed in runs}


def _shuffled(spec: JobSpec, runs: _Runs) -> _Plan:
    own = {seed: shuffled(decided_actors(records), seed) for seed, records in runs.items()}
    kept = {"name": "given", **_limits(spec)}
    return "its own numbers of actors in shuffled order", {
        seed: {"scaling": {**kept, "actors": numbers}} for seed, numbers in own.items()
    }


def _limits(spec: JobSpec) -> Mapping[str, Any]:  # Any: what a job file can hold
    """The fields that limit a policy's numbers by a budget or a deadline, which hold for controls as well."""
    return spec.scaling.model_dump(include={"within_budget", "deadline_s"})


def _final(spec: JobSpec, runs: _Runs) -> _Plan:
    own = {seed: {group.policy: group.agents for group in records[-1].groups} for seed, records in runs.items()}
    kept = {"name": "fixed", "samples": spec.sharing.samples}
    return "its final groups from the first round on", {
        seed: {"sharing": {**kept, "groups": groups}} for seed, groups in own.items()
    }


def _placebo(spec: JobSpec, runs: _Runs) -> _Plan:
    metric = _metric(spec)
    values = [
        record.metrics.get(group.policy, {}).get(metric, math.nan)
        for records in runs.values()
        for record in records
        for group in record.groups
    ]
    shown, found = metric.replace("_", " "), log_normal(values)
    if found is None:
        return f"its runs measured no {shown}", {}
    about = f"random numbers for {shown} (median {found['median']:g}, deviation of logarithms {found['deviation']:g})"
    return about, {seed: {"scaling": {"placebo": found}} for seed in runs}


_PLANS: Mapping[ControlKind, Callable[[JobSpec, _Runs], _Plan]] = {
    "mean": _mean,
    "shuffled": _shuffled,
    "final": _final,
    "placebo": _placebo,
}


def _control(variant: Variant, kind: ControlKind, about: str, changes: Mapping[int, _Changes], label: str) -> Control:
    name, specs, labels = f"{variant.name}~{kind}", {}, {}
    for seed, sections in changes.items():
        made = Preset(name=name, about=about, accounting=variant.counts, sections=sections).applied(variant.spec)
        specs[seed] = made.model_copy(update={"seed": seed})
        if kind == "mean":
            labels[seed] = f"{label}-mean{made.actors.count}"
        else:
            text = json.dumps(sections, sort_keys=True)
            labels[seed] = f"{label}-{kind}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]}"
    return Control(
        name=name, kind=kind, of=variant.name, about=about, counts=variant.counts, specs=specs, labels=labels
    )
