"""The runs of a comparison: every variant with every seed; and the results of a run, as totals and per round.

Variants that train identically share a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from marless.core.errors import CorruptError, SpecError
from marless.core.limits import check_id
from marless.cost.billing.bill import ChargedSide, charged
from marless.cost.billing.ledger import Ledger
from marless.cost.simulation import asynchronous
from marless.cost.simulation.cluster import modelled_run
from marless.jobs import prices as price_tables
from marless.jobs.presets import PRESETS, Preset, own_settings, training_key
from marless.jobs.prices import ACCOUNTINGS, Accounting, BilledTime
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.base import made
from marless.jobs.spec import JobSpec
from marless.jobs.usage import HOST, STARTED, WHOLE, waiting
from marless.learning.data.returns import EpisodeReturns

if TYPE_CHECKING:
    from marless.learning.policies.evaluation import Side


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run of a comparison."""

    id: str
    """Job id, and name of its run folder."""
    seed: int
    spec: JobSpec
    variants: tuple[str, ...]
    """Names of the variants that share this run."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One of the ways to run a job that are compared: a preset, or values of some settings."""

    name: str
    """As tables and pictures show it: "marless", or "algorithm.name=vdn"."""
    label: str
    """Part of its runs' ids."""
    about: str = ""
    counts: Accounting
    """The accounting by which its cost is counted."""
    settings: tuple[str, ...] = ()
    """Settings of its scaling and sharing policies that are not the defaults."""
    spec: JobSpec


def preset_variants(job: JobSpec, presets: Sequence[Preset]) -> tuple[Variant, ...]:
    """The job with each preset applied; raises SpecError, naming the preset, if the result is invalid."""
    return tuple(
        Variant(
            name=preset.name,
            label=_label(job, preset.name, spec),
            about=preset.about,
            counts=preset.accounting,
            settings=own_settings(spec),
            spec=spec,
        )
        for preset in presets
        for spec in [preset.applied(job)]
    )


def planned_runs(job: JobSpec, variants: Sequence[Variant], seeds: int) -> tuple[Run, ...]:
    """The runs to make, seed by seed, so that an interrupted comparison has complete pairs.

    Seeds count up from the job's and are the same for all variants. The order of variants rotates with the seed, so
    that none benefits from its position. Ids do not depend on which other variants are compared.
    """
    found: list[Run] = []
    shared: dict[str, list[Variant]] = {}
    for variant in variants:
        shared.setdefault(training_key(variant.spec), []).append(variant)
    sharing = list(shared.values())
    for offset in range(seeds):
        seed = job.seed + offset
        turn = offset % len(sharing)
        for members in (*sharing[turn:], *sharing[:turn]):
            run_id = f"{job.name}-{members[0].label}-seed{seed}"
            check_id(run_id)
            spec = members[0].spec.model_copy(update={"seed": seed})
            found.append(Run(id=run_id, seed=seed, spec=spec, variants=tuple(each.name for each in members)))
    return tuple(found)


def _label(job: JobSpec, name: str, spec: JobSpec) -> str:
    """The name of the first built-in preset that trains identically, compared or not; else the preset's own name."""
    for ours in PRESETS.values():
        with suppress(SpecError):
            if training_key(ours.applied(job)) == training_key(spec):
                return ours.name
    return name


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """A run's values per round; all tuples have one entry per round."""

    learners: tuple[int, ...]
    """Number of policy, critic and mixer functions invoked; 0 while a replay warms up."""
    actors: tuple[int, ...]
    exploring: tuple[float | None, ...]
    """Mean return per agent while exploring; None if no episode ended."""
    greedy: tuple[float | None, ...]
    """Mean greedy return per agent; None if the round was not evaluated."""
    cost_usd: dict[Accounting, tuple[float, ...]]
    """Cumulative cost in US dollars, including the round; serverful cost is modelled."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The results of one run, for one variant."""

    variant: str
    seed: int
    run: str
    """Job id of the run; variants that train identically share a run."""
    rounds: int
    env_steps: int
    greedy: float
    """Final greedy evaluation: mean return per agent."""
    random: float
    """Mean return per agent of the random baseline."""
    wins: float | None = None
    """Fraction of the final greedy episodes that were won; None if the environment does not report wins."""
    random_wins: float | None = None
    """The same for the random baseline."""
    sides: dict[str, float]
    """For competitive environments, by agent class: its greedy return against random opponents, minus the return of a
    random policy against them."""
    cost_usd: dict[Accounting, float]
    charged_usd: dict[ChargedSide, float] = field(default_factory=dict)
    """What a provider would charge for the run as functions ("billed") and on a machine ("serverful"), both modelled,
    and with the services that both need: see `marless.cost.billing.bill`."""
    modelled_s: float
    """Wall-clock seconds of the run, modelled for the given number of slots."""
    measured_s: float
    """Wall-clock seconds of its rounds, as measured."""
    learners: float
    """Mean per round."""
    actors: float
    """Mean per round."""
    cold_starts: int
    """Number of invocations that were the first of their worker."""
    waiting: float = 0.0
    """Seconds that actors waited while they ran, as a fraction of their CPU seconds; see `marless.jobs.usage`."""
    time: BilledTime = "duration"
    """Which seconds of its functions are charged."""
    curves: RunCurves

    @property
    def exploring(self) -> float | None:
        """Mean return per agent while exploring, over the last tenth of the rounds; None if no episode ended there.

        Policies whose greedy actions vary from round to round are compared with less noise by this.
        """
        last = self.curves.exploring[-max(1, self.rounds // 10) :]
        known = [value for value in last if value is not None]
        return fmean(known) if known else None


def curves(records: Sequence[RoundRecord], spec: JobSpec, ledger: Ledger | None = None) -> RunCurves:
    """The values of a run per round, at the job's prices; `ledger` is a new one of the job."""
    ledger = ledger or Ledger(spec, price_tables.merged(spec.bill.prices))
    costs: dict[Accounting, list[float]] = {accounting: [] for accounting in ACCOUNTINGS}
    for record in records:
        ledger.add(record)
        for accounting, line in costs.items():
            line.append(ledger.total_usd(accounting))
    greedy = {each.rounds: each.returns.mean for record in records for each in record.evaluations}
    return RunCurves(
        learners=tuple(map(learners_of, records)),
        actors=tuple(record.actors for record in records),
        exploring=tuple(record.returns.mean if record.returns else None for record in records),
        greedy=tuple(greedy.get(record.round + 1) for record in records),
        cost_usd={accounting: tuple(line) for accounting, line in costs.items()},
    )


def learners_of(record: RoundRecord) -> int:
    """Number of policy, critic and mixer functions that a round invoked; retries of one do not count.

    Policies and critics are the learners of the papers; mixers are trained likewise.
    """
    return len({(each.function, each.name) for each in record.invocations if each.function in STARTED})


def figures(
    records: Sequence[RoundRecord],
    spec: JobSpec,
    random: EpisodeReturns | None,
    *,
    variant: str,
    slots: int,
    sides: Mapping[str, Side] | None = None,
) -> Figures:
    """The results of a finished run, billed according to a variant's `spec`.

    Raises CorruptError if there are no records, no final evaluation, or no random baseline.
    """
    last = records[-1] if records else None
    if last is None or last.evaluation is None or random is None:
        raise CorruptError(f"run of {variant}, seed {spec.seed}: it has no final evaluation; run the comparison again")
    prices = price_tables.merged(spec.bill.prices)
    ledger = Ledger(spec, prices)
    line = curves(records, spec, ledger)
    if spec.schedule.overlapping:  # the time of overlapping rollouts follows from their rule, not from rounds
        modelled_s = asynchronous.modelled(records, spec, slots=slots, seed=spec.seed).course.ended_s
    else:
        modelled_s = modelled_run(records, spec.functions, slots, made(spec.schedule), spec.bill.time)
    return Figures(
        variant=variant,
        seed=spec.seed,
        run=last.job,
        rounds=len(records),
        env_steps=last.env_steps,
        greedy=last.evaluation.mean,
        random=random.mean,
        wins=last.evaluation.win_rate,
        random_wins=random.win_rate,
        sides={name: side.greedy - side.chance for name, side in (sides or {}).items()},
        cost_usd={accounting: costs[-1] for accounting, costs in line.cost_usd.items()},
        charged_usd=dict(charged(records, spec, prices, ledger.machine)),
        modelled_s=modelled_s,
        measured_s=sum(record.took_s for record in records),
        learners=fmean(line.learners),
        actors=fmean(line.actors),
        cold_starts=sum(
            each.cold for record in records for each in record.invocations if each.function in (HOST, *WHOLE)
        ),
        waiting=waiting(records),
        time=spec.bill.time,
        curves=line,
    )
