"""Plays an environment at random for a moment, to tell its user what marless sees of it before anything is trained.

What is seen is a sample: an event that random actions did not cause in this time may occur all the same.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from marless.learning.envs.base import (
    ActionArray,
    BatchedEnv,
    BoolArray,
    EnvSpaces,
    Frame,
    Helping,
    ObsArray,
    Transition,
    checksum,
    random_actions,
)

MOST_STEPS = 2000
"""Env steps of a trial, at most."""
SECONDS = 0.6
"""CPU seconds after which a trial takes no further step: of what it shows, a busy machine changes little."""
WAITS = 3
"""Times as many seconds after which it takes none either: an environment may wait, for a game or for others."""
_REPEATED_STEPS = 50
"""Env steps that are repeated from the same seed with the same actions."""


@dataclass(frozen=True, kw_only=True)
class SeenClass:
    """What the agents of one class observed and could do."""

    obs_low: float
    """Least number observed; 0 if none was."""
    obs_high: float
    """Largest number observed; 0 if none was."""
    constant: int
    """How many of the numbers observed were the same in all frames, for all agents of the class."""
    still: bool
    """True if episodes had several frames, and what an agent observed stayed the same in all of its episode."""
    legal: float
    """Share of actions that were legal, on average; 1 for continuous actions and without masks."""


@dataclass(frozen=True, kw_only=True)
class SeenAgent:
    """What happened to one agent."""

    steps: int
    """Env steps in which it acted."""
    reward_low: float
    """Least reward of a step; 0 if it did not act."""
    reward_high: float
    """Largest reward of a step; 0 if it did not act."""
    left_early: int
    """Episodes that it left before their end."""
    without_choice: bool
    """True if it was alive once and its mask allowed no action."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What some episodes of random legal actions showed, in one copy of an environment."""

    env_steps: int
    seconds: float
    """Seconds of play, without making the environment."""
    episodes: int
    """Episodes that ended."""
    truncated: int
    """How many of those were cut by a time limit; the others ended because all agents terminated."""
    shortest: int
    """Env steps of the shortest of those episodes; 0 if none ended."""
    longest: int
    """Env steps of the longest of those episodes; 0 if none ended."""
    common_reward: bool
    """True if all agents that acted had equal rewards in every step."""
    paid_after_death: bool
    """True if others had rewards after an agent had left for good."""
    repeats: bool
    """True if equal seeds and actions gave equal observations and rewards, bit for bit."""
    classes: Sequence[SeenClass]
    agents: Sequence[SeenAgent]
    """In the order of `EnvSpaces.agents`."""


def trial(env: BatchedEnv, *, steps: int = MOST_STEPS, seconds: float = SECONDS, seed: int = 0) -> Trial:
    """Play random legal actions in copy 0 of an environment, until `steps`, or `seconds` of CPU time, are over.

    With `WAITS` times as many seconds it ends, too. Raises what the environment raises, which can be reset and used
    afterwards.
    """
    seen, rng = _Seen(env.spaces), np.random.Generator(np.random.PCG64(seed))
    started_s, cpu_s = time.perf_counter(), time.process_time()
    frame, digests, actions = env.reset(seed), list[int](), list[tuple[ActionArray, ...]]()
    seen.observe(frame, begins=True)
    while seen.env_steps < steps and time.process_time() - cpu_s < seconds:
        if time.perf_counter() - started_s >= WAITS * seconds:
            break
        chosen = random_actions(env.spaces, frame, rng)
        # Before the step, after which the frame may show something else.
        seen.act(frame)
        transition = env.step(chosen)
        if seen.env_steps < _REPEATED_STEPS:
            actions.append(chosen)
            digests.append(_digest(transition))
        seen.add(transition)
        frame = transition.frame
        seen.observe(frame, begins=bool(transition.ended[0]))
    took_s, helped = time.perf_counter() - started_s, env.without_choice if isinstance(env, Helping) else ()
    env.reset(seed)
    # Stops at the first difference: what an episode that took another course legally does next is not known here.
    repeats = all(_digest(env.step(each)) == digest for each, digest in zip(actions, digests, strict=True))
    return seen.result(took_s, repeats=repeats, helped=helped)


def _digest(transition: Transition) -> int:
    """CRC-32 of what a step shows: observations, rewards, ends."""
    frame, ends = transition.frame, (*transition.terminated, transition.ended)
    return checksum((*frame.obs, *(frame.masks or ()), *transition.rewards, *ends))


class _Seen:
    """Sums over the steps of a trial, of copy 0."""

    def __init__(self, spaces: EnvSpaces) -> None:
        agents, sizes = len(spaces.agents), [each.obs_size for each in spaces.classes]
        self.env_steps = 0
        self._spaces = spaces
        self._low = [np.full(size, np.inf, np.float32) for size in sizes]
        self._high = [np.full(size, -np.inf, np.float32) for size in sizes]
        self._before: list[tuple[ObsArray, BoolArray]] = []
        """The observations of each class in the frame before, and who was alive."""
        self._twice_and_changed = np.zeros((len(sizes), 2), np.bool_)
        """Whether agents were seen twice in an episode, and whether what they observed has changed then."""
        self._legal = np.zeros((len(sizes), 2))
        self._acted = np.zeros(agents, np.int64)
        self._reward_low, self._reward_high = np.full(agents, np.inf), np.full(agents, -np.inf)
        self._left = np.zeros(agents, np.int64)
        self._choiceless = np.zeros(agents, np.bool_)
        self._gone = np.zeros(agents, np.bool_)
        self._alive = np.ones(agents, np.bool_)
        self._steps, self._truncated, self._lengths = 0, 0, list[int]()
        self._common, self._paid_after_death = True, False

    def observe(self, frame: Frame, *, begins: bool) -> None:
        """Take the extremes of the observations of agents that are alive; compare them unless an episode `begins`."""
        before, self._before = self._before, []
        for k, obs_NBO in enumerate(frame.obs):
            alive_N = np.ones(len(obs_NBO), np.bool_) if frame.alive is None else frame.alive[k][:, 0].copy()
            self._before.append((obs_NBO[:, 0].copy(), alive_N))
            if not begins:
                both_N = alive_N & before[k][1]
                self._twice_and_changed[k] |= both_N.any(), (obs_NBO[both_N, 0] != before[k][0][both_N]).any()
            shown = obs_NBO[alive_N, 0]
            if len(shown):
                np.minimum(self._low[k], shown.min(axis=0), out=self._low[k])
                np.maximum(self._high[k], shown.max(axis=0), out=self._high[k])
            if frame.masks is not None:
                legal = frame.masks[k][:, 0] if frame.alive is None else frame.masks[k][frame.alive[k][:, 0], 0]
                self._legal[k] += legal.sum(), legal.size

    def act(self, frame: Frame) -> None:
        """Remember who acts in the next step; the frame is valid only until then."""
        if frame.alive is not None:
            self._alive = np.concatenate([each[:, 0] for each in frame.alive])
        self._acted += self._alive
        if frame.masks is not None:
            stuck = np.concatenate([~mask_NBA[:, 0].any(axis=-1) for mask_NBA in frame.masks])
            self._choiceless |= stuck & self._alive

    def add(self, transition: Transition) -> None:
        """Add the rewards and ends of a step."""
        rewards = np.concatenate([each[:, 0] for each in transition.rewards]).astype(np.float64)
        acted, now = rewards[self._alive], transition.frame.alive
        np.minimum(self._reward_low, rewards, out=self._reward_low, where=self._alive)
        np.maximum(self._reward_high, rewards, out=self._reward_high, where=self._alive)
        self._common &= bool(len(acted) == 0 or (acted == acted[0]).all())
        self._paid_after_death |= bool(self._gone.any() and acted.any())
        self.env_steps += 1
        self._steps += 1
        if transition.ended[0]:
            self._left += self._gone
            self._gone[:] = False
            self._lengths.append(self._steps)
            self._truncated += bool(transition.truncated[0])
            self._steps = 0
        elif now is not None:
            terminated = np.concatenate([each[:, 0] for each in transition.terminated])
            self._gone |= terminated

    def result(self, seconds: float, *, repeats: bool, helped: Collection[str]) -> Trial:
        """The trial as a record; `helped` are agents whose mask allowed nothing before the environment changed it."""
        return Trial(
            env_steps=self.env_steps,
            seconds=seconds,
            episodes=len(self._lengths),
            truncated=self._truncated,
            shortest=min(self._lengths, default=0),
            longest=max(self._lengths, default=0),
            common_reward=self._common,
            paid_after_death=self._paid_after_death,
            repeats=repeats,
            classes=tuple(map(self._seen_class, range(len(self._low)))),
            agents=tuple(
                SeenAgent(
                    steps=int(self._acted[i]),
                    reward_low=float(self._reward_low[i]) if self._acted[i] else 0.0,
                    reward_high=float(self._reward_high[i]) if self._acted[i] else 0.0,
                    left_early=int(self._left[i]),
                    without_choice=bool(self._choiceless[i]) or agent in helped,
                )
                for i, agent in enumerate(self._spaces.agents)
            ),
        )

    def _seen_class(self, k: int) -> SeenClass:
        shown = np.isfinite(self._low[k]).all()
        legal, all_actions = self._legal[k]
        seen_twice, changed = self._twice_and_changed[k]
        return SeenClass(
            obs_low=float(self._low[k].min()) if shown else 0.0,
            obs_high=float(self._high[k].max()) if shown else 0.0,
            constant=int((self._low[k] == self._high[k]).sum()) if shown else 0,
            still=bool(seen_twice and not changed),
            legal=float(legal / all_actions) if all_actions else 1.0,
        )
