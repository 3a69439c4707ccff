"""Accounting `billed`: what a provider charges for rounds: minimum charges, starts, requests, keep-alive, Redis.

There is one meter per backend. Meters are stateful, so rounds must be passed in order. The time charged for a round
reaches from the end of the round before to its own end. After an interruption (`RoundRecord.idle_s` is None) it is the
round alone: while no coordinator ran the job, none of its functions and machines existed, and nothing is charged. The
wall clock is not used, because it can be set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from marless.core.settings import FunctionSize, FunctionsSpec
from marless.cost.pricing import GB_MB, Charge, Rate, milliseconds, per_gb_s, per_h
from marless.jobs.prices import InstancePrice, Prices, check_sizes, lambda_memory_mb
from marless.jobs.record import RoundRecord
from marless.jobs.usage import ACTOR, STARTED, WHOLE, FunctionUse


@dataclass(frozen=True)
class Span:
    """The time that a round is charged for, in milliseconds of charged time since the job's first round began."""

    start_ms: int
    end_ms: int
    interrupted: bool = False
    """True if the job was interrupted before the round: only functions that are warm in this round kept running."""

    @property
    def length_ms(self) -> int:
        """Duration in milliseconds; never negative."""
        return self.end_ms - self.start_ms


class Clock:
    """Computes the spans of successive rounds: the idle time before a round, up to the keep-alive, and the round."""

    def __init__(self, keep_alive_s: float) -> None:
        self._keep_alive_s = keep_alive_s
        self._spent_us = 0
        """Charged time so far in microseconds; only the sum is rounded to milliseconds."""

    def span(self, record: RoundRecord) -> Span:
        """The span of the next round."""
        # Functions are released after the keep-alive, so a longer gap between rounds is charged no further.
        begin, idle_s = self._spent_ms, min(max(record.idle_s or 0.0, 0.0), self._keep_alive_s)
        self._spent_us += round(1e6 * (idle_s + record.took_s))
        return Span(begin, self._spent_ms, interrupted=record.idle_s is None)

    @property
    def _spent_ms(self) -> int:
        return -(-self._spent_us // 1000)


class ChargeMeter(Protocol):
    """Computes the charges of a backend, round by round."""

    def charges(self, record: RoundRecord, uses: Sequence[FunctionUse], span: Span) -> Iterator[Charge]:
        """The charges for the next round."""


class LambdaMeter:
    """AWS Lambda: functions billed by the millisecond.

    - Work and starts are billed alike (since August 2025), at the memory that comes with the function's vCPUs.
    - Each use is one request.
    - A plain Lambda may stay warm between rounds at no charge, but without guarantee. If a job pre-warms actors, they
      use provisioned concurrency, paid for the whole round, and their work has the lower rate that comes with it.
      (Provisioned concurrency is billed in steps of five minutes, which a job's rounds share.)
    """

    def __init__(self, functions: FunctionsSpec, prices: Prices) -> None:
        own, rates = prices.lambda_, prices.lambda_.rate
        self._prices = prices
        self._granularity_ms = own.granularity_ms
        self._provisioned = functions.prewarm and own.warm == "provisioned"
        self._actor_mb = lambda_memory_mb(functions.actor, prices)
        self._on_demand, self._ready = per_gb_s(rates.on_demand), per_gb_s(rates.ready)
        self._for_actors = per_gb_s(rates.provisioned) if self._provisioned else self._on_demand
        self._request = Rate.per(own.request, 1)

    def charges(self, record: RoundRecord, uses: Sequence[FunctionUse], span: Span) -> Iterator[Charge]:
        for use in uses:
            memory_mb = lambda_memory_mb(FunctionSize(vcpus=use.vcpus, memory_mb=use.memory_mb), self._prices)
            rate = self._for_actors if use.function in WHOLE else self._on_demand
            duration_ms = milliseconds(use.seconds + use.init_s, self._granularity_ms)
            yield Charge(use.function, use.group, "work", rate.of(memory_mb * duration_ms))
            yield Charge(use.function, use.group, "request", self._request.of(1))
        if self._provisioned:
            # Actors of this round and those of the next one, which run beside its update, use
            # the same provisioned capacity.
            actors = max(record.actors, record.ahead)
            yield Charge("actor", "", "ready", self._ready.of(actors * self._actor_mb * span.length_ms))


@dataclass
class _Slot:
    """One container or machine that is kept alive. Times are those of `Span`."""

    used_ms: int
    """End of the last round that used it."""
    paid_ms: int
    """Time up to which it has been charged."""
    least_ms: int
    """Time up to which it is charged at least: the minimum charge."""


class Slots:
    """Containers or machines that are started on demand and released when they have been unused for the keep-alive."""

    def __init__(self, rate: Rate, minimum_s: int, keep_alive_s: float) -> None:
        self._rate = rate
        self._minimum_ms = 1000 * minimum_s
        self._keep_alive_ms = milliseconds(keep_alive_s)
        self._slots: list[_Slot] = []

    def keep(self, count: int) -> None:
        """Keep only `count` slots after an interruption; their replacements pay the minimum charge again."""
        self._slots = self._slots[:count]

    def spend(self, count: int, span: Span) -> tuple[list[int], int]:
        """Charge a round that uses `count` slots; returns picodollars of each, and of all idle slots together."""
        # A new slot has paid nothing, and owes the minimum charge from the round's start.
        while len(self._slots) < count:
            self._slots.append(_Slot(span.end_ms, span.start_ms, span.start_ms + self._minimum_ms))
        for slot in self._slots[:count]:
            slot.used_ms = span.end_ms
        used = [self._pay(slot, span.end_ms) for slot in self._slots[:count]]
        idle = [self._pay(slot, min(span.end_ms, slot.used_ms + self._keep_alive_ms)) for slot in self._slots[count:]]
        self._slots = [slot for slot in self._slots if slot.used_ms + self._keep_alive_ms > span.end_ms]
        return used, sum(idle)

    def _pay(self, slot: _Slot, until_ms: int) -> int:
        until_ms = max(until_ms, slot.paid_ms, slot.least_ms)
        owed = self._rate.of(until_ms - slot.paid_ms)
        slot.paid_ms = until_ms
        return owed


class FargateMeter:
    """AWS Fargate: containers billed by the second, with a minimum: one per actor, and one per critic, mixer and
    policy.

    A container lives from the first round that needs it to the end of its keep-alive; idle containers are charged.
    """

    def __init__(self, functions: FunctionsSpec, prices: Prices) -> None:
        self._actors = Slots(_container(functions.actor, prices), prices.fargate.minimum_s, prices.keep_alive_s)
        self._learners = Slots(_container(functions.learner, prices), prices.fargate.minimum_s, prices.keep_alive_s)

    def charges(self, record: RoundRecord, uses: Sequence[FunctionUse], span: Span) -> Iterator[Charge]:
        learners = learners_at_once(uses)
        if span.interrupted:
            self._actors.keep(_kept_actors(record))
            self._learners.keep(sum(not use.cold for use in learners))
        used, idle = self._actors.spend(actors_at_once(record), span)
        yield Charge("actor", "", "work", sum(used))
        yield Charge("actor", "", "ready", idle)
        used, idle = self._learners.spend(len(learners), span)
        for use, picos in zip(learners, used, strict=True):
            yield Charge(use.function, use.group, "work", picos)
        yield Charge("learner", "", "ready", idle)


class Ec2Meter:
    """AWS EC2: machines of one type, billed by the second with a minimum; enough for the larger phase of a round."""

    def __init__(self, functions: FunctionsSpec, prices: Prices) -> None:
        self._functions = functions
        self._machine = prices.instance(prices.ec2.instance)
        self._machines = Slots(per_h(self._machine.usd_h), prices.ec2.minimum_s, prices.keep_alive_s)

    def charges(self, record: RoundRecord, uses: Sequence[FunctionUse], span: Span) -> Iterator[Charge]:
        learners = learners_at_once(uses)
        # During the update, learners run beside actors of the next round and an evaluation of earlier policies.
        actors = record.ahead + sum(each.during_update for each in record.invocations)
        during_update = _capacity(self._functions, actors=actors, learners=len(learners))
        count = machines(need_of(record, uses, self._functions) | during_update, self._machine)
        if span.interrupted and not _kept_actors(record) and all(use.cold for use in learners):
            self._machines.keep(0)
        used, idle = self._machines.spend(count, span)
        yield Charge("machine", "", "machine", sum(used))
        yield Charge("machine", "", "ready", idle)


class RedisMeter:
    """Charges for the Redis node that stores the versions, for as long as the job runs."""

    def __init__(self, prices: Prices) -> None:
        self._rate = per_h(prices.redis_h())
        self._step_ms = 1000 * prices.redis.granularity_s
        self._used_ms = 0

    def charge(self, span: Span) -> Charge:
        """The charge for the next round; a time step that spans two rounds is charged to the first."""
        before_ms, self._used_ms = self._used_ms, self._used_ms + span.length_ms
        steps = -(-self._used_ms // self._step_ms) - -(-before_ms // self._step_ms)
        return Charge("redis", "", "node", self._rate.of(steps * self._step_ms))


@dataclass(frozen=True)
class Need:
    """Capacity needed at the same time by the larger of a round's phases."""

    vcpus: float
    memory_mb: int

    def __or__(self, other: Need) -> Need:
        """The capacity that suffices for either."""
        return Need(max(self.vcpus, other.vcpus), max(self.memory_mb, other.memory_mb))


def need_of(record: RoundRecord, uses: Sequence[FunctionUse], functions: FunctionsSpec) -> Need:
    """The capacity for all actors of a round, or all its learner functions: the larger of vCPUs, and of memory.

    An evaluation during the update is not counted beside the learners: it can wait for their room.
    """
    actors, learners = max(actors_at_once(record), 1), max(len(learners_at_once(uses)), 1)
    return _capacity(functions, actors=actors) | _capacity(functions, learners=learners)


def _capacity(functions: FunctionsSpec, *, actors: int = 0, learners: int = 0) -> Need:
    return Need(
        vcpus=actors * functions.actor.vcpus + learners * functions.learner.vcpus,
        memory_mb=actors * functions.actor.memory_mb + learners * functions.learner.memory_mb,
    )


def actors_at_once(record: RoundRecord) -> int:
    """Number of actors that run at the same time: those of the round, or of an evaluation, which are actors too; or
    those that ran beside its update, of the next round and of an evaluation of earlier policies.

    A round that ran two evaluations ran one after the other.
    """
    evaluations = [each.during_update for each in record.invocations if each.function == "evaluation"]
    concurrent = sum(evaluations) + record.ahead
    return max(record.actors, concurrent, len(evaluations) - sum(evaluations))


def learners_at_once(uses: Sequence[FunctionUse]) -> list[FunctionUse]:
    """Functions that train in a round; each occupies a container until all have finished. Other functions reuse those.

    Critics, mixers and policies that depend on one another wait in each gradient step, so no container is free earlier.
    """
    return [use for use in uses if use.function in STARTED]


def _kept_actors(record: RoundRecord) -> int:
    """Number of actors in a round that ran on workers which had been started before it."""
    acting = [each for each in record.invocations if each.function == ACTOR]
    started = {each.worker for each in acting if each.cold}
    return max(record.actors - sum(each.worker in started for each in acting), 0)


def machines(need: Need, machine: InstancePrice) -> int:
    """Number of machines of this type that provide the needed capacity."""
    return max(math.ceil(need.vcpus / machine.vcpus), math.ceil(need.memory_mb / GB_MB / machine.memory_gb))


def meter(functions: FunctionsSpec, prices: Prices) -> ChargeMeter:
    """The meter of the selected backend; raises SpecError for functions that it cannot run, and for a missing price."""
    check_sizes(functions, prices)
    match prices.backend:
        case "lambda":
            return LambdaMeter(functions, prices)
        case "fargate":
            return FargateMeter(functions, prices)
        case "ec2":
            return Ec2Meter(functions, prices)


def _container(size: FunctionSize, prices: Prices) -> Rate:
    vcpus, gb = Decimal(str(size.vcpus)), Decimal(size.memory_mb) / GB_MB
    return per_h(vcpus * prices.fargate.vcpu_h + gb * prices.fargate.gb_h)
