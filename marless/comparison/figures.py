"""What one run came to: return, cost, time, learners and actors, in figures and round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from marless.errors import CorruptError
from marless.pricing import prices as price_tables
from marless.pricing.charges import ACCOUNTINGS, Accounting
from marless.pricing.ledger import Ledger
from marless.pricing.usage import HOST, STARTED, WHOLE
from marless.record import Returns, RoundRecord
from marless.replay.cluster import modelled_run

if TYPE_CHECKING:
    from marless.policies.sides import Side
    from marless.spec import JobSpec

LEARNERS = STARTED
"""Policies and critics, which the papers count as learners, and mixers, which are trained as those are."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A run round by round; all of one length."""

    learners: tuple[int, ...]
    """Policy, critic and mixer functions that were invoked; none while a replay warms up."""
    actors: tuple[int, ...]
    exploring: tuple[float | None, ...]
    """Mean return per agent while exploring; None where no episode ended."""
    greedy: tuple[float | None, ...]
    """Mean greedy return per agent; None where none was measured."""
    cost_usd: dict[Accounting, tuple[float, ...]]
    """US dollars up to and with each round; serverful ones are modelled."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One run of one preset."""

    preset: str
    seed: int
    run: str
    """Its job id: presets that train identically share one."""
    rounds: int
    env_steps: int
    greedy: float
    """Final greedy evaluation: mean return per agent."""
    random: float
    """What chance scores there."""
    wins: float | None = None
    """Share of the final greedy episodes that were won; None if the environment knows no wins."""
    random_wins: float | None = None
    """The same of chance."""
    sides: dict[str, float]
    """Of a competitive environment, by agent class: its greedy return against chance, above that of chance there."""
    cost_usd: dict[Accounting, float]
    modelled_s: float
    """Modelled wall-clock on the slots asked for."""
    measured_s: float
    """Wall-clock of its rounds on the machine that it ran on."""
    learners: float
    """Mean per round."""
    actors: float
    """Mean per round."""
    cold_starts: int
    """Worker executions that had to wait for their worker's start."""
    curves: Curves


def curves(records: Sequence[RoundRecord], spec: JobSpec) -> Curves:
    """A run round by round, priced as the job says."""
    ledger = Ledger(spec, price_tables.merged(spec.bill.prices))
    costs: dict[Accounting, list[float]] = {accounting: [] for accounting in ACCOUNTINGS}
    for record in records:
        ledger.add(record)
        for accounting, line in costs.items():
            line.append(ledger.total_usd(accounting))
    return Curves(
        learners=tuple(map(learners_of, records)),
        actors=tuple(record.actors for record in records),
        exploring=tuple(record.returns.mean if record.returns else None for record in records),
        greedy=tuple(record.evaluation.mean if record.evaluation else None for record in records),
        cost_usd={accounting: tuple(line) for accounting, line in costs.items()},
    )


def learners_of(record: RoundRecord) -> int:
    """How many policy, critic and mixer functions a round invoked; each counts once, however often it was tried."""
    return len({(each.function, each.name) for each in record.invocations if each.function in LEARNERS})


def figures(
    records: Sequence[RoundRecord],
    spec: JobSpec,
    random: Returns | None,
    *,
    preset: str,
    slots: int,
    sides: Mapping[str, Side] | None = None,
) -> Figures:
    """What a finished run came to, as a preset's `spec` bills it.

    Raises CorruptError for records without a round, a final evaluation, or a random baseline.
    """
    last = records[-1] if records else None
    if last is None or last.evaluation is None or random is None:
        raise CorruptError(f"run of {preset}, seed {spec.seed}: it has no final evaluation; run the comparison again")
    line = curves(records, spec)
    return Figures(
        preset=preset,
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
        modelled_s=modelled_run(records, spec.functions, slots),
        measured_s=sum(record.took_s for record in records),
        learners=fmean(line.learners),
        actors=fmean(line.actors),
        cold_starts=sum(
            each.cold for record in records for each in record.invocations if each.function in (HOST, *WHOLE)
        ),
        curves=line,
    )
