"""The work of `bench.asynchronous`: independent PPO in one process, whose functions run as a virtual clock says."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from marless.core.errors import CorruptError
from marless.core.group import Group
from marless.core.state import Arrays, PolicyState
from marless.cost.simulation.asynchronous import SlotCounts, SlotSeconds, SpeedSpread, simulate
from marless.cost.simulation.virtual import VirtualRun
from marless.jobs.schedules.base import Command, Learn, Publish, RollOut, Schedule
from marless.jobs.schedules.overlapping import learner_of
from marless.jobs.schedules.rounds import PIPELINED, SYNCHRONOUS
from marless.jobs.schedules.stellaris import Stellaris, StellarisConfig
from marless.jobs.sharing.base import initial_groups
from marless.learning.aggregation.applying import applied
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import Learner, LearnerContext, RoundInput
from marless.learning.algos.ppo.algorithms import IPPOConfig
from marless.learning.data.rollout import play, rollout
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs import registry
from marless.learning.envs.base import BatchedEnv
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec
from marless.learning.policies.evaluation import sides

ENVS, STEPS = 20, 25
ROLLOUT = ENVS * STEPS
"""Env steps of a rollout."""
EPISODES, EVALUATED = 40, 50
"""Greedy episodes of an evaluation; rollouts learned from between two of them."""
OLDEST_PEER = 128
"""Versions that are kept for learners that truncate ratios over others."""
SCHEDULES: Mapping[str, Schedule[Any]] = {"synchronous": SYNCHRONOUS, "pipelined": PIPELINED}


@dataclass(frozen=True, kw_only=True)
class System:
    """What is compared: schedule `stellaris` with these settings, or one that trains in rounds."""

    settings: Mapping[str, object] = field(default_factory=dict)
    algorithm: Mapping[str, object] = field(default_factory=dict)
    rounds: str = ""
    """Name of a schedule of rounds; "": stellaris."""
    in_parts: bool = False
    """With rounds: all learners share each update, whose samples they divide, instead of one."""


@dataclass(frozen=True, kw_only=True)
class UpdateSeconds:
    """CPU seconds of updates of one round, as schedules of rounds make them."""

    whole: Sequence[float]
    part: Sequence[float]
    """Of a round that has a learner's part of the rollouts: the time of an update that all learners share."""
    lagging: Sequence[float]
    """Of a whole round of an earlier version, whose ratios are corrected."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The slots, and what they do."""

    game: Game
    actors: int
    learners: int
    machines: SpeedSpread
    durations: SlotSeconds
    update_s: UpdateSeconds
    rollouts: int
    """How many are learned from in a run."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a run."""

    scores: tuple[float, ...]
    """The game's score at each evaluation."""
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
    diverged: bool = False
    """It ended early, because a gradient was not finite."""

    def reached(self, target: float) -> int | None:
        """The first evaluation whose mean with the two before it is at least `target`; None if there is none."""
        for number in range(2, len(self.scores)):
            if sum(self.scores[number - 2 : number + 1]) / 3 >= target:
                return number
        return None


DIVERGED = Result(
    scores=(),
    at_s=(),
    worked_s=(),
    staleness=0.0,
    versions=0,
    actors_busy=0.0,
    learners_busy=0.0,
    longest_queue=0,
    dropped=0,
    diverged=True,
)


@dataclass(frozen=True)
class Game:
    """What is learned."""

    env: str
    options: Mapping[str, object]
    score: Callable[[BatchedEnv, Sequence[ActingPolicies]], float]
    """How good greedy policies are, in EPISODES episodes."""
    measure: str
    """What the score is, in a word."""
    target: float
    """The score to be reached, unless the command line gives another."""


def mean_return(games: BatchedEnv, policies: Sequence[ActingPolicies]) -> float:
    """The mean return per agent."""
    stats = play(games, policies, episodes=EPISODES, seed=7)
    return sum(stats.return_sum.values()) / (EPISODES * len(stats.return_sum))


def weaker_side(games: BatchedEnv, policies: Sequence[ActingPolicies]) -> float:
    """The smaller gain of both sides: a side's return against random opponents, less that of a random side there."""
    return min(each.greedy - each.chance for each in sides(games, policies, episodes=EPISODES, seed=7).values())


GAMES: Mapping[str, Game] = {
    "spread": Game("mpe/simple_spread", {"agents": 3}, mean_return, "return", -17.0),
    "adversary": Game("mpe/simple_adversary", {"agents": 2}, weaker_side, "gain", 10.0),
}


class Training:
    """Versions, trajectories and gradients of one game, and how good its greedy policies are."""

    def __init__(
        self, game: Game, seed: int, lr: float, algorithm: Mapping[str, object], *, lags: bool = False
    ) -> None:
        self._game, self._seed, self._lags = game, seed, lags
        self._env = registry.make(game.env, game.options, ENVS)
        self._games = registry.make(game.env, game.options, EPISODES)
        self.config = IPPOConfig.model_validate({"lr": lr, "gamma": 0.95, **algorithm})
        self._groups = initial_groups("independent", self._env.spaces)
        self._learners = self._of_each_class()
        self.states = {
            name: learner.initial(name, seed) for learner, own in self._learners for name in learner.names(own)
        }
        self.load(self.states)
        self.env_steps = 0
        """Env steps of all that was learned from."""
        self.scores: list[float] = []
        """After each EVALUATED rollouts."""
        self.evaluated_at: list[int] = []
        """Versions at that time."""
        self._versions = self._learned = 0

    def _of_each_class(self) -> list[tuple[Learner, tuple[Group, ...]]]:
        """The learner of each agent class, with the groups of that class."""
        spaces, entry, found = self._env.spaces, algorithms.algorithm("ippo"), []
        for scope in scopes(entry, self.config, spaces):
            context = LearnerContext(ModelSpec.model_validate({}), spaces, scope, "cpu", lags=self._lags)
            members = {agent for agents in scope.agent_classes(spaces) for agent in agents.agents}
            own = tuple(each for each in self._groups if members.issuperset(each.agents))
            found.append((entry.learner(self.config, context), own))
        return found

    def sample(self, number: int, states: Mapping[str, PolicyState]) -> Trajectory:
        """One rollout."""
        seed = 1_000_000 * self._seed + number
        return rollout(self._env, self._acting(states), steps=STEPS, seed=seed, with_state=False)[0]

    def gradients(
        self, number: int, taken: Sequence[Trajectory], peers: tuple[Mapping[str, Arrays], ...]
    ) -> Mapping[str, Arrays]:
        """The gradients of all policies; the learners of several classes compute theirs one after another."""
        found: dict[str, Arrays] = {}
        for learner, own in self._learners:
            found |= learner.gradients(self._inputs(number, own, taken, peers)).gradients
        return found

    def update(self, number: int, taken: Sequence[Trajectory]) -> dict[str, PolicyState]:
        """The states after the update of a round."""
        for learner, own in self._learners:
            learner.update(self._inputs(number, own, taken, ()))
        return {name: learner.state(name) for learner, own in self._learners for name in learner.names(own)}

    def _inputs(
        self,
        number: int,
        own: tuple[Group, ...],
        taken: Sequence[Trajectory],
        peers: tuple[Mapping[str, Arrays], ...],
    ) -> RoundInput:
        return RoundInput(number, self.env_steps, self._seed, own, taken, peers=peers)

    def load(self, states: Mapping[str, PolicyState]) -> None:
        """Make the learners hold these states."""
        for learner, own in self._learners:
            for name in learner.names(own):
                learner.load(name, states[name])

    def advance(self, states: dict[str, PolicyState], rollouts: int) -> None:
        """A new version, from so many rollouts; it is evaluated if that is due."""
        self.states, self._versions = states, self._versions + 1
        before, self._learned = self._learned, self._learned + rollouts
        self.env_steps += rollouts * ROLLOUT
        if self._learned // EVALUATED > before // EVALUATED:
            self.scores.append(self._game.score(self._games, self._acting(states)))
            self.evaluated_at.append(self._versions)

    def _acting(self, states: Mapping[str, PolicyState]) -> list[ActingPolicies]:
        return [
            ActingPolicies.from_states(agents, [states[agent] for agent in agents.agents])
            for agents in self._env.spaces.classes
        ]


class Functions:
    """The functions of schedule `stellaris`, run in the order in which they begin (`Work`)."""

    def __init__(self, training: Training, *, truncates: bool, batch: int = 1) -> None:
        self._training = training
        self._batch = batch
        self._truncates = truncates
        self._history = {0: training.states}
        """By clock, as far as learners may need them."""
        self._clock = 0
        self._trajectories: dict[int, Trajectory] = {}
        self._gradients: dict[int, Mapping[str, Arrays]] = {}

    def do(self, command: Command) -> None:
        training = self._training
        match command:
            case RollOut(number, _):
                self._trajectories[number] = training.sample(number, training.states)
            case Learn(learner, rollouts):
                clocks = command.peers if self._truncates else ()
                peers = tuple({name: s.acting for name, s in self._history[clock].items()} for clock in clocks)
                taken = [self._trajectories.pop(number) for number in rollouts]
                self._gradients[learner] = training.gradients(learner, taken, peers)
            case Publish(aggregation):
                taken_ = [self._gradients.pop(learner_of(each.gradient)) for each in aggregation.gradients]
                steps = training.config.net_steps(training.env_steps)
                states = {
                    name: applied(state, [each[name] for each in taken_], aggregation.weights, steps)
                    for name, state in training.states.items()
                }
                training.load(states)
                self._clock += 1
                self._history[self._clock] = states
                self._history.pop(self._clock - OLDEST_PEER, None)
                training.advance(states, len(taken_) * self._batch)


def trained(system: System, setting: Setting, *, seed: int, lr: float) -> Result:
    """Train once; equal arguments give equal results."""
    training = Training(setting.game, seed, lr, system.algorithm, lags=system.rounds == "pipelined")
    try:
        return (_in_rounds if system.rounds else _overlapping)(system, setting, training, seed)
    except CorruptError:
        return DIVERGED


def _overlapping(system: System, setting: Setting, training: Training, seed: int) -> Result:
    config = StellarisConfig.model_validate({"learners": setting.learners, **system.settings})
    batch, durations = config.batch, setting.durations
    work = Functions(training, truncates=training.config.truncation != "none", batch=batch)
    gradients = -(-setting.rollouts // batch)
    durations = replace(durations, learn_s=[batch * each for each in durations.learn_s])
    slots_ = SlotCounts(setting.actors, config.learners)
    course = simulate(Stellaris(config), slots_, durations, setting.machines, gradients=gradients, seed=seed, work=work)
    at_s = [course.published_s[version - 1] for version in training.evaluated_at]
    slots = course.actors_busy * setting.actors + course.learners_busy * setting.learners
    applying = durations.publish_s * len(course.aggregations) / course.ended_s
    return Result(
        scores=tuple(training.scores),
        at_s=tuple(at_s),
        worked_s=tuple((slots + applying) * each for each in at_s),
        staleness=sum(course.staleness) / len(course.staleness),
        versions=len(course.aggregations),
        actors_busy=course.actors_busy,
        learners_busy=course.learners_busy,
        longest_queue=course.longest_queue,
        dropped=course.state.dropped,
    )


def _in_rounds(system: System, setting: Setting, training: Training, seed: int) -> Result:
    """Rounds of all actors, each followed by one update of several epochs.

    In parts, each learner computes the gradients of its part of the samples; weights are those of one learner. The
    exchange of gradients takes no time here, so that no real system is sooner.
    """
    rng, machines, actors = random.Random(seed), setting.machines, setting.actors
    run, ended_s, sampled_s, learned_s = VirtualRun.of(SCHEDULES[system.rounds]), 0.0, 0.0, 0.0
    at_s: list[float] = []
    worked_s: list[float] = []
    before = training.states
    parts = setting.learners if system.in_parts else 1
    known_s = setting.update_s.lagging if system.rounds == "pipelined" else setting.update_s.whole
    known_s = setting.update_s.part if system.in_parts else known_s
    for round_ in range(-(-setting.rollouts // actors)):
        acting = before if system.rounds == "pipelined" else training.states
        taken = [training.sample(actors * round_ + number, acting) for number in range(actors)]
        before = training.states
        training.advance(training.update(round_, taken), actors)
        slow = round(machines.slow * actors)
        took_s = [
            _straggled(rng, machines, rng.choice(setting.durations.sample_s)) * (2 if number < slow else 1)
            for number in range(actors)
        ]
        parts_s = [_straggled(rng, machines, rng.choice(known_s)) for _ in range(parts)]
        update_s = max(parts_s)
        times, run = run.round(partial(_lasting, max(took_s)), partial(_lasting, update_s))
        ended_s, sampled_s, learned_s = ended_s + times.ended_s, sampled_s + sum(took_s), learned_s + sum(parts_s)
        if len(training.scores) > len(at_s):
            at_s.append(ended_s)
            worked_s.append(sampled_s + learned_s)
    return Result(
        scores=tuple(training.scores),
        at_s=tuple(at_s),
        worked_s=tuple(worked_s),
        staleness=1.0 if system.rounds == "pipelined" else 0.0,
        versions=round_ + 1,
        actors_busy=sampled_s / (actors * ended_s),
        learners_busy=learned_s / (parts * ended_s),
        longest_queue=actors,
        dropped=0,
    )


def _lasting(seconds: float, _: float) -> float:
    return seconds


def _straggled(rng: random.Random, machines: SpeedSpread, seconds: float) -> float:
    return seconds * (machines.straggler_factor if rng.random() < machines.straggling else 1.0)
