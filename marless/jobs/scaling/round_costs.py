"""What a round costs with any number of actors, learned from the rounds so far; for policies that weigh cost.

The seconds that a round's actors work, and those of its learners' functions, are taken to be linear in its number of
actors n. Both are fitted by least squares to the rounds so far, of which only sums are kept, so that a decision takes
no longer in the thousandth round than in the first. A round lasts as long as if nothing waited for a free slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from marless.core.settings import FunctionsSpec
from marless.jobs.evidence import KeptSums
from marless.jobs.prices import Accounting, BilledTime, Prices, lambda_memory_mb
from marless.jobs.record import RoundRecord
from marless.jobs.usage import STARTED, WHOLE, usage

_GB_MB = 1024
_HOUR_S = 3600
DECAY = 0.99
"""What the sums keep of themselves from round to round: half of their weight is on the newest 69 rounds."""


@dataclass(frozen=True, kw_only=True)
class FunctionRates:
    """US dollars per second that one function works, and that it is kept ready, working or not."""

    actor_work: float
    actor_ready: float
    learner_work: float
    learner_ready: float
    time: BilledTime = "duration"
    """What seconds of work are."""

    @classmethod
    def of(cls, functions: FunctionsSpec, prices: Prices, accounting: Accounting, time: BilledTime) -> FunctionRates:
        """The rates of a job's bill: *paper*: for work alone; *billed*: those of the backend.

        Instances (backend `ec2`, and accountings of machines) are counted by the vCPUs that a function takes of one.
        """
        own = prices.lambda_
        if accounting == "paper":
            actor_gb, learner_gb = (size.memory_mb / _GB_MB for size in (functions.actor, functions.learner))
            work = float(own.rate.on_demand)
            return cls(
                actor_work=work * actor_gb,
                actor_ready=0.0,
                learner_work=work * learner_gb,
                learner_ready=0.0,
                time=time,
            )
        if accounting == "billed" and prices.backend == "lambda":
            sizes = (functions.actor, functions.learner)
            actor_gb, learner_gb = (lambda_memory_mb(size, prices) / _GB_MB for size in sizes)
            provisioned = functions.prewarm and own.warm == "provisioned"
            return cls(
                actor_work=float(own.rate.provisioned if provisioned else own.rate.on_demand) * actor_gb,
                actor_ready=float(own.rate.ready) * actor_gb if provisioned else 0.0,
                learner_work=float(own.rate.on_demand) * learner_gb,
                learner_ready=0.0,
                time=time,
            )
        if accounting == "billed" and prices.backend == "fargate":
            vcpu_h, gb_h = prices.fargate.vcpu_h, prices.fargate.gb_h
        else:
            instance = prices.instance(prices.ec2.instance)
            vcpu_h, gb_h = instance.usd_h / instance.vcpus, Decimal(0)
        actor, learner = (
            (float(vcpu_h) * size.vcpus + float(gb_h) * size.memory_mb / _GB_MB) / _HOUR_S
            for size in (functions.actor, functions.learner)
        )
        return cls(actor_work=0.0, actor_ready=actor, learner_work=0.0, learner_ready=learner, time=time)


@dataclass(frozen=True)
class LinearCost:
    """A quantity of a round with n actors: fixed + each · n."""

    fixed: float
    each: float

    def at(self, actors: float) -> float:
        """The value with so many actors."""
        return self.fixed + self.each * actors


@dataclass(frozen=True, kw_only=True)
class RoundSums(KeptSums):
    """Decayed sums over the rounds so far, from which costs are fitted; n is a round's number of actors."""

    rounds: float = 0.0
    n: float = 0.0
    nn: float = 0.0
    actor_s: float = 0.0
    """Seconds of all actors' work."""
    learner_s: float = 0.0
    """Seconds of all functions inside learners."""
    learner_s_n: float = 0.0
    learners: float = 0.0
    """Number of functions that train."""

    def after(self, record: RoundRecord, functions: FunctionsSpec, time: BilledTime) -> RoundSums:
        """The sums with one more round."""
        uses, n = usage(record, functions, time), record.actors
        actor_s = sum(use.seconds for use in uses if use.function == "actor")
        learner_s = sum(use.seconds for use in uses if use.function not in WHOLE)
        added = RoundSums(
            rounds=1.0,
            n=n,
            nn=n * n,
            actor_s=actor_s,
            learner_s=learner_s,
            learner_s_n=learner_s * n,
            learners=sum(use.function in STARTED for use in uses),
        )
        return RoundSums(**{key: DECAY * mine + getattr(added, key) for key, mine in self.to_json().items()})

    def cost(self, rates: FunctionRates) -> RoundCostModel:
        """What a round costs, as fitted; needs at least one round."""
        return RoundCostModel(
            rates=rates,
            actor=LinearCost(0.0, self.actor_s / self.n),
            learner=self._fitted(self.learner_s, self.learner_s_n),
            learners=self.learners / self.rounds,
        )

    def _fitted(self, y: float, ny: float) -> LinearCost:
        """Least squares, with neither part negative; in proportion to n while all rounds had equally many actors."""
        mean_n, mean_y = self.n / self.rounds, y / self.rounds
        spread = self.nn / self.rounds - mean_n**2
        if spread <= 1e-9 * mean_n**2:
            return LinearCost(0.0, mean_y / mean_n)
        slope = max((ny / self.rounds - mean_n * mean_y) / spread, 0.0)
        if slope * mean_n > mean_y:
            return LinearCost(0.0, ny / self.nn)
        return LinearCost(mean_y - slope * mean_n, slope)


@dataclass(frozen=True, kw_only=True)
class RoundCostModel:
    """What a round costs with any number of actors."""

    rates: FunctionRates
    actor: LinearCost
    """Seconds of all actors' work."""
    learner: LinearCost
    """Seconds of all functions inside learners."""
    learners: float
    """Number of functions that train."""

    def usd(self, actors: int) -> float:
        """US dollars of a round with so many actors."""
        ready = self.rates.actor_ready * actors + self.rates.learner_ready * self.learners
        work = self.rates.actor_work * self.actor.at(actors) + self.rates.learner_work * self.learner.at(actors)
        # What is kept ready for all actors lets them play at once; learners' functions run beside each other, too.
        duration_s = self.actor.each + self.learner.at(actors) / max(self.learners, 1.0)
        return work + ready * duration_s
