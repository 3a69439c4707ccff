"""A contract test for scaling policies: checks that a policy satisfies the protocol of `marless.jobs.scaling.base`.

For tests of marless and of other packages; see docs/extending/scaling.md.
"""

from __future__ import annotations

import json
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from marless.core.errors import require
from marless.core.group import Group
from marless.jobs.record import Decision, GroupRecord, InvocationRecord, PhaseSeconds, RoundRecord, from_json
from marless.jobs.scaling.base import ScalingConfig, ScalingContext, ScalingDecision, ScalingKind
from marless.jobs.scaling.placebo import made_scaling
from marless.learning.data.returns import EpisodeReturns

AGENTS = tuple(f"agent_{number}" for number in range(6))
APART = tuple(Group(agent, (agent,)) for agent in AGENTS)
TOGETHER = (Group("agent_0", AGENTS[:4]), Group("agent_4", AGENTS[4:]))
_HISTORY = 512
"""Number of rounds in the histories that a coordinator passes, at most."""


def check_scaling(kind: ScalingKind, config: ScalingConfig, *, max_actors: int = 50, rounds: int = 40) -> None:
    """Let a policy decide over a synthetic job; raises AssertionError, naming the broken rule.

    Six agents share two policies in every other ten rounds. At random, no episode ends, nothing is measured, or a
    measurement is invalid. Every decision must be in range, have a reason of one line and inputs that are JSON, and be
    reproducible: from the same history, and by a new policy that reads the history from a file.
    """
    context = ScalingContext(max_actors=max_actors, agents=len(AGENTS), groups=APART, rounds=rounds)
    policy, least = made_scaling(kind, config, context), config.least(context)
    history: deque[RoundRecord] = deque(maxlen=_HISTORY)
    written: list[RoundRecord] = []
    chance = random.Random(20)
    for number in range(rounds):
        where, shown = f"round {number + 1}", tuple(history)
        groups = TOGETHER if number // 10 % 2 else APART
        decision = policy.decide(history, groups)
        require(tuple(history) == shown, f"{where}: changed the history that it was given")
        _check(decision, least, max_actors, where)
        require(policy.decide(history, groups) == decision, f"{where}: asked again, it decides otherwise")
        restarted = made_scaling(kind, config, context).decide(written, groups)
        require(
            _read_back(restarted) == _read_back(decision),
            f"{where}: decides otherwise after a restart; what it must remember belongs into ScalingDecision.inputs",
        )
        history.append(sample_round(history, groups, decision, config.name, chance))
        written = [*written, from_json(history[-1].to_json())][-_HISTORY:]


def sample_round(
    history: Sequence[RoundRecord], groups: Sequence[Group], decision: ScalingDecision, rule: str, chance: random.Random
) -> RoundRecord:
    """A synthetic round after `history`, with this decision: 100 env steps per actor, random returns and metrics."""
    number = history[-1].round + 1 if history else 0
    mean = chance.uniform(-40, -20)
    returns = EpisodeReturns(episodes=4, mean=mean, per_agent=dict.fromkeys(AGENTS, mean), standard_error=0.1)
    metrics = {group.policy: _measured(chance) for group in groups}
    return RoundRecord(
        job="contract",
        round=number,
        env_steps=(history[-1].env_steps if history else 0) + 100 * decision.actors,
        actors=decision.actors,
        groups=tuple(GroupRecord(policy=g.policy, agents=g.agents, version=number + 2) for g in groups),
        versions={group.policy: number + 2 for group in groups},
        started_s=1e9 + number,
        ended_s=1e9 + number + 0.9,
        phases=PhaseSeconds(rollout=0.3, update=0.6, evaluation=0.0),
        returns=returns if chance.random() < 0.8 else None,
        evaluation=None,
        metrics=metrics,
        invocations=_worked(decision.actors, 1e9 + number, chance),
        decisions=(
            Decision(
                kind="scaling",
                rule=rule,
                outcome=f"{decision.actors} actors",
                reason=decision.reason,
                inputs=decision.inputs,
            ),
        ),
    )


def _worked(actors: int, start_s: float, chance: random.Random) -> tuple[InvocationRecord, ...]:
    """The round's actors, and a learner with two functions; sometimes cold, or with a clock that was set back."""
    if chance.random() < 0.1:
        return ()
    back_s = 5.0 if chance.random() < 0.1 else 0.0
    cold = chance.random() < 0.2
    made = [
        _invocation("actor", start_s, start_s + chance.lognormvariate(-1.5, 0.3) - back_s, cold) for _ in range(actors)
    ]
    inner = [_invocation(function, start_s + 0.4, start_s + 0.8, False) for function in ("critic", "policy")]
    return (*made, _invocation("learner", start_s + 0.3, start_s + 0.9, cold), *inner)


def _invocation(function: str, start_s: float, end_s: float, cold: bool) -> InvocationRecord:
    return InvocationRecord(
        id=function,
        function=function,
        name="",
        index=0,
        attempt=1,
        worker="",
        queued_s=start_s - (0.2 if cold else 0.01),
        start_s=start_s,
        end_s=end_s,
        vcpu_s=0.1,
        memory_bytes=2**26,
        cold=cold,
        init_s=0.19 if cold else 0.0,
    )


def _measured(chance: random.Random) -> dict[str, float]:
    """Random metrics of one policy: mostly valid, sometimes missing, sometimes invalid."""
    kind = chance.random()
    if kind < 0.1:
        return {"entropy": 1.0}
    if kind < 0.2:
        odd = chance.choice([math.nan, math.inf, -1.0, 0.0, 1e300])
        return {"curvature": odd, "noise_scale": odd, "gradient_trace": odd, "gradient_signal": odd}
    return {
        "curvature": chance.lognormvariate(0, 1),
        "noise_scale": chance.lognormvariate(6, 1),
        "gradient_trace": chance.lognormvariate(6, 1),
        "gradient_signal": chance.gauss(1, 2),
    }


def _check(decision: ScalingDecision, least: int, most: int, where: str) -> None:
    number = decision.actors
    require(type(number) is int, f"{where}: {number!r} actors; give a whole number")
    require(least <= number <= most, f"{where}: {number} actors; this job's rounds get {least} to {most}")
    one_line = bool(decision.reason.strip()) and decision.reason.isprintable()
    require(one_line, f"{where}: the reason is no sentence on one line: {decision.reason!r}")
    try:
        json.dumps(dict(decision.inputs), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{where}: the inputs are not JSON: {error}") from None


def _read_back(decision: ScalingDecision) -> ScalingDecision:
    """The decision as a resumed job reads it from its record."""
    return replace(decision, inputs=json.loads(json.dumps(dict(decision.inputs))))
