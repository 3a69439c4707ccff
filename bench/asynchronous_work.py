"""The work of `bench.asynchronous`: independent PPO in one process, whose functions run as a virtual clock says."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from marless.aggregation.applying import applied
from marless.algos import registry as algorithms
from marless.algos.algorithm import scopes
from marless.algos.learner import Learner, LearnerContext, RoundInput
from marless.algos.ppo.ippo import IPPOConfig
from marless.core.state import Arrays, PolicyState
from marless.data.rollout import play, rollout
from marless.data.trajectory import Trajectory
from marless.envs import registry
from marless.nets.acting import ActingPolicies
from marless.nets.model import ModelSpec
from marless.schedules.base import Schedule
from marless.schedules.pipelined import SCHEDULE as PIPELINED
from marless.schedules.stellaris import Command, Learn, Publish, Sample, Stellaris, StellarisConfig, learner_of
from marless.schedules.synchronous import SCHEDULE as SYNCHRONOUS
from marless.sharing.groups import initial_groups
from marless.simulation.asynchronous import Durations, Machines, simulate
from marless.simulation.virtual import VirtualRun

ENVS, STEPS = 20, 25
ROLLOUT = ENVS * STEPS
"""Env steps of a rollout."""
EPISODES, EVALUATED = 40, 50
"""Greedy episodes of an evaluation; rollouts learned from between two of them."""
OLDEST_PEER = 128
"""Versions that are kept for learners that truncate ratios over others."""
SCHEDULES: Mapping[str, Schedule] = {"synchronous": SYNCHRONOUS, "pipelined": PIPELINED}


@dataclass(frozen=True, kw_only=True)
class System:
    """What is compared: schedule `stellaris` with these settings, or one that trains in rounds."""

    settings: Mapping[str, object] = field(default_factory=dict)
    algorithm: Mapping[str, object] = field(default_factory=dict)
    rounds: str = ""
    """Name of a schedule of rounds; "": stellaris."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The slots, and what they do."""

    actors: int
    learners: int
    machines: Machines
    durations: Durations
    update_s: Sequence[float]
    """CPU seconds of an update of one round, as a schedule of rounds makes it."""
    rollouts: int
    """How many are learned from in a run."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a run."""

    returns: tuple[float, ...]
    """Greedy return per agent of each evaluation."""
    at_s: tuple[float, ...]
    """When its policies were published."""
    worked_s: tuple[float, ...]
    """Seconds that functions had worked by then, which is what is billed."""
    staleness: float
    """Mean of all gradients; of rounds, in rounds."""
    versions: int
    actors_busy: float
    learners_busy: float
    longest_queue: int
    dropped: int

    def reached(self, target: float) -> int | None:
        """The first evaluation whose mean with the two before it is at least `target`; None if there is none."""
        for number in range(2, len(self.returns)):
            if sum(self.returns[number - 2 : number + 1]) / 3 >= target:
                return number
        return None


class Spread:
    """Three agents of `simple_spread`: versions, trajectories and gradients, and the returns of greedy policies."""

    def __init__(self, seed: int, lr: float, algorithm: Mapping[str, object]) -> None:
        self._seed = seed
        self._env = registry.make("mpe/simple_spread", {"agents": 3}, ENVS)
        self._games = registry.make("mpe/simple_spread", {"agents": 3}, EPISODES)
        self.config = IPPOConfig.model_validate({"lr": lr, "gamma": 0.95, **algorithm})
        self._groups = initial_groups("independent", self._env.spaces)
        entry = algorithms.algorithm("ippo")
        [scope] = scopes(entry, self.config, self._env.spaces)
        context = LearnerContext(ModelSpec.model_validate({}), self._env.spaces, scope, "cpu")
        self.learner: Learner = entry.learner(self.config, context)
        self.states = {name: self.learner.initial(name, seed) for name in self.learner.names(self._groups)}
        self.load(self.states)
        self.env_steps = 0
        """Env steps of all that was learned from."""
        self.returns: list[float] = []
        """Greedy return per agent after each EVALUATED rollouts."""
        self.evaluated_at: list[int] = []
        """Versions at that time."""
        self._versions = self._learned = 0

    def sample(self, number: int, states: Mapping[str, PolicyState]) -> Trajectory:
        """One rollout."""
        seed = 1_000_000 * self._seed + number
        return rollout(self._env, self._acting(states), steps=STEPS, seed=seed, with_state=False)[0]

    def inputs(
        self, number: int, taken: Sequence[Trajectory], peers: tuple[Mapping[str, Arrays], ...] = ()
    ) -> RoundInput:
        """What a learner gets."""
        return RoundInput(number, self.env_steps, self._seed, self._groups, taken, peers=peers)

    def load(self, states: Mapping[str, PolicyState]) -> None:
        """Make the learner hold these states."""
        for name, state in states.items():
            self.learner.load(name, state)

    def advance(self, states: dict[str, PolicyState], rollouts: int) -> None:
        """A new version, from so many rollouts; it is evaluated if that is due."""
        self.states, self._versions = states, self._versions + 1
        before, self._learned = self._learned, self._learned + rollouts
        self.env_steps += rollouts * ROLLOUT
        if self._learned // EVALUATED > before // EVALUATED:
            stats = play(self._games, self._acting(states), episodes=EPISODES, seed=7)
            self.returns.append(sum(stats.return_sum.values()) / (EPISODES * len(stats.return_sum)))
            self.evaluated_at.append(self._versions)

    def _acting(self, states: Mapping[str, PolicyState]) -> list[ActingPolicies]:
        (agents,) = self._env.spaces.classes
        return [ActingPolicies.from_states(agents, [states[agent] for agent in agents.agents])]


class Functions:
    """The functions of schedule `stellaris`, run in the order in which they begin (`Work`)."""

    def __init__(self, spread: Spread, *, truncates: bool) -> None:
        self._spread = spread
        self._truncates = truncates
        self._history = {0: spread.states}
        """By clock, as far as learners may need them."""
        self._clock = 0
        self._trajectories: dict[int, Trajectory] = {}
        self._gradients: dict[int, Mapping[str, Arrays]] = {}

    def do(self, command: Command) -> None:
        """See `Work`."""
        spread = self._spread
        match command:
            case Sample(number, _):
                self._trajectories[number] = spread.sample(number, spread.states)
            case Learn(learner, rollouts):
                clocks = command.peers if self._truncates else ()
                peers = tuple({name: s.acting for name, s in self._history[clock].items()} for clock in clocks)
                taken = [self._trajectories.pop(number) for number in rollouts]
                self._gradients[learner] = spread.learner.gradients(spread.inputs(learner, taken, peers)).gradients
            case Publish(aggregation):
                taken_ = [self._gradients.pop(learner_of(each.gradient)) for each in aggregation.gradients]
                steps = spread.config.net_steps(spread.env_steps)
                states = {
                    name: applied(state, [each[name] for each in taken_], aggregation.weights, steps)
                    for name, state in spread.states.items()
                }
                spread.load(states)
                self._clock += 1
                self._history[self._clock] = states
                self._history.pop(self._clock - OLDEST_PEER, None)
                spread.advance(states, len(taken_))


def trained(system: System, setting: Setting, *, seed: int, lr: float) -> Result:
    """Train once; equal arguments give equal results."""
    spread = Spread(seed, lr, system.algorithm)
    return (_in_rounds if system.rounds else _overlapping)(system, setting, spread, seed)


def _overlapping(system: System, setting: Setting, spread: Spread, seed: int) -> Result:
    config = StellarisConfig.model_validate({"learners": setting.learners, **system.settings})
    work = Functions(spread, truncates=spread.config.truncation != "none")
    rule = Stellaris(config, setting.actors)
    durations = setting.durations
    course = simulate(rule, durations, setting.machines, gradients=setting.rollouts, seed=seed, work=work)
    at_s = [course.published_s[version - 1] for version in spread.evaluated_at]
    slots = course.actors_busy * setting.actors + course.learners_busy * setting.learners
    applying = durations.publish_s * len(course.aggregations) / course.ended_s
    return Result(
        returns=tuple(spread.returns),
        at_s=tuple(at_s),
        worked_s=tuple((slots + applying) * each for each in at_s),
        staleness=sum(course.staleness) / len(course.staleness),
        versions=len(course.aggregations),
        actors_busy=course.actors_busy,
        learners_busy=course.learners_busy,
        longest_queue=course.longest_queue,
        dropped=course.progress.dropped,
    )


def _in_rounds(system: System, setting: Setting, spread: Spread, seed: int) -> Result:
    """Rounds of all actors, each followed by one learner's update of several epochs."""
    rng, machines, actors = random.Random(seed), setting.machines, setting.actors
    run, ended_s, sampled_s, learned_s = VirtualRun(SCHEDULES[system.rounds]), 0.0, 0.0, 0.0
    at_s: list[float] = []
    worked_s: list[float] = []
    before = spread.states
    for round_ in range(-(-setting.rollouts // actors)):
        acting = before if system.rounds == "pipelined" else spread.states
        taken = [spread.sample(actors * round_ + number, acting) for number in range(actors)]
        before = spread.states
        spread.learner.update(spread.inputs(round_, taken))
        spread.advance({name: spread.learner.state(name) for name in spread.states}, actors)
        slow = round(machines.slow * actors)
        took_s = [
            _straggled(rng, machines, rng.choice(setting.durations.sample_s)) * (2 if number < slow else 1)
            for number in range(actors)
        ]
        update_s = _straggled(rng, machines, rng.choice(setting.update_s))
        times, run = run.round(partial(_lasting, max(took_s)), partial(_lasting, update_s))
        ended_s, sampled_s, learned_s = ended_s + times.ended_s, sampled_s + sum(took_s), learned_s + update_s
        if len(spread.returns) > len(at_s):
            at_s.append(ended_s)
            worked_s.append(sampled_s + learned_s)
    return Result(
        returns=tuple(spread.returns),
        at_s=tuple(at_s),
        worked_s=tuple(worked_s),
        staleness=1.0 if system.rounds == "pipelined" else 0.0,
        versions=round_ + 1,
        actors_busy=sampled_s / (actors * ended_s),
        learners_busy=learned_s / ended_s,
        longest_queue=actors,
        dropped=0,
    )


def _lasting(seconds: float, _: float) -> float:
    return seconds


def _straggled(rng: random.Random, machines: Machines, seconds: float) -> float:
    return seconds * (machines.straggler_factor if rng.random() < machines.straggling else 1.0)
