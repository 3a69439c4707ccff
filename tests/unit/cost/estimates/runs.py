"""Recorded runs as tests need them: made up round by round, but decided on as a coordinator decides."""

from types import SimpleNamespace

import numpy as np

from marless.core.group import Group
from marless.jobs.job import PreparedJob, prepare
from marless.jobs.record import Distances, GroupRecord, InvocationRecord, PhaseSeconds, RoundRecord, from_json
from marless.jobs.spec import JobSpec, parse
from marless.learning.data.returns import EpisodeReturns
from marless.services.coordinator.execution.planning import Planner
from marless.services.coordinator.state.journal import Costs, Journal

METRICS = ("curvature", "noise_scale", "policy_loss", "value_loss", "approx_kl")


def spec_of(agents: int = 3, **sections) -> JobSpec:
    document = {
        "env": {"name": "mpe/simple_spread", "options": {"agents": agents}},
        "algorithm": "ippo",
        "actors": {"count": 6, "envs": 4, "steps": 25},
        "stop": {"rounds": 100},
    }
    return parse(document | sections, "test")


def run_of(spec: JobSpec, rounds: int, seed: int = 0) -> tuple[RoundRecord, ...]:
    """Rounds of a job with made-up work on two slots, planned as a coordinator plans them."""
    job, rng = prepare(spec), np.random.default_rng(seed)
    folder = SimpleNamespace(append=lambda record: None)
    journal = Journal(folder, Costs(spec, folder))
    planner, made = Planner(job, journal), []
    for _ in range(rounds):
        versions = dict(journal.last.versions) if journal.last else {}
        names = (*job.spaces.agents, *(each.name for each in job.spaces.classes))
        versions |= {name: 1 for name in names if name not in versions}
        plan = planner.plan(versions, "")
        returns = _returns(job, rng)
        measured = planner.measure(returns)
        record = _round(job, plan, returns, rng, similarity=measured.similarity, before=journal.last)
        made.append(from_json(record.to_json()))
        journal.append(made[-1])
    return tuple(made)


def _round(job: PreparedJob, plan, returns: EpisodeReturns, rng, *, similarity: bool, before) -> RoundRecord:
    start_s = before.ended_s + 0.01 if before else 1000.0
    actors, rollout_s = _actors(plan.actors, start_s, rng)
    update_s = start_s + rollout_s
    learners, learned_s = _learners(job, plan.groups, plan.actors, update_s, rng, similarity)
    versions = dict(plan.versions)
    versions |= {group.policy: max(versions.get(group.policy, 0), versions[group.start]) + 1 for group in plan.groups}
    groups = (
        GroupRecord(policy=g.policy, agents=g.agents, version=versions[g.policy], source=g.source) for g in plan.groups
    )
    return RoundRecord(
        job="run",
        round=plan.round,
        env_steps=plan.env_steps + plan.actors * job.spec.actors.envs * job.spec.actors.steps,
        actors=plan.actors,
        groups=tuple(groups),
        versions=versions,
        started_s=start_s,
        ended_s=update_s + learned_s + 0.003,
        phases=PhaseSeconds(rollout=rollout_s, update=learned_s, evaluation=0.001),
        returns=returns,
        evaluation=None,
        metrics={
            group.policy: dict(zip(METRICS, map(float, rng.uniform(0.1, 9.0, 5)), strict=True)) for group in plan.groups
        },
        invocations=(*actors, *learners),
        decisions=plan.decisions,
        distances=_distances(job, rng) if similarity else (),
    )


def _returns(job: PreparedJob, rng) -> EpisodeReturns:
    per_agent = {agent: float(rng.normal(-20.0, 3.0)) for agent in job.spaces.agents}
    mean = sum(per_agent.values()) / len(per_agent)
    return EpisodeReturns(episodes=8, mean=mean, per_agent=per_agent, standard_error=0.5)


def _distances(job: PreparedJob, rng) -> tuple[Distances, ...]:
    found = []
    for each in job.spaces.classes:
        values = rng.uniform(0.1, 5.0, (len(each.agents), len(each.agents)))
        values = np.triu(values, 1) + np.triu(values, 1).T
        found.append(Distances(agents=each.agents, values=tuple(map(tuple, values.tolist()))))
    return tuple(found)


def invocation(function: str, start_s: float, end_s: float, **changes) -> InvocationRecord:
    fields = {
        "id": f"run/{function}", "function": function, "name": "", "index": 0, "attempt": 1, "worker": "",
        "cold": False, "queued_s": 0.0, "start_s": start_s, "end_s": end_s, "vcpu_s": end_s - start_s,
        "memory_bytes": 2**26,
    }  # fmt: skip
    return InvocationRecord(**fields | changes)


def _actors(count: int, start_s: float, rng) -> tuple[list[InvocationRecord], float]:
    """On two slots, first come, first served."""
    slots, found = [start_s + 0.001, start_s + 0.001], []
    for index in range(count):
        begin = min(slots)
        slot = slots.index(begin)
        slots[slot] = begin + float(rng.uniform(0.01, 0.03))
        found.append(
            invocation("actor", begin, slots[slot], index=index, queued_s=start_s + 0.001, worker=f"actor-{slot}")
        )
    return found, max(slots) - start_s + 0.002


def _learners(job: PreparedJob, groups: tuple[Group, ...], actors: int, start_s: float, rng, similarity: bool):
    """One learner a class: a tenth of a second of reading, then passes that take as long as the work in them."""
    found, longest = [], 0.0
    for index, agents in enumerate(job.spaces.classes):
        own = [group for group in groups if group.agents[0] in agents.agents]
        begin = start_s + 0.1
        names = [("post_process", agents.name, 0.001 * actors)]
        for kind in ("critic", "policy", *(("curvature",) if job.curvature else ())):
            names += [
                (kind, group.policy, (0.001 if kind == "curvature" else 0.001 * actors * len(group.agents)))
                for group in own
            ]
        names += [("similarity", agents.name, 0.004)] if similarity else []
        runs = [(kind, name, seconds * float(rng.uniform(0.9, 1.1))) for kind, name, seconds in names]
        end = begin + sum(seconds for *_, seconds in runs)
        found.append(invocation("learner", start_s, end, index=index, queued_s=start_s, worker=f"learner-{index}"))
        for kind, name, seconds in runs:
            found.append(invocation(kind, begin, begin + seconds, name=name, index=index))
            begin += seconds
        longest = max(longest, end - start_s)
    return found, longest + 0.001
