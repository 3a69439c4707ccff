"""An actor's computation: rollouts and whole episodes in a batched environment, as deterministic functions of a seed.

No torch, no I/O. Suffixes as in `marless.envs.base` and `marless.data.trajectory`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from marless.data.trajectory import Trajectory, TrajectorySchema
from marless.envs.base import (
    ActionArray,
    BatchedEnv,
    BoolArray,
    EnvSpaces,
    FloatArray,
    Frame,
    Transition,
    random_actions,
)
from marless.errors import SpecError
from marless.interruption import Stopped, check, never


class ActingPolicy(Protocol):
    """Chooses the actions of one agent class, each agent under its own policy, one env step per call.

    Policies may be recurrent. Actions of dead agents are ignored.
    """

    def begin(self, batch: int) -> None:
        """Reset the memory of all `batch` copies: new episodes start."""
        ...

    def ended(self, ended_B: BoolArray) -> None:
        """Reset the memory of the copies whose episode has ended; a new one starts there."""
        ...

    def sample(
        self, obs_NBO: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        """Draw actions (int32 [N, B] or float32 [N, B, A]) and their log-probabilities, float32 [N, B]."""
        ...

    def greedy(self, obs_NBO: FloatArray, mask_NBA: BoolArray | None) -> ActionArray:
        """The most likely actions, int32 [N, B] or float32 [N, B, A]."""
        ...

    def to_env(self, action: ActionArray) -> ActionArray:
        """Convert actions to those of the environment (continuous: clip and scale to its box)."""
        ...


@dataclass(frozen=True, kw_only=True)
class EpisodeStats:
    """Sums over finished episodes; they can be added over actors."""

    env_steps: int
    """Env steps taken (all agents act once in one copy), including those of unfinished episodes."""
    episodes: int
    episode_steps: int
    """Env steps of the counted episodes."""
    return_sum: Mapping[str, float]
    """Sum of undiscounted returns, per agent."""
    return_square_sum: Mapping[str, float]
    """Sum of squared undiscounted returns, per agent."""
    judged: int = 0
    """Counted episodes with a known result (won or not): all of them, or 0 if the environment does not report wins."""
    wins: int = 0
    """Counted episodes that were won."""


def rollout(
    env: BatchedEnv,
    policies: Sequence[ActingPolicy],
    *,
    steps: int,
    seed: int,
    with_state: bool,
    stopped: Stopped = never,
) -> tuple[Trajectory, EpisodeStats]:
    """Start new episodes and sample `steps` time steps in every copy, with exploration.

    `policies` holds one entry per agent class. Environment and actions use separate random streams of `seed`. `stopped`
    is called before each step. Raises SpecError if `with_state` is set but the environment has no global state,
    StoppedError once `stopped` returns True. The environment can be reused afterwards.
    """
    if with_state and not env.spaces.state_size:
        raise SpecError("the algorithm needs a global state, which this environment does not have")
    env_seed, rng = _streams(seed)
    recorder = _Recorder(TrajectorySchema(env.spaces, steps, env.batch, with_state))
    meter = _EpisodeMeter(env.spaces, np.full(env.batch, steps))
    frame = begin(env, policies, env_seed)
    for t in range(steps):
        check(stopped)
        recorder.saw(t, frame)
        actions = []
        for k, policy in enumerate(policies):
            action, log_prob_NB = policy.sample(frame.obs[k], frame.masks[k] if frame.masks else None, rng)
            recorder.did(t, k, action, log_prob_NB)
            actions.append(policy.to_env(action))
        transition = step(env, policies, tuple(actions))
        recorder.got(t, transition)
        meter.add(transition)
        frame = transition.frame
    return recorder.trajectory(), meter.stats()


def begin(env: BatchedEnv, policies: Sequence[ActingPolicy], seed: int) -> Frame:
    """Start a new episode in every copy, and reset the memory of the policies."""
    for policy in policies:
        policy.begin(env.batch)
    return env.reset(seed)


def step(env: BatchedEnv, policies: Sequence[ActingPolicy], actions: tuple[ActionArray, ...]) -> Transition:
    """Step all copies once, and reset the memory of the policies where an episode has ended."""
    transition = env.step(actions)
    if transition.ended.any():
        for policy in policies:
            policy.ended(transition.ended)
    return transition


def act(policies: Sequence[ActingPolicy], frame: Frame, rng: np.random.Generator | None) -> tuple[ActionArray, ...]:
    """The actions for the environment in this frame: greedy, or sampled if a generator is given."""
    actions = []
    for k, policy in enumerate(policies):
        obs, mask = frame.obs[k], frame.masks[k] if frame.masks else None
        actions.append(policy.to_env(policy.sample(obs, mask, rng)[0] if rng else policy.greedy(obs, mask)))
    return tuple(actions)


def play(
    env: BatchedEnv,
    policies: Sequence[ActingPolicy] | None,
    *,
    episodes: int,
    seed: int,
    explore: bool = False,
    stopped: Stopped = never,
    ended: Callable[[int], None] | None = None,
) -> EpisodeStats:
    """Play exactly `episodes` whole episodes: greedily or exploring; uniformly over legal actions without `policies`.

    The number of episodes per copy is fixed in advance, because counting those that end first would favour short ones.
    `stopped` is called before each step, `ended` after it with the number of finished episodes. Raises StoppedError
    once `stopped` returns True. The environment can be reused afterwards.
    """
    env_seed, rng = _streams(seed)
    copies = np.arange(env.batch)
    meter = _EpisodeMeter(env.spaces, episodes // env.batch + (copies < episodes % env.batch))
    frame = begin(env, policies or (), env_seed)
    while not meter.full:
        check(stopped)
        if policies is None:
            actions = random_actions(env.spaces, frame, rng)
        else:
            actions = act(policies, frame, rng if explore else None)
        transition = step(env, policies or (), actions)
        meter.add(transition)
        frame = transition.frame
        if ended:
            ended(meter.episodes)
    return meter.stats()


def total(parts: Sequence[EpisodeStats]) -> EpisodeStats:
    """Add up the sums of at least one batch of episodes."""
    first = parts[0]
    return EpisodeStats(
        env_steps=sum(each.env_steps for each in parts),
        episodes=sum(each.episodes for each in parts),
        episode_steps=sum(each.episode_steps for each in parts),
        return_sum={agent: math.fsum(each.return_sum[agent] for each in parts) for agent in first.return_sum},
        return_square_sum={
            agent: math.fsum(each.return_square_sum[agent] for each in parts) for agent in first.return_square_sum
        },
        judged=sum(each.judged for each in parts),
        wins=sum(each.wins for each in parts),
    )


def _streams(seed: int) -> tuple[int, np.random.Generator]:
    env, actions = np.random.SeedSequence(seed).spawn(2)
    return int(env.generate_state(1)[0]), np.random.Generator(np.random.PCG64(actions))


class _Recorder:
    """Records a trajectory step by step into preallocated arrays."""

    def __init__(self, schema: TrajectorySchema) -> None:
        self._schema = schema
        self._arrays: dict[str, NDArray[np.generic]] = {
            name: np.empty(shape, dtype)
            for name, (dtype, shape) in schema.shapes(boot_rows=0).items()
            if not name.startswith("boot_")
        }
        self._boots: dict[str, list[NDArray[np.generic]]] = {
            name: [np.empty(shape, dtype)]
            for name, (dtype, shape) in schema.shapes(boot_rows=0).items()
            if name.startswith("boot_")
        }

    def saw(self, t: int, frame: Frame) -> None:
        """Record the observations before step t."""
        for k in range(len(frame.obs)):
            self._arrays[f"obs/{k}"][t] = frame.obs[k]
            if frame.alive is not None:
                self._arrays[f"alive/{k}"][t] = frame.alive[k]
            if frame.masks is not None and f"mask/{k}" in self._arrays:
                self._arrays[f"mask/{k}"][t] = frame.masks[k]
        if self._schema.with_state and frame.state is not None:
            self._arrays["state"][t] = frame.state

    def did(self, t: int, k: int, action: ActionArray, log_prob_NB: FloatArray) -> None:
        """Record the actions of class k in step t."""
        self._arrays[f"action/{k}"][t] = action
        self._arrays[f"log_prob/{k}"][t] = log_prob_NB

    def got(self, t: int, transition: Transition) -> None:
        """Record the result of step t; where a segment is cut, its final observation becomes a bootstrap row."""
        for k in range(len(transition.rewards)):
            self._arrays[f"reward/{k}"][t] = transition.rewards[k]
            self._arrays[f"terminated/{k}"][t] = transition.terminated[k]
        last = t == self._schema.steps - 1
        self._arrays["cut"][t] = transition.ended | last
        copies = np.flatnonzero(transition.truncated | ~transition.ended if last else transition.truncated)
        if copies.size:
            self._bootstrap(t, copies, transition.final)

    def _bootstrap(self, t: int, copies: NDArray[np.intp], final: Frame) -> None:
        self._boots["boot_index"].append((t * self._schema.batch + copies).astype(np.int32))
        for k, obs_NBO in enumerate(final.obs):
            self._boots[f"boot_obs/{k}"].append(obs_NBO[:, copies])
            if final.masks is not None and f"boot_mask/{k}" in self._boots:
                self._boots[f"boot_mask/{k}"].append(final.masks[k][:, copies])
        if self._schema.with_state and final.state is not None:
            self._boots["boot_state"].append(final.state[copies])

    def trajectory(self) -> Trajectory:
        """The recorded trajectory; do not use the recorder afterwards. Raises SpecError for NaN and infinite values."""
        boots = {name: np.concatenate(rows, axis=1 if "/" in name else 0) for name, rows in self._boots.items()}
        if odd := self._schema.not_finite(self._arrays | boots):
            raise SpecError(f"the environment or its policies are broken: {odd}")
        return Trajectory(self._arrays | boots)


class _EpisodeMeter:
    """Adds up returns; counts the first `quota_B[b]` episodes of copy b."""

    def __init__(self, spaces: EnvSpaces, quota_B: NDArray[np.integer]) -> None:
        self._agents = spaces.agents
        self._missing_B = quota_B.copy()
        self._return_NB = np.zeros((len(self._agents), len(quota_B)))
        self._steps_B = np.zeros(len(quota_B), np.int64)
        self._sum_N = np.zeros(len(self._agents))
        self._square_sum_N = np.zeros(len(self._agents))
        self._env_steps = self._episodes = self._episode_steps = self._judged = self._wins = 0

    @property
    def full(self) -> bool:
        """True once every copy has reached its quota."""
        return not self._missing_B.any()

    @property
    def episodes(self) -> int:
        """Number of finished episodes that count."""
        return self._episodes

    def add(self, transition: Transition) -> None:
        """Add one step of all copies."""
        self._return_NB += np.concatenate(transition.rewards)
        self._steps_B += 1
        self._env_steps += len(self._steps_B)
        if transition.ended.any():
            self._close(transition.ended, transition.won)

    def _close(self, ended_B: BoolArray, won_B: BoolArray | None) -> None:
        counted_B = ended_B & (self._missing_B > 0)
        self._missing_B -= counted_B
        self._episodes += int(counted_B.sum())
        self._episode_steps += int(self._steps_B[counted_B].sum())
        self._sum_N += self._return_NB[:, counted_B].sum(axis=1)
        self._square_sum_N += np.square(self._return_NB[:, counted_B]).sum(axis=1)
        if won_B is not None:
            self._judged += int(counted_B.sum())
            self._wins += int((counted_B & won_B).sum())
        self._return_NB[:, ended_B] = 0.0
        self._steps_B[ended_B] = 0

    def stats(self) -> EpisodeStats:
        """The sums so far; raises SpecError if a return is not finite."""
        for agent, total in zip(self._agents, self._sum_N.tolist(), strict=True):
            if not math.isfinite(total):
                raise SpecError(f"the environment is broken: the rewards of {agent} add up to {total}")
        return EpisodeStats(
            env_steps=self._env_steps,
            episodes=self._episodes,
            episode_steps=self._episode_steps,
            return_sum=dict(zip(self._agents, self._sum_N.tolist(), strict=True)),
            return_square_sum=dict(zip(self._agents, self._square_sum_N.tolist(), strict=True)),
            judged=self._judged,
            wins=self._wins,
        )
