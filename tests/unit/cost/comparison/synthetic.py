"""Runs that nobody ran: records of which every figure is known."""

import json
from pathlib import Path

from marless.jobs import spec as specs
from marless.jobs.record import Decision, GroupRecord, InvocationRecord, PhaseSeconds, RoundRecord
from marless.jobs.spec import JobSpec
from marless.learning.data.returns import EpisodeReturns

JOB = {
    "name": "tiny",
    "env": {"name": "mpe/simple_spread", "options": {"agents": 2, "max_cycles": 5}},
    "algorithm": {"name": "ippo", "epochs": 1, "minibatches": 2},
    "model": {"hidden": [8]},
    "actors": {"count": 4, "envs": 4, "steps": 5},
    "evaluation": {"every": 0, "episodes": 4, "random_episodes": 20},
    "stop": {"rounds": 3},
}
AGENTS = ("agent_0", "agent_1")
ROUND_S, ACTOR_S, LEARNER_S = 10.0, 2.0, 1.0


def spec(**changes) -> JobSpec:
    return specs.parse(JOB | changes, "test")


def returns(mean: float) -> EpisodeReturns:
    return EpisodeReturns(episodes=4, mean=mean, per_agent=dict.fromkeys(AGENTS, mean), standard_error=0.1)


def _invocation(function: str, name: str, index: int, start_s: float, seconds: float) -> InvocationRecord:
    return InvocationRecord(
        id=f"{function}/{name}/{index}", function=function, name=name, index=index, attempt=1, worker="w",
        queued_s=start_s, start_s=start_s, end_s=start_s + seconds, vcpu_s=seconds, memory_bytes=2**26, cold=False,
    )  # fmt: skip


def record(
    number: int,
    *,
    job: str = "tiny",
    actors: int = 4,
    groups: tuple[tuple[str, ...], ...] = (("agent_0",), ("agent_1",)),
    mean: float = -20.0,
    greedy: float | None = None,
    reasons: tuple[str, str] = ("why so many", "why so grouped"),
    rules: tuple[str, str] = ("marless", "marless"),
    inputs: dict | None = None,
) -> RoundRecord:
    """A round of `ROUND_S`, whose actors take `ACTOR_S` each and whose policies and critics `LEARNER_S` each."""
    start_s = 1000.0 + number * ROUND_S
    update_s = start_s + ACTOR_S
    learners = [
        _invocation(function, group[0], 0, update_s, LEARNER_S) for group in groups for function in ("policy", "critic")
    ]
    invocations = [_invocation("actor", "", index, start_s, ACTOR_S) for index in range(actors)]
    return RoundRecord(
        job=job,
        round=number,
        env_steps=100 * (number + 1),
        actors=actors,
        groups=tuple(GroupRecord(policy=group[0], agents=group, version=number + 2) for group in groups),
        versions={group[0]: number + 2 for group in groups},
        started_s=start_s,
        ended_s=start_s + ROUND_S,
        phases=PhaseSeconds(rollout=ACTOR_S, update=LEARNER_S, evaluation=0.0),
        returns=returns(mean),
        evaluation=None if greedy is None else returns(greedy),
        metrics={},
        invocations=(*invocations, *learners),
        decisions=(
            Decision(kind="scaling", rule=rules[0], outcome=f"{actors} actors", reason=reasons[0], inputs=inputs or {}),
            Decision(kind="sharing", rule=rules[1], outcome=" ".join(map("+".join, groups)), reason=reasons[1]),
        ),
    )


def write(
    folder: Path, job: JobSpec, records: list[RoundRecord], *, state: str = "SUCCEEDED", random: float | None = -30.0
) -> Path:
    """A run folder as a coordinator leaves it."""
    folder.mkdir(parents=True)
    (folder / "spec.yaml").write_text(job.to_yaml())
    chance = random is not None and {"episodes": 9, "mean": random, "per_agent": {}, "standard_error": 0.1}
    (folder / "job.json").write_text(json.dumps({"job": folder.name, "state": state, "random": chance or None}))
    (folder / "rounds.jsonl").write_text("".join(each.to_json() + "\n" for each in records))
    return folder
