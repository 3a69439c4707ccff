"""The config and registry entry of scaling policy `minions`. Reading its settings does not import NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.core.validation import Strict
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import ScalingConfig, ScalingContext, ScalingDecision, Signal, remembered
from marless_minions.features import observe

if TYPE_CHECKING:
    from marless.core.settings import FunctionsSpec
    from marless_minions.scheduler import Loaded

RULE = "minions"
_SHOWN = (("return", "return"), ("learner_s", "learner s"), ("actor_s", "actor s"), ("budget_left", "budget left"))


class PackedTask(Strict):
    """A `marless_minions.scheduler.SchedulerTask` inside a job's spec."""

    rounds: int = Field(ge=1)
    max_actors: int = Field(ge=1, le=4096)
    target: float
    budget_usd: float | None = Field(ge=0)
    usd_per_gb_s: float = Field(ge=0)
    beta: float = Field(ge=0)


class PackedScale(Strict):
    """Mean and standard deviation by which a feature is standardised."""

    center: float
    scale: float


class PackedScheduler(Strict):
    """A trained scheduler inside a job's spec: only what is needed to decide."""

    format: Literal["marless-scheduler/1"]
    task: PackedTask
    features: dict[str, PackedScale]
    sha256: str = Field(description="of the weights")
    weights: tuple[str, ...] = Field(description="a safetensors file, base64, in pieces")


class MinionsConfig(ScalingConfig):
    """Settings of `minions`: a scheduler that `marless scheduler train` has trained for this kind of job."""

    name: str = RULE
    scheduler: PackedScheduler = Field(
        description="a trained scheduler; in a job file the folder that `marless scheduler train` wrote"
    )
    checkpoint: Literal["best", "cheapest"] = Field(
        "best", description="best: the highest objective; cheapest: the lowest cost that reaches the return"
    )

    @classmethod
    def with_files(cls, section: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: YAML
        """See `ScalingConfig`: replaces the path of a scheduler's folder by the scheduler."""
        from marless_minions.scheduler import pack

        folder, checkpoint = section.get("scheduler"), section.get("checkpoint", "best")
        if not isinstance(folder, str) or checkpoint not in ("best", "cheapest"):
            return section
        return {**section, "scheduler": pack(Path(folder), checkpoint).model_dump()}


@dataclass(frozen=True, kw_only=True)
class MinionsScaling:
    """The most probable number of actors under a trained policy (MinionsRL, AAAI 2024)."""

    loaded: Loaded
    rounds: int
    """Number of rounds of the job, for the feature "round"."""
    budget_usd: float | None
    """Budget of the job; None if the scheduler was trained without one."""
    functions: FunctionsSpec

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """Decide from the records alone; the cost so far is kept in the inputs of decisions."""
        spent_usd = self._spent(history)
        left = 1 - spent_usd / self.budget_usd if self.budget_usd else 1.0
        observation = observe(history, self.rounds, left)
        actors, probability = self.loaded.scheduler.choose(observation)
        seen = ", ".join(f"{shown} {value:.3g}" for name, shown in _SHOWN if (value := observation[name]) is not None)
        return ScalingDecision(
            actors,
            f"minions: {actors} of 1 to {self.loaded.scheduler.task.max_actors} actors is the scheduler's first choice "
            f"(probability {probability:.2f}) before round {history[-1].round + 2 if history else 1}: {seen}",
            {
                "features": observation,
                "probability": probability,
                "spent_usd": spent_usd,
                "scheduler_sha256": self.loaded.sha256,
            },
        )

    def _spent(self, history: Sequence[RoundRecord]) -> float:
        """Cost in USD of all rounds; 0 for a scheduler that was trained without a budget."""
        from marless_minions.cost import round_gb_s

        if not history or self.budget_usd is None:
            return 0.0
        before = remembered(history, RULE).get("spent_usd")
        # Handed on from decision to decision, because a long job's history has no longer all of its rounds.
        counted = history if before is None else (history[-1],)
        gb_s = sum(round_gb_s(record, self.functions) for record in counted)
        return (before or 0.0) + gb_s * self.loaded.scheduler.task.usd_per_gb_s


class MinionsKind:
    """See `ScalingKind`."""

    config_type = MinionsConfig

    def signals(self, config: ScalingConfig) -> frozenset[Signal]:
        """None: it decides from metrics that every round has."""
        return frozenset()

    def make(self, config: ScalingConfig, context: ScalingContext) -> MinionsScaling:
        """Unpack the scheduler; raises SpecError if it is damaged, or was trained for other numbers of actors."""
        from marless.core.settings import FunctionsSpec
        from marless_minions.scheduler import unpack

        assert isinstance(config, MinionsConfig)  # the registry passes only its own config_type
        loaded = unpack(config.scheduler, "scaling.scheduler")
        task = loaded.scheduler.task
        if task.max_actors != context.max_actors:
            raise SpecError(
                f"scaling.scheduler: it chooses from 1 to {task.max_actors} actors, but actors.count "
                f"is {context.max_actors}: set actors.count: {task.max_actors}, or train a scheduler for this job"
            )
        return MinionsScaling(
            loaded=loaded,
            rounds=context.rounds or task.rounds,
            # A scheduler that was trained without a budget has only seen a full one, and gets no other in a job.
            budget_usd=task.budget_usd and (context.budget_usd or task.budget_usd),
            functions=context.functions or FunctionsSpec(),
        )


SCALING = MinionsKind()
