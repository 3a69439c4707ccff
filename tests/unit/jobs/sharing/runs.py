"""Jobs made of records alone: what a sharing policy decides is what the next round trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from marless.jobs.record import Decision, Distances, GroupRecord, PhaseSeconds, RoundRecord, from_json
from marless.jobs.sharing.base import Sharing, SharingDecision, initial_groups
from marless.jobs.sharing.marless import SHARING
from marless.learning.data.returns import EpisodeReturns
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces

AGENTS = tuple("abcdef")
SIX = EnvSpaces((AgentClass("agent", AGENTS, 4, Discrete(3)),), 0, 25)
MIXED = EnvSpaces(
    (AgentClass("hunter", ("h", "i"), 4, Discrete(3)), AgentClass("prey", tuple("pqrs"), 5, Discrete(3))), 0, 25
)


def policy(spaces: EnvSpaces = SIX, **settings: object) -> Sharing:
    config = SHARING.config_type.model_validate(settings)
    return SHARING.make(config, initial_groups("independent", spaces), spaces)


def returns(per_agent: Mapping[str, float] | None) -> EpisodeReturns | None:
    if per_agent is None:
        return None
    mean = sum(per_agent.values()) / len(per_agent)
    return EpisodeReturns(episodes=4, mean=mean, per_agent=per_agent, standard_error=0.0)


def record(
    number: int,
    decision: SharingDecision,
    seen: EpisodeReturns | None,
    *,
    curvature: Mapping[str, float] | None = None,
    distances: Sequence[Distances] = (),
) -> RoundRecord:
    """A round with these groups, as it is read back from its file."""
    made = RoundRecord(
        job="j",
        round=number,
        env_steps=100 * (number + 1),
        actors=1,
        groups=tuple(
            GroupRecord(policy=g.policy, agents=g.agents, version=1, source=g.source) for g in decision.groups
        ),
        versions={},
        started_s=0.0,
        ended_s=1.0,
        phases=PhaseSeconds(rollout=0.5, update=0.5, evaluation=0.0),
        returns=seen,
        evaluation=None,
        metrics={g.policy: {"curvature": (curvature or {}).get(g.policy, 1.0)} for g in decision.groups},
        invocations=(),
        decisions=(
            Decision(kind="scaling", rule="fixed", outcome="1 actors", reason="fixed"),
            Decision(kind="sharing", rule="marless", outcome="", reason=decision.reason, inputs=decision.inputs),
        ),
        distances=tuple(distances),
    )
    return from_json(made.to_json())


def lived(
    sharing: Sharing,
    outcomes: Sequence[Mapping[str, float] | None],
    *,
    curvature: Mapping[str, float] | None = None,
    measured: Callable[[int], Sequence[Distances]] = lambda _: (),
) -> tuple[list[SharingDecision], list[int]]:
    """Rounds with these returns per agent; the decisions (one more than rounds), and the rounds that were asked."""
    history: list[RoundRecord] = []
    decisions, asked = [sharing.decide(history)], []
    for number, per_agent in enumerate(outcomes):
        asks = sharing.asks(history, returns(per_agent))
        asked += [number] * asks
        distances = measured(number) if asks else ()
        history.append(record(number, decisions[-1], returns(per_agent), curvature=curvature, distances=distances))
        decisions.append(sharing.decide(history))
        assert decisions[-1] == sharing.decide(history[-1:]), "the newest round is all that it needs"
    return decisions, asked
