"""Replays a recorded run under other scaling and sharing policies, and models its time and cost.

Before each recorded round, the policies decide from the rounds as replayed so far, which contain their own decisions
and inputs. The round is then rebuilt as it would have been recorded (`marless.cost.simulation.rounds`), modelled on the
slots of a cluster (`marless.cost.simulation.cluster`) and billed (`marless.cost.billing.ledger`). As long as all
decisions are as recorded, the rounds equal the recorded ones bit for bit; so a run replayed under its own policies
makes the recorded decisions.

A replay does not model the effect of other decisions on learning: returns, losses, curvature, noise and distances are
those of the recording. All times and costs are modelled.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from marless.core.errors import SpecError
from marless.core.settings import FunctionsSpec
from marless.cost.billing.ledger import Ledger, RoundCost
from marless.cost.pricing import usd
from marless.cost.simulation import cluster
from marless.cost.simulation.cluster import ModelledRun, Timelines
from marless.cost.simulation.durations import DurationModel, LinearSeconds, sampled
from marless.cost.simulation.rounds import ActorSlots, PlannedRound, Source, rebuild
from marless.cost.simulation.virtual import VirtualRun, of_rounds
from marless.jobs import prices as price_tables
from marless.jobs.job import Budget, PreparedJob, decide, prepare
from marless.jobs.prices import ACCOUNTINGS, Accounting
from marless.jobs.record import Distances, PhaseSeconds, RoundRecord
from marless.jobs.scaling.base import METRICS, Signal
from marless.jobs.sharing.base import SHARING_POLICIES
from marless.jobs.spec import JobSpec

HISTORY_ROUNDS = 512
"""Number of recent rounds that decisions see, as in a coordinator."""
RETURNS = "as recorded: a replay does not know what other actors and groups would have learned"


@dataclass(frozen=True, kw_only=True)
class WhatIfRound:
    """One round, as recorded and as replayed. Seconds are modelled on the same slots for both."""

    recorded: RoundRecord
    replayed: RoundRecord
    recorded_s: PhaseSeconds
    replayed_s: PhaseSeconds
    recorded_usd: Mapping[Accounting, float]
    replayed_usd: Mapping[Accounting, float]
    assumed: tuple[str, ...]
    """Recorded values that replace values which were not measured, one sentence each."""

    @property
    def differs(self) -> bool:
        """True if the number of actors or the groups differ from the recorded ones."""
        before, after = self.recorded, self.replayed
        return before.actors != after.actors or [g.agents for g in before.groups] != [g.agents for g in after.groups]


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """A recorded run under other policies, or on another cluster."""

    job: str
    spec: JobSpec
    """The spec with the policies of the replay."""
    slots: int
    """vCPUs on which all seconds are modelled."""
    seed: int
    """Seed of the drawn durations of actors."""
    lines: Mapping[str, LinearSeconds]
    """The time of functions inside a learner over their samples, as fitted to the recording."""
    steps: tuple[WhatIfRound, ...]
    recorded_usd: Mapping[Accounting, float]
    """Cost of all replayed rounds, from their measured durations; that of the serverful accounting is modelled."""
    replayed_usd: Mapping[Accounting, float]
    ending: str
    """Why there are fewer rounds than recorded; "" if there are as many."""
    trained_s: float
    """Seconds of training time of the replayed rounds, as their policies saw them."""


def replayed_spec(recorded: JobSpec, *, scaling: str, sharing: str, overrides: Sequence[str]) -> JobSpec:
    """The recorded job's spec with other policies; "" keeps one, with its settings.

    `overrides` are of the form section.field=value. Raises SpecError for other fields than those of scaling, sharing,
    functions, bill, stop, and actors.count.
    """
    from marless.jobs import spec as specs

    document = recorded.model_dump(mode="json", by_alias=True)
    for section, name in (("scaling", scaling), ("sharing", sharing)):
        if name and document[section]["name"] != name:
            groups = {"groups": document[section]["groups"]} if section == "sharing" else {}
            document[section] = {"name": name} | groups
    for each in overrides:
        key = each.partition("=")[0]
        section = key.partition(".")[0]
        rule = section == "schedule" and recorded.schedule.overlapping and key != "schedule.name"
        if section not in ("scaling", "sharing", "functions", "bill", "stop") and key != "actors.count" and not rule:
            raise SpecError(
                f"--set {each!r}: a replay can change scaling, sharing, functions, bill, stop and actors.count; all "
                "else is as it was when the rounds were recorded (if rollouts overlap, settings of schedule "
                "can change, too)"
            )
        specs.override_field(document, each)
    return specs.parse(document, "replay")


def simulate(
    records: Sequence[RoundRecord],
    recorded: JobSpec,
    spec: JobSpec,
    *,
    slots: int | None = None,
    seed: int | None = None,
    told: Callable[[int, int], None] | None = None,
) -> WhatIf:
    """Replay `records` of the job `recorded` under the policies of `spec`, on `slots` vCPUs.

    Args:
        slots: None: as many as the recording used at once; policies then see the measured times of unchanged rounds.
            Otherwise they see modelled times.
        seed: Of the drawn durations; None: the job's.
        told: Called with the number of replayed rounds, and of all rounds.

    Raises SpecError if there is no round, or if a policy needs measurements that were not recorded.
    """
    if not records:
        raise SpecError("there is nothing to replay: no round has been recorded yet")
    # Policies see all rounds so far, so a gap would change what they decide.
    if [record.round for record in records] != list(range(len(records))):
        raise SpecError(f"the records of {records[0].job} have a gap or do not begin with round 1")
    if spec.stop.cost_usd is not None and spec.bill.accounting == "machines":
        raise SpecError(
            "a replay has no machines, whose cost its budget would count: add --set bill.accounting=billed, or "
            "--set stop.cost_usd=null"
        )
    job = prepare(spec)
    _check_signals(records, job)
    walk = _Walk(records, recorded, job, slots, spec.seed if seed is None else seed)
    steps, ending = [], ""
    for number in range(len(records)):
        ending = walk.ending(number)
        if ending:
            break
        steps.append(walk.step(number))
        if told:
            told(number + 1, len(records))
    return WhatIf(
        job=records[0].job,
        spec=spec,
        slots=walk.machine.slots,
        seed=walk.seed,
        lines=walk.durations.lines,
        steps=tuple(steps),
        recorded_usd=_totals(walk.recorded_ledger),
        replayed_usd=_totals(walk.ledger),
        ending=ending,
        trained_s=walk.trained_s,
    )


def slots_of(records: Sequence[RoundRecord], functions: FunctionsSpec) -> int:
    """vCPUs that a recording used at once: those of the most busy workers, at least those of one function."""
    most = max((_at_once(record) for record in records), default=1)
    size = functions.actor.vcpus
    return max(math.ceil(most * size), math.ceil(size), math.ceil(functions.learner.vcpus))


def _at_once(record: RoundRecord) -> int:
    """The most actors and evaluations that ran at the same time."""
    whole = [each for each in record.invocations if each.function in ("actor", "evaluation")]
    # Of two changes at one time an end comes first, so that a function that follows
    # another one does not count beside it.
    changes = sorted([(each.start_s, 1) for each in whole] + [(each.end_s, -1) for each in whole])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


class _Walk:
    """The state of a replay between two rounds."""

    def __init__(
        self, records: Sequence[RoundRecord], recorded: JobSpec, job: PreparedJob, slots: int | None, seed: int
    ) -> None:
        self.seed = seed
        drawn = recorded.algorithm.drawn(recorded.actors.steps)
        self.durations = DurationModel(records, recorded.sharing.samples, drawn)
        self.machine = ActorSlots(functions=job.spec.functions, slots=slots or slots_of(records, job.spec.functions))
        prices = price_tables.merged(job.spec.bill.prices)
        self.ledger, self.recorded_ledger = Ledger(job.spec, prices), Ledger(job.spec, prices)
        self._records, self._recorded, self._job = records, recorded, job
        self._curvature = prepare(recorded).curvature
        self._elsewhere = slots is not None
        self._env_steps = sampled(records)
        self._history: deque[RoundRecord] = deque(maxlen=HISTORY_ROUNDS)
        self._before: RoundRecord | None = None
        self._cost: RoundCost | None = None
        self.trained_s = 0.0
        """Training time of the rounds so far, as policies see them."""
        self._decided = 0
        """The number of actors that was decided with the round before."""
        rounds = of_rounds(job.spec.schedule)
        self._timelines = Timelines.of(rounds)
        self._recorded_run = self._replayed_run = ModelledRun(VirtualRun.of(rounds))

    def ending(self, number: int) -> str:
        """Why no further round starts; "" if one does."""
        stop, accounting = self._job.spec.stop, self._job.spec.bill.accounting
        if stop.rounds is not None and number >= stop.rounds:
            return f"{number} rounds done"
        env_steps = self._before.env_steps if self._before else 0
        if stop.env_steps is not None and env_steps >= stop.env_steps:
            return f"{env_steps} env steps sampled"
        if stop.cost_usd is None or not number:
            return ""
        if (spent_usd := self.ledger.total_usd(accounting)) >= stop.cost_usd:
            return f"{spent_usd:.6f} USD spent by {accounting} accounting, of a budget of {stop.cost_usd:g} USD"
        return ""

    def step(self, number: int) -> WhatIfRound:
        """Decide on a round; rebuild, model and bill it."""
        recorded = self._records[number]
        plan, ahead = self._plan(recorded)
        found = rebuild(self._source(number, plan), plan, self.machine, before=self._before, timelines=self._timelines)
        replayed = self._before = replace(found.record, machines=(), ahead=ahead if recorded.ahead else 0)
        self._timelines = found.timelines
        functions, slots = self.machine.functions, self.machine.slots
        recorded_s, self._recorded_run = self._recorded_run.after(recorded, functions, slots)
        replayed_s, self._replayed_run = self._replayed_run.after(replayed, functions, slots)
        self._cost, before_cost = self.ledger.add(replayed), self.recorded_ledger.add(recorded)
        seen = replayed
        if self._elsewhere:  # policies see the round with the times of the modelled cluster
            around_s = max(replayed.took_s - cluster.total(replayed.phases), 0.0)
            ended_s = replayed.started_s + cluster.total(replayed_s) + around_s
            seen = replace(replayed, phases=replayed_s, ended_s=ended_s)
        self._history.append(seen)
        self.trained_s += seen.spent_s
        return WhatIfRound(
            recorded=recorded,
            replayed=replayed,
            recorded_s=recorded_s,
            replayed_s=replayed_s,
            recorded_usd={each: before_cost.usd(each) for each in ACCOUNTINGS},
            replayed_usd={each: self._cost.usd(each) for each in ACCOUNTINGS},
            assumed=found.assumed,
        )

    def _plan(self, recorded: RoundRecord) -> tuple[PlannedRound, int]:
        """The plan of the next round, and the number of actors that is decided with it: its own, or the next one's."""
        job, history, budget = self._job, tuple(self._history), None
        if job.spec.stop.cost_usd is not None:
            accounting: Accounting = job.spec.bill.accounting
            by_function: Counter[str] = Counter()
            for charge in self._cost.charges[accounting] if self._cost else ():
                by_function[charge.function] += charge.picos
            remaining_usd = job.spec.stop.cost_usd - self.ledger.total_usd(accounting)
            budget = Budget(remaining_usd, {function: usd(picos) for function, picos in by_function.items()})
        decided = decide(job, history, budget, self.trained_s)
        ahead = recorded.round > 0 and self._records[recorded.round - 1].ahead > 0
        actors, self._decided = (self._decided if ahead else decided.actors), decided.actors
        plan = PlannedRound(
            actors=actors,
            groups=decided.groups,
            functions=job.functions(decided.groups),
            decisions=decided.decisions,
            curvature=job.curvature,
            similarity=job.sharing.asks(history, recorded.returns),
            pooling=job.spec.sharing.samples,
        )
        return plan, decided.actors

    def _source(self, number: int, plan: PlannedRound) -> Source:
        import numpy as np

        found, distances = number, self._records[number].distances
        if plan.similarity and not distances:
            found, distances = self._measured_near(number)
        return Source(
            record=self._records[number],
            env_steps=self._env_steps[number],
            pooling=self._recorded.sharing.samples,
            curvature=self._curvature,
            durations=self.durations,
            distances=distances,
            distances_round=self._records[found].round,
            # A stream for each round: what is drawn in one does not move the draws of later ones.
            rng=np.random.default_rng([self.seed, number]),
        )

    def _measured_near(self, number: int) -> tuple[int, tuple[Distances, ...]]:
        """The nearest round with similarity measurements, the earlier of two; raises SpecError if there is none."""
        measured = [other for other, record in enumerate(self._records) if record.distances]
        if not measured or self._similarity(self._recorded) != self._similarity(self._job.spec):
            name = self._job.spec.sharing.name
            what = "measured it another way (sharing.similarity)" if measured else "measured it in no round"
            raise SpecError(
                f"round {number + 1}: sharing {name!r} asks how alike the agents are, and the recorded run {what}; "
                f"record one that does: train the job with --set sharing.name={name}"
            )
        found = min(measured, key=lambda other: (abs(other - number), other))
        return found, self._records[found].distances

    @staticmethod
    def _similarity(spec: JobSpec) -> object:
        return SHARING_POLICIES.find(spec.sharing.name).similarity(spec.sharing)


def _check_signals(records: Sequence[RoundRecord], job: PreparedJob) -> None:
    """Raise SpecError for policies that need metrics which the recorded learners did not measure."""
    spec = job.spec
    asked: dict[Signal, bool] = {"curvature": job.curvature, "noise": job.noise, "gradients": job.gradients}
    for signal, needed in asked.items():
        metric = METRICS[signal]
        if not needed or any(metric in metrics for record in records for metrics in record.metrics.values()):
            continue
        kind = SHARING_POLICIES.find(spec.sharing.name)
        sharing = {"curvature": kind.curvature, "gradients": kind.gradients}.get(signal, lambda _: False)(spec.sharing)
        section, name = ("sharing", spec.sharing.name) if sharing else ("scaling", spec.scaling.name)
        raise SpecError(
            f"{section} {name!r} decides from each policy's {signal.replace('noise', 'noise scale')}, which the "
            f"recorded run did not measure; record one that does: train the job with --set {section}.name={name}"
        )


def _totals(ledger: Ledger) -> Mapping[Accounting, float]:
    return {each: ledger.total_usd(each) for each in ACCOUNTINGS}
