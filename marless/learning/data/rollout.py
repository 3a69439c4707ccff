"""An actor's computation: rollouts and whole episodes in a batched environment, as deterministic functions of a seed.

No torch, no I/O. Suffixes as in `marless.learning.envs.base` and `marless.learning.data.trajectory`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from marless.core.errors import CorruptError, SpecError
from marless.core.interruption import Stopped, check, never
from marless.core.stopwatch import RunningTime
from marless.learning.data.carry import Carry, Stagger
from marless.learning.data.episodes import EpisodeMeter, EpisodeStats
from marless.learning.data.trajectory import Recorder, Trajectory, TrajectorySchema, returned
from marless.learning.envs.base import (
    ActionArray,
    Arrays,
    BatchedEnv,
    BoolArray,
    FloatArray,
    Frame,
    ObsArray,
    Saved,
    Transition,
    Truncating,
    checksum,
    random_actions,
)


class ActingPolicy(Protocol):
    """Chooses the actions of one agent class, each agent under its own policy, one env step per call.

    Policies may be recurrent. Actions of agents that are dead or wait are ignored.
    """

    def begin(self, batch: int) -> None:
        """Reset the memory of all `batch` copies: new episodes start."""

    def reset_memory(self, anew_NB: BoolArray) -> None:
        """Reset the memory of agents that begin anew in some copies: a new episode starts, or they have come back."""

    def sample(
        self, obs_NBO: ObsArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        """Draw actions (int32 [N, B] or float32 [N, B, A]) and their log-probabilities, float32 [N, B]."""

    def greedy(self, obs_NBO: ObsArray, mask_NBA: BoolArray | None) -> ActionArray:
        """The most likely actions, int32 [N, B] or float32 [N, B, A]."""

    def to_env(self, action: ActionArray) -> ActionArray:
        """Convert actions to those of the environment (continuous: clip and scale to its box)."""


@runtime_checkable
class Remembering(ActingPolicy, Protocol):
    """An acting policy whose memory can be taken to the next round's policy of the same class."""

    def memory(self) -> Arrays:
        """Copies of the memory by name, such as "hidden", float32 [N, H, B]; {} if there is none."""

    def recall(self, memory: Arrays) -> None:
        """Continue, after `begin`, with a memory of `batch` copies; raises CorruptError if it does not fit."""


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
    lane = Lane(env)
    lane.begin(seed)
    return lane.roll(policies, steps=steps, seed=seed, with_state=with_state, stopped=stopped)


class Lane:
    """A batch of environment copies whose episodes go on from one rollout to the next.

    `begin` starts it, or `load` continues one that was saved, in this process or another; then each `roll` continues
    where the last one ended. The lane owns its environment: nothing else may step it. After an exception, `begin` or
    `load` again.
    """

    def __init__(self, env: BatchedEnv) -> None:
        self._env = env
        self._cutter = env if isinstance(env, Truncating) else None
        self._frame: Frame | None = None
        self._memory: dict[int, Arrays] = {}
        self._meter = EpisodeMeter(env.spaces, env.batch)
        self._stagger = Stagger(env.batch)

    def begin(self, seed: int) -> None:
        """Start a new episode in every copy."""
        self._frame, self._memory = None, {}
        self._meter = EpisodeMeter(self._env.spaces, self._env.batch)
        self._stagger = Stagger(self._env.batch)
        self._frame = self._env.reset(_streams(seed)[0])

    def load(self, carry: Carry) -> None:
        """Continue as the lane that was saved. Raises CorruptError for a carry of another environment or batch.

        Raises SpecError if the environment cannot be saved, or does not show what it showed when it was.
        """
        # No frame until all of the carry has been read: a lane that was loaded in part must not be rolled on.
        env, self._frame = _saved(self._env), None
        meter, stagger = EpisodeMeter(self._env.spaces, self._env.batch), Stagger(self._env.batch)
        meter.load(carry.part("meter"))
        stagger.load(carry.part("stagger"))
        frame = env.load(carry.part("env"))
        check = carry.arrays.get("frame/check")
        if check is None or check.dtype != np.uint32 or check.shape != (1,):
            raise CorruptError("carry: frame/check is missing or no uint32[1]")
        if int(check[0]) != checksum(frame.arrays()):
            raise SpecError(
                "the environment shows other observations after it was saved and loaded: it is not deterministic "
                "under its seed, or its save() is incomplete; set actors.episodes: fresh"
            )
        memory = {k: carry.part(f"memory/{k}") for k in range(len(self._env.spaces.classes))}
        self._memory = {k: arrays for k, arrays in memory.items() if arrays}
        self._frame, self._meter, self._stagger = frame, meter, stagger

    def save(self) -> Carry:
        """The lane as it is between two rollouts, as copies. Raises SpecError if the environment cannot be saved."""
        arrays = {f"env/{name}": array for name, array in _saved(self._env).save().items()}
        arrays["frame/check"] = np.array([checksum(self._present().arrays())], np.uint32)
        arrays |= {f"meter/{name}": array for name, array in self._meter.save().items()}
        arrays |= {f"stagger/{name}": array for name, array in self._stagger.save().items()}
        for k, memory in self._memory.items():
            arrays |= {f"memory/{k}/{name}": array for name, array in memory.items()}
        return Carry(arrays)

    def roll(
        self,
        policies: Sequence[ActingPolicy],
        *,
        steps: int,
        seed: int,
        with_state: bool,
        index: int | None = None,
        stopped: Stopped = never,
    ) -> tuple[Trajectory, EpisodeStats]:
        """Sample `steps` time steps in every copy, with exploration; episodes that end are counted as a whole.

        `policies` holds one entry per agent class; they go on with the memory of those before them. The actions use a
        random stream of `seed`. `index` is that of the lane in its job if its episodes are carried: copies that would
        stay in step are then staggered, and the trajectory also has "resumed" and, of policies with memory, "memory/k".
        `stopped` is called before each step. Raises SpecError if `with_state` is set but the environment has no global
        state, StoppedError once `stopped` returns True.
        """
        if with_state and not self._env.spaces.state_size:
            raise SpecError("the algorithm needs a global state, which this environment does not have")
        # No frame until the end of the round: after an exception nobody goes on with episodes that were left halfway.
        frame, self._frame, rng = self._present(), None, _streams(seed)[1]
        spaces, batch = self._env.spaces, self._env.batch
        for k, policy in enumerate(policies):
            policy.begin(batch)
            if k in self._memory and not isinstance(policy, Remembering):
                raise CorruptError(f"carry: it has a memory of {spaces.classes[k].name}, its policies none")
            if k in self._memory and isinstance(policy, Remembering):
                policy.recall(self._memory[k])
        remembered = {} if index is None else _remembered(policies)
        memory = _memory(remembered)
        # The images before the first step, and who begins with it, by class; see `FrameStack.memory`.
        before = {
            k: (held["frames"], held["begins"].astype(np.bool_)) for k, held in remembered.items() if "frames" in held
        }
        units = tuple(each.shape[2] for each in memory)
        frames = tuple(1 + len(before[k][0]) if k in before else 1 for k in range(len(policies))) if before else ()
        recorder = Recorder(TrajectorySchema(spaces, steps, batch, with_state, index is not None, units, frames))
        recorder.begun(self._meter.steps_B > 0, memory, before)
        if index is not None and self._cutter is not None:
            self._stagger.plan(index, spaces.max_steps, steps)
        for t in range(steps):
            check(stopped)
            recorder.saw(t, frame)
            transition = self._step(policies, frame, _explore(policies, frame, rng, recorder, t))
            recorder.got(t, transition)
            frame = transition.frame
        self._frame, self._memory = frame, _remembered(policies)
        return recorder.trajectory(), self._meter.stats()

    def _step(self, policies: Sequence[ActingPolicy], frame: Frame, actions: tuple[ActionArray, ...]) -> Transition:
        """Step all copies once, count the episodes that end, and cut those that are due."""
        cut_B = self._stagger.due(self._meter.steps_B)
        if cut_B is not None and self._cutter is not None:
            self._cutter.truncate(cut_B)
        transition = step(self._env, policies, frame, actions)
        if (ended_B := transition.whole).any():
            # Before the meter adds the step, which sets the lengths of ended episodes to 0.
            self._stagger.ended(ended_B, self._meter.steps_B + 1)
        self._meter.add(transition, cut_B)
        return transition

    def _present(self) -> Frame:
        if self._frame is None:
            raise SpecError("the lane has no episodes to go on with; begin or load it first")
        return self._frame


def _explore(
    policies: Sequence[ActingPolicy], frame: Frame, rng: np.random.Generator, recorder: Recorder, t: int
) -> tuple[ActionArray, ...]:
    """Sample the actions of step t and record them; returns those for the environment."""
    actions = []
    for k, policy in enumerate(policies):
        action, log_prob_NB = policy.sample(frame.obs[k], frame.masks[k] if frame.masks else None, rng)
        recorder.did(t, k, action, log_prob_NB)
        actions.append(policy.to_env(action))
    return tuple(actions)


def _remembered(policies: Sequence[ActingPolicy]) -> dict[int, Arrays]:
    """The memory of the policies of each class that have one."""
    found = {k: policy.memory() for k, policy in enumerate(policies) if isinstance(policy, Remembering)}
    return {k: arrays for k, arrays in found.items() if arrays}


def _saved(env: BatchedEnv) -> Saved:
    if not isinstance(env, Saved):
        raise SpecError(
            "its episodes cannot go on in another process: it has no save() and load(); set actors.episodes: fresh"
        )
    return env


def _memory(remembered: Mapping[int, Arrays]) -> list[FloatArray]:
    """[N, B, H] of each class before the first step of a rollout; [] if there is no memory."""
    # "hidden" before "last_action": readers of `memory/k` take the last action from its end.
    found = {
        k: [memory[name] for name in ("hidden", "last_action") if name in memory]
        for k, memory in sorted(remembered.items())
    }
    return [np.concatenate(parts, axis=1, dtype=np.float32).swapaxes(1, 2) for parts in found.values() if parts]


def begin(env: BatchedEnv, policies: Sequence[ActingPolicy], seed: int) -> Frame:
    """Start a new episode in every copy, and reset the memory of the policies."""
    for policy in policies:
        policy.begin(env.batch)
    return env.reset(seed)


def step(
    env: BatchedEnv, policies: Sequence[ActingPolicy], frame: Frame, actions: tuple[ActionArray, ...]
) -> Transition:
    """Step all copies once from `frame`, and reset the memory of the policies where an episode has ended, or where an
    agent has come back.
    """
    # copies, because the frame is valid until the step
    before = None if frame.alive is None else [np.array(frame.there(k)) for k in range(len(frame.alive))]
    transition = env.step(actions)
    for k, policy in enumerate(policies):
        anew_NB, after_NB = np.broadcast_to(transition.ended, frame.obs[k].shape[:2]), transition.frame.there(k)
        if before is not None and after_NB is not None:
            anew_NB = anew_NB | returned(np.stack([before[k], after_NB]))[1]
        if anew_NB.any():
            policy.reset_memory(anew_NB)
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
    limit_s: float = 0.0,
) -> EpisodeStats:
    """Play exactly `episodes` whole episodes: greedily or exploring; uniformly over legal actions without `policies`.

    The number of episodes per copy is fixed in advance, because counting those that end first would favour short ones.
    `stopped` is called before each step, `ended` after it with the number of finished episodes. Raises StoppedError
    once `stopped` returns True. With `limit_s`, play is given up when no episode has ended for so many seconds (without
    the time that this thread waited for a CPU), because it may never end; the result has no episode then. The
    environment can be reused afterwards.
    """
    env_seed, rng = _streams(seed)
    copies = np.arange(env.batch)
    meter = EpisodeMeter(env.spaces, env.batch, episodes // env.batch + (copies < episodes % env.batch))
    frame = begin(env, policies or (), env_seed)
    waiting = _Waiting(limit_s)
    while not meter.full:
        check(stopped)
        if waiting.too_long(meter.episodes):
            return meter.given_up()
        if policies is None:
            actions = random_actions(env.spaces, frame, rng)
        else:
            actions = act(policies, frame, rng if explore else None)
        transition = step(env, policies or (), frame, actions)
        meter.add(transition)
        frame = transition.frame
        if ended:
            ended(meter.episodes)
    return meter.stats()


class _Waiting:
    """Tells when no episode has ended for too long."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s` is in seconds; 0: never."""
        self._limit_s, self._episodes = limit_s, 0
        self._running, self._since_s, self._ran_s = RunningTime(), time.monotonic(), 0.0

    def too_long(self, episodes: int) -> bool:
        """Whether the number of ended episodes has been the same for longer than the limit."""
        if episodes > self._episodes:
            self._episodes, self._since_s, self._ran_s = episodes, time.monotonic(), self._running.seconds
        # The running time is read from a file, so it is asked for only when the clock says that it may be enough.
        late = self._limit_s > 0 and time.monotonic() - self._since_s > self._limit_s
        return late and self._running.seconds - self._ran_s > self._limit_s


def _streams(seed: int) -> tuple[int, np.random.Generator]:
    env, actions = np.random.SeedSequence(seed).spawn(2)
    return int(env.generate_state(1)[0]), np.random.Generator(np.random.PCG64(actions))
