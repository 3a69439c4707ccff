"""Rebuilds a recorded round as it would have been recorded with other numbers of actors and other groups.

What does not change is copied bit for bit. Changed durations are modelled by `marless.cost.simulation.durations`, and
the queueing of actors by `marless.cost.simulation.cluster`. Learning cannot be modelled: returns, evaluations, losses,
curvature, noise and distances are those of the recording, and `Rebuilt.assumed` lists which of them replace values that
were not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from marless.core.group import FunctionNode, Group
from marless.core.settings import FunctionsSpec
from marless.cost.simulation import cluster
from marless.cost.simulation.cluster import Timelines
from marless.cost.simulation.durations import OF_SCOPE, DurationModel, Pooling
from marless.jobs.job import Function
from marless.jobs.record import Decision, Distances, GroupRecord, InvocationRecord, PhaseSeconds, RoundRecord
from marless.jobs.usage import HOST, WHOLE, outside_of_passes

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class PlannedRound:
    """The decisions for a round, and what its learners are to measure."""

    actors: int
    groups: tuple[Group, ...]
    functions: tuple[Function, ...]
    """All functions of an update of these groups."""
    decisions: tuple[Decision, ...]
    curvature: bool
    similarity: bool
    pooling: Pooling


@dataclass(frozen=True, kw_only=True)
class ActorSlots:
    """The cluster on which the replayed actors are scheduled."""

    functions: FunctionsSpec
    slots: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """A recorded round, with the data of its run that `rebuild` needs."""

    record: RoundRecord
    env_steps: int
    """Env steps of this round, not accumulated."""
    pooling: Pooling
    curvature: bool
    """True if learners were to measure curvature; they did unless they did not train yet."""
    durations: DurationModel
    distances: tuple[Distances, ...]
    """Distances of this round or, if it has none, of the nearest round that has."""
    distances_round: int
    """The round of these distances."""
    rng: np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """A rebuilt round."""

    record: RoundRecord
    assumed: tuple[str, ...]
    """Recorded values that replace values which were not measured, one sentence each."""
    timelines: Timelines
    """Both runs after this round."""


def rebuild(
    source: Source, plan: PlannedRound, machine: ActorSlots, *, before: RoundRecord | None, timelines: Timelines
) -> Rebuilt:
    """Rebuild a round under another plan; `before` is the replayed round before, `timelines` both runs until then."""
    recorded, around = source.record, cluster.overheads(source.record)
    env_steps = _env_steps(source, plan)
    actors = [each for each in recorded.invocations if each.function == "actor"]
    rollout_s = recorded_rollout_s = _rollout_s(recorded)
    update_s = recorded.phases.update
    if plan.actors != recorded.actors:
        actors, busy_s = _actors(source, plan, machine)
        rollout_s = busy_s + around.rollout
    learners = [each for each in recorded.invocations if each.function not in WHOLE]
    if not _same_update(source, plan):
        learners = _learners(source, plan, env_steps)
        hosts = [each for each in learners if each.function == HOST]
        update_s = cluster.span(hosts or learners) + around.update
    evaluations, evaluation_s = _evaluations(recorded, update_s)
    later, timelines = timelines.after(
        replace(recorded.phases, rollout=recorded_rollout_s),
        PhaseSeconds(rollout=rollout_s, update=update_s, evaluation=evaluation_s),
        recorded.idle_s,
    )
    groups, versions = _published(recorded, plan, before)
    record = replace(
        recorded,
        env_steps=(before.env_steps if before else 0) + env_steps,
        actors=plan.actors,
        groups=groups,
        versions=versions,
        started_s=recorded.started_s + later.round_s,
        ended_s=recorded.ended_s + later.end_s,
        phases=PhaseSeconds(
            rollout=max(recorded.phases.rollout + later.waited_s, 0.0), update=update_s, evaluation=evaluation_s
        ),
        metrics=_metrics(recorded, plan.groups),
        invocations=(
            *_shifted(actors, later.rollout_s),
            *_shifted(learners, later.update_s),
            *_shifted((each for each in evaluations if each.during_update), later.update_s),
            *_shifted((each for each in evaluations if not each.during_update), later.end_s),
        ),
        decisions=plan.decisions,
        distances=source.distances if plan.similarity else (),
    )
    return Rebuilt(record=record, assumed=tuple(_assumed(source, plan)), timelines=timelines)


def _rollout_s(recorded: RoundRecord) -> float:
    """Seconds that a round's actors took: longer than the job waited for them, if they ran beside another round."""
    acting = [each for each in recorded.invocations if each.function == "actor"]
    concurrent = any(each.start_s < recorded.started_s for each in acting)
    return cluster.span(acting) if concurrent else recorded.phases.rollout


def _evaluations(recorded: RoundRecord, update_s: float) -> tuple[list[InvocationRecord], float]:
    """A round's evaluations, and their seconds after an update of this length: those during it may end with it."""
    evaluations = [each for each in recorded.invocations if each.function == "evaluation"]
    if update_s == recorded.phases.update:
        return evaluations, recorded.phases.evaluation
    concurrent = [each for each in evaluations if each.during_update]
    rest_s = max(recorded.phases.evaluation - cluster.later_s(concurrent, recorded.phases.update), 0.0)
    return evaluations, rest_s + cluster.later_s(concurrent, update_s)


def _env_steps(source: Source, plan: PlannedRound) -> int:
    """Env steps of the round: every actor samples as many as the recorded ones did."""
    if plan.actors == source.record.actors:
        return source.env_steps
    return source.env_steps * plan.actors // source.record.actors


def _actors(source: Source, plan: PlannedRound, machine: ActorSlots) -> tuple[list[InvocationRecord], float]:
    """Draw actors and schedule them on the machine's slots from the round's start; returns them and the makespan.

    A drawn actor keeps its cold start, as far as it waited for it.
    """
    recorded = source.record
    drawn = source.durations.actors(recorded.round, plan.actors, source.rng)
    waits = [cluster.awaited(each) for each in drawn]
    walls = [max(each.end_s - each.start_s, 0.0) for each in drawn]
    at_once = cluster.lanes(machine.slots, machine.functions.actor, "actor")
    places = cluster.schedule(
        [cluster.SimulatedFunction(wait + wall) for wait, wall in zip(waits, walls, strict=True)], at_once
    )
    actors = [
        replace(
            each,
            id=f"{recorded.job}/{recorded.round}/replayed/{index}",
            index=index,
            worker=f"replayed-{place.lane}",
            queued_s=recorded.started_s + place.start_s,
            start_s=recorded.started_s + place.start_s + wait,
            end_s=recorded.started_s + place.end_s,
        )
        for index, (each, wait, place) in enumerate(zip(drawn, waits, places, strict=True))
    ]
    return actors, cluster.makespan(places)


def _same_update(source: Source, plan: PlannedRound) -> bool:
    """True if the plan gives the same update as the recorded one."""
    recorded = source.record
    shared = any(len(group.agents) > 1 for group in plan.groups)
    return (
        plan.actors == recorded.actors
        and _who(plan.groups) == _who(recorded.groups)
        and (plan.pooling == source.pooling or not shared)
        and plan.curvature == source.curvature
        and plan.similarity == bool(recorded.distances)
    )


def _learners(source: Source, plan: PlannedRound, env_steps: int) -> list[InvocationRecord]:
    """The learners of all scopes, and the functions inside them.

    The time of a learner outside its passes (reading trajectories, publishing) is scaled with the env steps; its passes
    overlap as much as the recorded ones. All functions inside it get the span of all its passes.
    """
    recorded, found = source.record, []
    hosts = {each.index: each for each in recorded.invocations if each.function == HOST}
    inner = [each for each in recorded.invocations if each.function not in (*WHOLE, HOST)]
    for index in dict.fromkeys(each.index for each in inner):
        before = [each for each in inner if each.index == index]
        after = _functions(source, plan, index, env_steps)
        host = hosts.get(index) or _around(before)
        outside_s = outside_of_passes([host], before)
        work, work_before = _vcpu_s(after), _vcpu_s(before)
        passes_s = (max(host.end_s - host.start_s, 0.0) - outside_s) * (work / work_before if work_before else 1.0)
        outside_s *= env_steps / source.env_steps if source.env_steps else 1.0
        start_s, end_s = host.start_s + outside_s, host.start_s + outside_s + passes_s
        if index in hosts:
            # What the learner did outside of its functions stays; rounding must not bring it below what they did.
            cpu_s = _cpu_s(after)
            busy = cpu_s + host.vcpu_s - _cpu_s(before)
            found.append(replace(host, end_s=end_s, vcpu_s=max(busy, cpu_s)))
        found += [replace(each, start_s=start_s, end_s=end_s) for each in after]
    return found


def _functions(source: Source, plan: PlannedRound, index: int, env_steps: int) -> list[InvocationRecord]:
    """The functions inside the learner of one scope, with their vCPU seconds: those of the graph, then measurements."""
    nodes = [each.node for each in plan.functions if each.index == index]
    if plan.curvature:
        nodes += [FunctionNode("curvature", node.name) for node in nodes if node.function == "policy"]
    found = [_function(source, plan, index, env_steps, node) for node in nodes]
    if plan.similarity:
        found += [each for each in source.durations.similarity(source.record.round) if each.index == index]
    return [each for each in found if each]


def _function(
    source: Source, plan: PlannedRound, index: int, env_steps: int, node: FunctionNode
) -> InvocationRecord | None:
    """One function, modelled from the recorded one that replaces it; None if the record has none."""
    recorded, durations = source.record, source.durations
    group = next((each for each in plan.groups if each.policy == node.name and node.function not in OF_SCOPE), None)
    stands = stand_in(recorded.groups, group) if group else None
    name = stands.policy if stands else node.name
    ran = (each for each in recorded.invocations if (each.function, each.name) == (node.function, name))
    one = next((each for each in ran if each.index == index), None)
    if one is None:
        return None
    before = durations.samples(node.function, len(stands.agents) if stands else 1, source.env_steps, source.pooling)
    after = durations.samples(node.function, len(group.agents) if group else 1, env_steps, plan.pooling)
    times = durations.ratio(node.function, before, after)
    return replace(
        one,
        id=f"{recorded.job}/{recorded.round}/{node.id}",
        name=node.name,
        vcpu_s=one.vcpu_s * times,
        pass_cpu_s=one.pass_cpu_s * times,
        after=node.after,
    )


def stand_in(recorded: Sequence[GroupRecord], group: Group) -> GroupRecord:
    """The recorded group whose measurements are used for `group`: that of the agent it is named after, or else of its
    first agent. If the recording has a group of the same agents, it is that one.
    """
    named_after = group.policy if group.policy in group.agents else group.agents[0]
    return next(each for each in recorded if named_after in each.agents)


def _published(
    recorded: RoundRecord, plan: PlannedRound, before: RoundRecord | None
) -> tuple[tuple[GroupRecord, ...], Mapping[str, int]]:
    """The groups with their versions, and all heads: as recorded if the groups are equal, else counted on."""
    if _who(plan.groups) == _who(recorded.groups) and (
        before is None or recorded.versions.keys() >= before.versions.keys()
    ):
        by_agents = {frozenset(each.agents): each for each in recorded.groups}
        groups = [replace(by_agents[frozenset(each.agents)], source=each.source) for each in plan.groups]
        return tuple(groups), recorded.versions
    heads = dict(before.versions if before else {})
    policies = {each.policy for each in recorded.groups}
    heads |= {name: version for name, version in recorded.versions.items() if name not in policies | heads.keys()}
    heads |= {each.policy: max(heads.get(each.policy, 0), heads.get(each.start, 0)) + 1 for each in plan.groups}
    return tuple(
        GroupRecord(policy=each.policy, agents=each.agents, version=heads[each.policy], source=each.source)
        for each in plan.groups
    ), heads


def _metrics(recorded: RoundRecord, groups: Iterable[Group]) -> Mapping[str, Mapping[str, float]]:
    """The metrics of the recorded policies that replace the replayed ones, and of joint critics."""
    groups = tuple(groups)
    if _who(groups) == _who(recorded.groups):
        return recorded.metrics
    policies = {each.policy for each in recorded.groups}
    joint = {name: metrics for name, metrics in recorded.metrics.items() if name not in policies}
    stands = {group.policy: stand_in(recorded.groups, group).policy for group in groups}
    return {name: recorded.metrics[stand] for name, stand in stands.items() if stand in recorded.metrics} | joint


def _assumed(source: Source, plan: PlannedRound) -> Iterable[str]:
    recorded = source.record
    if _who(plan.groups) != _who(recorded.groups):
        for group in plan.groups:
            stands = stand_in(recorded.groups, group)
            if set(stands.agents) != set(group.agents):
                yield (
                    f"metrics of {'+'.join(group.agents)} are those recorded of {stands.policy} "
                    f"({'+'.join(stands.agents)})"
                )
    if plan.similarity and source.distances_round != recorded.round:
        away = source.distances_round - recorded.round
        yield f"distances are those recorded {abs(away)} round(s) {'later' if away > 0 else 'earlier'}"


def _who(groups: Iterable[Group | GroupRecord]) -> set[tuple[str, frozenset[str]]]:
    return {(group.policy, frozenset(group.agents)) for group in groups}


def _shifted(invocations: Iterable[InvocationRecord], by_s: float) -> list[InvocationRecord]:
    """The same invocations, `by_s` seconds later; functions inside a learner have no queueing time."""
    if not by_s:
        return list(invocations)
    return [
        replace(
            each,
            queued_s=each.queued_s and each.queued_s + by_s,
            start_s=each.start_s + by_s,
            end_s=each.end_s + by_s,
        )
        for each in invocations
    ]


def _around(inner: Sequence[InvocationRecord]) -> InvocationRecord:
    """A replacement for a learner that the record lacks, because its result came from the store."""
    start_s, end_s = min(each.start_s for each in inner), max(each.end_s for each in inner)
    return replace(inner[0], function=HOST, start_s=start_s, end_s=end_s, vcpu_s=_cpu_s(inner), pass_cpu_s=0.0)


def _vcpu_s(invocations: Iterable[InvocationRecord]) -> float:
    return sum(max(each.vcpu_s, 0.0) for each in invocations)


def _cpu_s(inner: Sequence[InvocationRecord]) -> float:
    """CPU seconds of functions inside learners; their shares of the passes' durations if none were measured."""
    return sum(max(each.cpu_s, 0.0) for each in inner) or _vcpu_s(inner)
