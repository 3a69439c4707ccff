"""The progress of one run, round by round: env steps, modelled seconds, dollars, and the smoothed return."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest

from marless.core.errors import SpecError
from marless.cost.billing.ledger import Ledger, ModelledRounds, ReservedMachines, phase_ms, serverful_picos
from marless.cost.billing.own import usable_vcpus
from marless.cost.pricing import usd
from marless.cost.simulation import asynchronous
from marless.cost.simulation.cluster import total
from marless.cost.simulation.virtual import of_rounds
from marless.jobs.prices import Accounting, Prices
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from marless.jobs.usage import ACTOR, HOST

SMOOTHED = 0.05
"""Fraction of the job's env steps over whose episodes a return is averaged."""
_HOUR_S = 3600
BILLS: tuple[Accounting, ...] = ("paper", "billed")
"""The accountings of functions; machines of one's own have a price per second."""


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What a run has taken up to the end of each round; both tuples have one entry per round."""

    seconds: tuple[float, ...]
    """Modelled, since the start."""
    usd: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """A run at the end of each round; all tuples have one entry per round."""

    env_steps: tuple[int, ...]
    returns: tuple[float | None, ...]
    """Smoothed: see `smoothed_returns`."""
    functions: Mapping[Accounting, Spending]
    """As functions on the slots, by accounting."""
    machines: Mapping[str, Spending]
    """On a machine of one's own, by its type; without those that are too small for a function, and without services."""
    services_usd_s: float = 0.0
    """US dollars per second of the Redis node and the host of the services, which both sides need."""

    @property
    def final(self) -> float | None:
        """The smoothed return at the end; None if no episode ended there."""
        return self.returns[-1] if self.returns else None


def progress(
    records: Sequence[RoundRecord], spec: JobSpec, prices: Prices, *, slots: int, env_steps: int, machines: bool
) -> RunProgress:
    """The progress of a run whose env steps are `env_steps`, modelled on `slots` vCPUs.

    Functions are billed for the modelled run: what a provider charges for as long as a round lasts, such as actors that
    are kept warm, counts for the modelled round and not for the time that it took on the machine of the recording.

    Args:
        machines: True: also on machines of one's own, of every size.

    Raises SpecError if the slots are too few for a function, or a price is missing.
    """
    records = tuple(_without_waiting_for_actors(records))
    ends_s = tuple(accumulate(_spans_s(records, spec, slots)))
    costs: dict[Accounting, list[float]] = {each: [] for each in BILLS}
    ledger = Ledger(spec, prices, BILLS)
    for record, end_s in zip(_as_modelled(records, ends_s), ends_s, strict=True):
        ledger.add(record)
        for accounting, line in costs.items():
            # What is billed has the Redis node already; the papers count neither.
            host_usd = float(prices.services.usd_h) * end_s / _HOUR_S if accounting == "billed" else 0.0
            line.append(ledger.total_usd(accounting) + host_usd)
    return RunProgress(
        env_steps=tuple(record.env_steps for record in records),
        returns=tuple(smoothed_returns(records, SMOOTHED * env_steps)),
        functions={each: Spending(seconds=ends_s, usd=tuple(line)) for each, line in costs.items()},
        machines=_on_machines(records, spec, prices) if machines else {},
        services_usd_s=float(prices.redis_h() + prices.services.usd_h) / _HOUR_S,
    )


def smoothed_returns(records: Sequence[RoundRecord], window: float) -> Iterator[float | None]:
    """The mean return per agent at each round, over the episodes that ended in the last `window` env steps.

    A round counts if its end lies in them; one that is longer than the window counts alone. So settings with small and
    with large rounds are averaged over as many env steps. There is no value before the window is full, because a mean
    of few episodes reaches by chance what the policies do not, and none if no episode ended.
    """
    held: deque[RoundRecord] = deque()
    for record in records:
        held.append(record)
        while held[0].env_steps <= record.env_steps - window:
            held.popleft()
        known = [each.returns for each in held if each.returns]
        episodes = sum(each.episodes for each in known)
        full = record.env_steps >= window
        yield sum(each.mean * each.episodes for each in known) / episodes if full and episodes else None


def _without_waiting_for_actors(records: Sequence[RoundRecord]) -> Iterator[RoundRecord]:
    """The records without the time for which an update waited for actors of the next round in its own process.

    A run in one process does one thing at a time: an update that has ended is recorded only when the actors that were
    to run beside it have run, too. On slots of their own they hold nothing up.
    """
    for record, after in zip_longest(records, records[1:]):
        learners = [each for each in record.invocations if each.function == HOST]
        workers, done_s = {each.worker for each in learners}, max((each.end_s for each in learners), default=0.0)
        ahead = [each for each in after.invocations if each.function == ACTOR] if after and record.ahead else []
        own = [each for each in ahead if each.worker in workers and done_s < each.end_s <= record.ended_s]
        waited_s = max(each.end_s for each in own) - max(min(each.start_s for each in own), done_s) if own else 0.0
        phases = replace(record.phases, update=max(record.phases.update - waited_s, 0.0))
        yield replace(record, phases=phases) if own else record


def _as_modelled(records: Sequence[RoundRecord], ends_s: Sequence[float]) -> Iterator[RoundRecord]:
    """The records as if their rounds had taken the modelled time, one after the other without interruption."""
    for before_s, record, end_s in zip((0.0, *ends_s), records, ends_s, strict=False):
        idle_s = None if not record.round else 0.0  # the first round follows nothing
        yield replace(record, started_s=before_s, ended_s=end_s, idle_s=idle_s)


def _spans_s(records: Sequence[RoundRecord], spec: JobSpec, slots: int) -> list[float]:
    """Modelled seconds of each round on `slots` vCPUs."""
    if spec.schedule.overlapping:
        return _overlapping_spans_s(records, spec, slots)
    rounds = ModelledRounds(spec.functions, of_rounds(spec.schedule), spec.bill.time)
    return [total(rounds.phases(record, (slots,))[slots]) for record in records]


def _overlapping_spans_s(records: Sequence[RoundRecord], spec: JobSpec, slots: int) -> list[float]:
    """The same where rollouts overlap: from one modelled version to the next, matched by the gradients applied."""
    course = asynchronous.modelled(records, spec, slots=slots, seed=spec.seed).course
    applied = list(accumulate(len(each.gradients) for each in course.aggregations))
    spans, before_s, at, gradients = [], 0.0, 0, 0
    for record in records:
        gradients += len(record.aggregation.gradients) if record.aggregation else 0
        while at < len(applied) - 1 and applied[at] < gradients:
            at += 1
        end_s = course.published_s[at] if gradients else 0.0
        spans.append(max(end_s - before_s, 0.0))
        before_s = max(end_s, before_s)
    return spans


def _on_machines(records: Sequence[RoundRecord], spec: JobSpec, prices: Prices) -> dict[str, Spending]:
    """The run on a machine of each type of the family `ec2.serverful`, which is paid from its first round to its last.

    The price is that of accounting `serverful`: the modelled time at the machine's price, without the minimum of a
    minute. A machine with little memory runs fewer functions at once.
    """
    largest = max(spec.functions.actor.vcpus, spec.functions.learner.vcpus)
    sizes = {name: usable_vcpus(spec.functions, price) for name, price in prices.family()}
    spans = _machine_spans_ms(records, spec, tuple(sorted({vcpus for vcpus in sizes.values() if vcpus >= largest})))
    found = {}
    for name, price in prices.family():
        if (ms := spans.get(sizes[name])) is not None:
            ends_ms, machine = list(accumulate(ms)), ReservedMachines(name, 1, price)
            found[name] = Spending(
                seconds=tuple(end / 1000 for end in ends_ms),
                usd=tuple(usd(serverful_picos(end, machine)) for end in ends_ms),
            )
    return found


def _machine_spans_ms(records: Sequence[RoundRecord], spec: JobSpec, slots: tuple[int, ...]) -> dict[int, list[int]]:
    """Modelled milliseconds of each round by number of vCPUs, without those that cannot run the job."""
    if spec.schedule.overlapping:
        found = {}
        for count in slots:
            try:
                spans = _overlapping_spans_s(records, spec, count)
            except SpecError:  # its learners and an actor do not fit
                continue
            found[count] = [round(1000 * each) for each in spans]
        return found
    rounds = ModelledRounds(spec.functions, of_rounds(spec.schedule), spec.bill.time)
    lines: dict[int, list[int]] = {count: [] for count in slots}
    for record in records:
        for count, phases in rounds.phases(record, slots).items():
            lines[count].append(sum(phase_ms(phases).values()))
    return lines
