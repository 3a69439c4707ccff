"""A job ready to run: its spec checked against its environment, with its schedule, its policies and their decisions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from operator import mul
from typing import Any, Literal

from marless.core.errors import InternalError, SpecError
from marless.core.group import FunctionNode, Group
from marless.core.limits import MAX_PUBLISH_BYTES, MAX_TRAJECTORY_BYTES
from marless.jobs import prices as price_tables
from marless.jobs.evidence import EARLY
from marless.jobs.record import Decision, RoundRecord
from marless.jobs.scaling.base import SCALING_POLICIES, ActorScaling, ScalingContext, within_budget
from marless.jobs.scaling.deadline import WINDOW, Deadline
from marless.jobs.scaling.placebo import made_scaling
from marless.jobs.scaling.round_costs import FunctionRates
from marless.jobs.scaling.round_times import newest_times
from marless.jobs.schedules.base import SCHEDULES, Schedule, made
from marless.jobs.schedules.overlapping import OverlappingConfig, makes_versions
from marless.jobs.sharing.base import SHARING_POLICIES, Sharing, initial_groups
from marless.jobs.spec import JobSpec
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import Setting, remembered, scopes, stacked_frames
from marless.learning.algos.learner import Scope
from marless.learning.algos.off_policy.config import OffPolicyConfig
from marless.learning.data.frames import ReplaySchema
from marless.learning.data.trajectory import TrajectorySchema
from marless.learning.envs import registry as environments
from marless.learning.envs.base import EnvSpaces, check_spaces
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.kinds import kind_of
from marless.learning.nets.module_kind import is_module
from marless.learning.nets.net_kind import InputShape

Examine = Callable[[str, Mapping[str, Any]], tuple[EnvSpaces, bool]]
"""The spaces of the environment of this name with these options, and whether it has `save` and `load`."""
_BYTES_PER_WEIGHT = 16
"""Four float32 numbers: a weight, its gradient, and two optimizer moments."""
_MANY_NUMBERS = 4096
"""Numbers of an observation beyond which it is likely to be a picture."""


@dataclass(frozen=True)
class Function:
    """One function of an update, and the scope whose learner runs it."""

    scope: Scope
    node: FunctionNode

    @property
    def index(self) -> int:
        """Index of the scope, as in records."""
        return self.scope.index


@dataclass(frozen=True)
class PreparedJob:
    """Everything that the coordinator needs to run a job; no tensors."""

    spec: JobSpec
    spaces: EnvSpaces
    can_be_saved: bool
    """True if the environment has `save` and `load`."""
    with_state: bool
    """True if trajectories carry the global state."""
    scaling: ActorScaling
    sharing: Sharing
    schedule: Schedule[Any]  # Any: each schedule has states of its own
    curvature: bool
    """True if learners measure the curvature of each policy's objective in every round."""
    noise: bool
    """True if learners measure each policy's gradient noise scale in every round."""
    gradients: bool
    """True if learners measure statistics of gradients, in the rounds of `gradients_due`."""

    def gradients_due(self, number: int) -> bool:
        """True if learners measure statistics of gradients in this round.

        Once in a while is enough, because they change slowly and means are taken over many rounds; measuring them in
        every round would take a tenth of the update.
        """
        return self.gradients and (number < EARLY or number % EARLY == 0)

    @property
    def carried(self) -> bool:
        """True if episodes go on over rounds."""
        return self.spec.actors.episodes == "carried"

    def functions(self, groups: Sequence[Group]) -> tuple[Function, ...]:
        """The functions that make up an update of these groups, as the algorithm declares them."""
        config, spaces = self.spec.algorithm, self.spaces
        algorithm, found = algorithms.algorithm(config.name), []
        for scope in scopes(algorithm, config, spaces):
            agents = {agent for each in scope.agent_classes(spaces) for agent in each.agents}
            served = tuple(group for group in groups if group.agents[0] in agents)
            found += [Function(scope, node) for node in algorithm.functions(config, scope, served, spaces)]
        return tuple(found)


def advice(job: PreparedJob) -> str:
    """Warnings about settings that work but may be unintended, one sentence each; "" if there are none."""
    spec, groups = job.spec, initial_groups(job.spec.sharing.groups, job.spaces)
    context = _context(spec, job.spaces, groups)
    algorithm = spec.algorithm.advice(_setting(spec, job.spaces, groups, spec.scaling.least(context)))
    notes = (*job.spaces.notes, _advice_on_episodes(job), algorithm, spec.scaling.advice(context))
    return ". ".join(filter(None, notes))


def _advice_on_episodes(job: PreparedJob) -> str:
    if job.carried:
        if job.can_be_saved:
            return ""
        return (
            f"environment {job.spec.env.name} has no save() and load(): so that its episodes go on over rounds, its "
            "copies are stepped one after another and continued by playing their actions again, which takes longer; "
            "add these methods, or set actors.episodes: fresh if a round shows whole episodes"
        )
    steps, episode = job.spec.actors.steps, job.spaces.max_steps
    if episode is None:
        return (
            f"actors.steps is {steps}, and how long an episode of {job.spec.env.name} lasts is unknown: every round "
            f"starts fresh episodes, so training sees at most their first {steps} steps; set actors.episodes: carried"
        )
    if steps >= episode:
        return ""
    return (
        f"actors.steps is {steps}, an episode lasts up to {episode}: every round starts fresh episodes, so training "
        f"never sees what comes after step {steps}; set actors.episodes: carried"
    )


def prepare(spec: JobSpec, examined: Examine | None = None) -> PreparedJob:
    """Build a job: create the environment once to read its spaces, and check the spec against them.

    `examined` creates it, by default in this process; `marless.jobs.examining` does so in one of its own.
    Raises SpecError if the job cannot run.
    """
    try:
        spaces, can_be_saved = (examined or environments.examined)(spec.env.name, spec.env.arguments)
        check_spaces(spaces)
    except SpecError as error:
        raise SpecError(f"env: {error}") from error
    if spec.actors.episodes == "carried" and spaces.fresh_only:
        raise SpecError(f"actors.episodes: {spaces.fresh_only}; set actors.episodes: fresh")
    groups = initial_groups(spec.sharing.groups, spaces)
    algorithm = algorithms.algorithm(spec.algorithm.name)
    _check_publish(spec, spaces, groups)
    _check_nets(spec, spaces, groups)
    _check_trajectory(spec, spaces)
    if spec.scaling.within_budget and spec.stop.cost_usd is None:
        raise SpecError("scaling.within_budget: it needs a budget; set stop.cost_usd, in US dollars")
    if spec.scaling.deadline_s is not None:
        _check_deadline(spec)
    if spec.model.normalise_observations and not spec.algorithm.normalises:
        raise SpecError(
            f"model.normalise_observations: {spec.algorithm.name} keeps no statistics of observations; leave it out, "
            "or train with an algorithm of marless"
        )
    if spec.model.frames > 1:
        _check_frames(spec, spaces)
    if spec.model.normalise_observations and any(each.image for each in spaces.classes):
        raise SpecError(
            "model.normalise_observations: agents observe images, whose bytes nets read as 0 to 1; leave it out"
        )
    context = _context(spec, spaces, groups)
    policy = made_scaling(SCALING_POLICIES.find(spec.scaling.name), spec.scaling, context)
    algorithm.check(spec.algorithm, _setting(spec, spaces, groups, spec.scaling.least(context)))
    signals = SCALING_POLICIES.find(spec.scaling.name).signals(spec.scaling)
    curvature = "curvature" in signals or SHARING_POLICIES.find(spec.sharing.name).curvature(spec.sharing)
    schedule = made(spec.schedule)
    SCHEDULES.find(spec.schedule.name).check(spec.schedule, spec.algorithm)
    if spec.schedule.overlapping and spec.actors.episodes == "carried":
        raise SpecError(
            f"schedule.name {spec.schedule.name}: rollouts overlap, so none can go on with the episodes of the one "
            "before; set actors.episodes: fresh, and actors.steps to the length of an episode"
        )
    schedule.begin(spec.actors.count)  # asked for its error alone
    return PreparedJob(
        spec=spec,
        spaces=spaces,
        can_be_saved=can_be_saved,
        with_state=algorithm.needs_state(spec.algorithm),
        scaling=policy,
        sharing=SHARING_POLICIES.find(spec.sharing.name).make(spec.sharing, groups, spaces),
        schedule=schedule,
        curvature=curvature,
        noise="noise" in signals,
        gradients="gradients" in signals or SHARING_POLICIES.find(spec.sharing.name).gradients(spec.sharing),
    )


def _check_deadline(spec: JobSpec) -> None:
    """Raises SpecError for a job of which nobody knows how much is left to do until its deadline."""
    if spec.stop.rounds is None and spec.stop.env_steps is None:
        raise SpecError(
            "scaling.deadline_s: how much must be done by then is not known; set stop.rounds or stop.env_steps"
        )
    if spec.schedule.overlapping:
        raise SpecError(
            f"scaling.deadline_s: under schedule {spec.schedule.name}, how long a version takes does not follow from "
            "the times of its rollouts; leave it out, or set schedule.name to synchronous or pipelined"
        )


def schema_of(spec: JobSpec, spaces: EnvSpaces) -> TrajectorySchema:
    """The arrays of this job's trajectories: names, dtypes and shapes."""
    actors, config = spec.actors, spec.algorithm
    carried, with_state = actors.episodes == "carried", algorithms.algorithm(config.name).needs_state(config)
    memory = remembered(config, spec.model, spaces, carried=carried)
    frames = stacked_frames(spec.model, spaces, carried=carried)
    return TrajectorySchema(spaces, actors.steps, actors.envs, with_state, carried, memory, frames)


def replay_of(spec: JobSpec, spaces: EnvSpaces, scope: Scope) -> tuple[ReplaySchema, int] | None:
    """The frames of a scope's replay, and how many it holds; None if the algorithm has no replay."""
    config = spec.algorithm
    if not isinstance(config, OffPolicyConfig):
        return None
    made = schema_of(spec, spaces)
    return ReplaySchema(spaces, scope.classes, made.with_state, made.memory, made.frames), config.replay.capacity


def _check_frames(spec: JobSpec, spaces: EnvSpaces) -> None:
    """Raises SpecError where nets cannot read several images at once."""
    if not any(each.image for each in spaces.classes):
        raise SpecError(f"model.frames: the agents of {spec.env.name} observe no images; leave it out")
    if spaces.turns:
        raise SpecError(
            f"model.frames: agents of {spec.env.name} may wait for their turns, and see nothing then; leave it out, "
            "or, if it is one of PettingZoo and none of them waits, set env.options: {turns: false}"
        )
    if not spec.algorithm.stacks_frames:
        raise SpecError(f"model.frames: {spec.algorithm.name} reads one image at a time; leave it out")


def _check_trajectory(spec: JobSpec, spaces: EnvSpaces) -> None:
    """Raises SpecError if an actor's trajectory is larger than an upload may be."""
    least_bytes, actors = schema_of(spec, spaces).bytes_with(0), spec.actors
    if least_bytes > MAX_TRAJECTORY_BYTES:
        raise SpecError(
            f"actors: {actors.envs} envs · {actors.steps} steps of {len(spaces.agents)} agents make a trajectory of "
            f"{least_bytes / 2**20:,.0f} MiB, and an actor may upload {MAX_TRAJECTORY_BYTES / 2**20:,.0f}; lower "
            "actors.envs or actors.steps, and raise actors.count"
        )


def _check_nets(spec: JobSpec, spaces: EnvSpaces, groups: Sequence[Group]) -> None:
    """Raises SpecError if the policies' nets, with gradients and optimizer moments, exceed a learner's memory, and if
    they cannot read what agents observe.
    """
    if is_module(spec.model.kind):
        for setting in ("popart", "dueling"):
            if getattr(spec.algorithm, setting, False):
                raise SpecError(
                    f"algorithm.{setting} changes the last layer of a net, and nobody knows that of {spec.model.kind}; "
                    f"set algorithm.{setting}: false"
                )
        return  # its learner tells: how many weights a module has is known by torch
    weights, kind = 0, kind_of(spec.model.kind)
    for group in groups:
        agents = spaces.class_of(group.agents[0])
        seen = Inputs.of(agents, spec.nets).stacked(agents)
        inputs = InputShape(seen.obs_size, seen.image, seen.entities)
        weights += sum(starmap(mul, kind.matrices(inputs, spec.model.hidden, agents.action.n)))
    needed, given = weights * _BYTES_PER_WEIGHT, spec.functions.learner.memory_mb * 2**20
    if needed > given:
        raise SpecError(
            f"model.hidden: to train {len(groups)} policies of {weights // len(groups):,} weights takes "
            f"{needed / 2**20:,.0f} MiB, and functions.learner.memory_mb gives {given / 2**20:,.0f}; lower "
            "model.hidden, share policies (sharing.groups), or raise functions.learner.memory_mb"
        )


def _check_publish(spec: JobSpec, spaces: EnvSpaces, groups: Sequence[Group]) -> None:
    """Raises SpecError if the states that a learner publishes in a round are larger than a publish may be."""
    if is_module(spec.model.kind):  # its learner tells: how many weights a module has is known by torch
        return
    algorithm = algorithms.algorithm(spec.algorithm.name)
    for scope in scopes(algorithm, spec.algorithm, spaces):
        served = [group for group in groups if spaces.class_of(group.agents[0]) in scope.agent_classes(spaces)]
        weights = algorithm.net_bytes(spec.algorithm, scope, served, spaces, spec.nets)
        if sum(weights.values()) > MAX_PUBLISH_BYTES:
            seen = max(each.obs_size for each in scope.agent_classes(spaces))
            pixels = "; for images, model.net: nature has fewer weights than mlp" if seen > _MANY_NUMBERS else ""
            raise SpecError(
                f"model.hidden: the nets of {scope.name} weigh {sum(weights.values()) / 2**20:,.0f} MiB with their "
                f"optimizer states (states: {len(weights)}, numbers observed: up to {seen:,}), and a round may publish "
                f"{MAX_PUBLISH_BYTES / 2**20:,.0f}; share policies (sharing.groups: shared) or lower "
                f"model.hidden{pixels}"
            )


def _setting(spec: JobSpec, spaces: EnvSpaces, groups: tuple[Group, ...], least_actors: int) -> Setting:
    algorithm, actors, stop = algorithms.algorithm(spec.algorithm.name), spec.actors, spec.stop
    of_actor = actors.envs * actors.steps
    members = 1 if spec.sharing.samples == "drawn" else min(len(group.agents) for group in groups)
    schedule, sampled = spec.schedule, least_actors
    round_steps = actors.count * of_actor
    if isinstance(schedule, OverlappingConfig) and makes_versions(spec.algorithm):
        sampled, round_steps = schedule.batch, schedule.batch * of_actor  # a round is an update from these rollouts
    bounds = [
        *([stop.rounds * round_steps] if stop.rounds is not None else []),
        # The job ends after the round in which it reaches the limit, which may be up to one round beyond it.
        *([stop.env_steps + round_steps] if stop.env_steps is not None else []),
    ]
    return Setting(
        spaces=spaces,
        model=spec.nets,
        samples=sampled * of_actor * members,
        steps=actors.steps,
        memory_bytes=spec.functions.learner.memory_mb * 2**20,
        scopes=scopes(algorithm, spec.algorithm, spaces),
        with_state=algorithm.needs_state(spec.algorithm),
        carried=actors.episodes == "carried",
        round_steps=round_steps,
        least_steps=sampled * of_actor,
        total_steps=min(bounds, default=None),
    )


def _context(spec: JobSpec, spaces: EnvSpaces, groups: tuple[Group, ...]) -> ScalingContext:
    schedule = spec.schedule
    learned_at_once = schedule.learners * schedule.batch if isinstance(schedule, OverlappingConfig) else None
    return ScalingContext(
        max_actors=spec.actors.count,
        agents=len(spaces.agents),
        groups=groups,
        rounds=spec.stop.rounds,
        samples=spec.sharing.samples,
        functions=spec.functions,
        budget_usd=spec.stop.cost_usd,
        seed=spec.seed,
        rates=FunctionRates.of(
            spec.functions, price_tables.merged(spec.bill.prices), spec.bill.accounting, spec.bill.time
        ),
        drawn=spec.algorithm.drawn(spec.actors.steps) is not None,
        by_cpu=spec.bill.time == "cpu",
        learned_at_once=learned_at_once,
    )


@dataclass(frozen=True)
class Budget:
    """What remains of `stop.cost_usd`, in US dollars."""

    remaining_usd: float
    last_usd: Mapping[str, float]
    """Cost of the newest round, by function."""


@dataclass(frozen=True)
class Decided:
    """The decisions for a round: its groups, its number of actors, and the reasons."""

    groups: tuple[Group, ...]
    actors: int
    decisions: tuple[Decision, ...]


def decide(
    job: PreparedJob,
    history: Sequence[RoundRecord],
    budget: Budget | None = None,
    trained_s: float | None = None,
) -> Decided:
    """Decide the groups and the number of actors of the round after `history`: a pure function of its arguments.

    With the seconds that all rounds so far took (`trained_s`), and if the job sets `scaling.deadline_s`, there are
    as many actors as it takes to end in time. With a budget, and if the job sets `scaling.within_budget`, there are no
    more than the budget pays for, even if the run is then late.
    Raises InternalError if the inputs of a decision cannot be stored as JSON.
    """
    spec = job.spec
    sharing = job.sharing.decide(history)
    scaling = job.scaling.decide(history, sharing.groups)
    deadline = None if trained_s is None else deadline_of(spec, history, trained_s)
    if deadline:
        scaling = deadline.limit(scaling)
    if budget is not None and spec.scaling.within_budget:
        done = history[-1].round + 1 if history else 0
        limited = within_budget(
            scaling,
            last=history[-1] if history else None,
            last_usd=budget.last_usd,
            remaining_usd=budget.remaining_usd,
            rounds_left=spec.stop.rounds - done if spec.stop.rounds else None,
            drawn=spec.algorithm.drawn(spec.actors.steps) is not None,
        )
        scaling = deadline.missed(limited) if deadline and limited.actors < scaling.actors else limited
    groups = " ".join("+".join(group.agents) for group in sharing.groups)
    return Decided(
        groups=sharing.groups,
        actors=scaling.actors,
        decisions=(
            _decision("scaling", spec.scaling.name, f"{scaling.actors} actors", scaling.reason, scaling.inputs),
            _decision("sharing", spec.sharing.name, groups, sharing.reason, sharing.inputs),
        ),
    )


def deadline_of(
    spec: JobSpec, history: Sequence[RoundRecord], trained_s: float, *, begun: bool = True
) -> Deadline | None:
    """What is left until `scaling.deadline_s`; None if there is none, or if no round has been timed yet.

    Not `begun`: `history` is another run that tells how long rounds take, and all is left to do.
    """
    times = newest_times(history, WINDOW) if spec.scaling.deadline_s is not None else ()
    if spec.scaling.deadline_s is None or not times:
        return None
    stop, rounds, env_steps = spec.stop, 0, 0
    if begun:
        rounds, env_steps = history[-1].round + 1, history[-1].env_steps
    return Deadline.of(
        times,
        deadline_s=spec.scaling.deadline_s,
        trained_s=trained_s,
        evaluation_s=max(each.phases.evaluation for each in history),
        rounds_left=None if stop.rounds is None else stop.rounds - rounds,
        steps_left=None if stop.env_steps is None else stop.env_steps - env_steps,
        actors=spec.actors,
        drawn=spec.algorithm.drawn(spec.actors.steps) is not None,
    )


def _decision(
    kind: Literal["scaling", "sharing"],
    rule: str,
    outcome: str,
    reason: str,
    inputs: Mapping[str, Any],  # Any: what JSON can hold
) -> Decision:
    try:
        kept = json.loads(json.dumps(inputs))  # the same types as after reading the record back
    except (TypeError, ValueError) as error:
        raise InternalError(f"{kind} policy {rule!r}: JSON cannot hold the inputs of its decision: {error}") from None
    return Decision(kind=kind, rule=rule, outcome=outcome, reason=reason, inputs=kept)
