"""Made-up rounds for scaling policies to decide on."""

from collections.abc import Mapping, Sequence

from marless.core.group import Group
from marless.jobs.record import Decision, GroupRecord, PhaseSeconds, RoundRecord
from marless.jobs.scaling.base import ScalingContext, ScalingDecision
from marless.learning.data.returns import EpisodeReturns


def groups(*policies: str) -> tuple[Group, ...]:
    """A policy an agent; "a+b" is a policy "a" of two agents."""
    return tuple(Group(policy.split("+")[0], tuple(policy.split("+"))) for policy in policies)


def context(*policies: str, most: int = 50, agents: int = 0, **changes) -> ScalingContext:
    return ScalingContext(
        max_actors=most, agents=agents or len(policies), groups=groups(*policies), rounds=None, **changes
    )


def record(
    number: int,
    *policies: str,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    mean: float | None = None,
    actors: int = 10,
    env_steps: int | None = None,
    decided: tuple[str, ScalingDecision] | None = None,
) -> RoundRecord:
    returns = None if mean is None else EpisodeReturns(episodes=1, mean=mean, per_agent={"a": mean}, standard_error=0.0)
    decisions = ()
    if decided:
        rule, decision = decided
        decisions = (
            Decision(kind="scaling", rule=rule, outcome="", reason=decision.reason, inputs=decision.inputs),
            Decision(kind="sharing", rule="fixed", outcome="", reason="fixed"),
        )
    return RoundRecord(
        job="j",
        round=number,
        env_steps=1000 * (number + 1) if env_steps is None else env_steps,
        actors=actors,
        groups=tuple(GroupRecord(policy=g.policy, agents=g.agents, version=2) for g in groups(*policies)),
        versions={},
        started_s=0.0,
        ended_s=1.0,
        phases=PhaseSeconds(rollout=0.5, update=0.5, evaluation=0.0),
        returns=returns,
        evaluation=None,
        metrics=metrics or {},
        invocations=(),
        decisions=decisions,
    )


def measured(metric: str, values: Mapping[str, Sequence[float | None]], first: int = 0, **fields) -> list[RoundRecord]:
    """A round for each value, in which every policy had its own; None: not measured."""
    columns = zip(*values.values(), strict=True)
    return [
        record(
            first + number,
            *values,
            metrics={
                policy.split("+")[0]: {} if value is None else {metric: value}
                for policy, value in zip(values, column, strict=True)
            },
            **fields,
        )
        for number, column in enumerate(columns)
    ]


def actors(policy, history: Sequence[RoundRecord], of: Sequence[Group]) -> list[int]:
    """What is decided before the first round, and after each."""
    return [policy.decide(history[:length], of).actors for length in range(len(history) + 1)]
