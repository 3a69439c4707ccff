"""A contract test for environments: checks that one satisfies the protocol of `marless.learning.envs.base`.

For tests of marless and of other packages; see docs/extending/environment.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import require, told
from marless.learning.envs.base import (
    BatchedEnv,
    BoolArray,
    EnvSpaces,
    Frame,
    Saved,
    Transition,
    Truncating,
    random_actions,
)

Array = NDArray[np.generic]
There = tuple[BoolArray, ...] | None
"""bool [N, B] per class: the agents in the episode, acting or waiting; None if all always are."""
_SEEDED = "it is not deterministic under its seed"
_ADVICE = "; until this is repaired, its episodes cannot go on over rounds: train with actors.episodes: fresh"


def check_env(factory: Callable[[int], BatchedEnv], *, steps: int = 60, seed: int = 1) -> None:
    """Run `steps` env steps with random legal actions and check every array; raises AssertionError, naming the array.

    `factory` makes an environment with the given number of copies. Choose `steps` large enough that episodes end. If it
    has `save` and `load`, episodes are continued in another environment from saves of several steps; if it has
    `truncate`, episodes of single copies are truncated.
    """
    for batch in (1, 3):
        first, second = factory(batch), factory(batch)
        _check_spaces(first.spaces)
        require(first.batch == batch, f"asked for {batch} copies, got {first.batch}")
        played = _play(first, steps, seed)
        require(_same(played, _play(second, steps, seed)), f"two environments with one seed part ways: {_SEEDED}")
        again = _play(first, steps, seed)
        require(_same(played, again), f"a second reset with the same seed gives another episode: {_SEEDED}")
        if isinstance(first, Saved):
            try:
                _compare_saves(first, second, steps, seed)
            except AssertionError as error:
                raise AssertionError(f"{error}{_ADVICE}") from error
        if isinstance(first, Truncating):
            for chosen in range(batch):
                _check_truncate(first, second, steps, np.arange(batch) == chosen, seed)
        for env in (first, second, first):
            env.close()


def _compare_saves(env: BatchedEnv, other: BatchedEnv, steps: int, seed: int) -> None:
    """Save in several steps, continue in `other`, and compare all that both show, and their next saves."""
    assert isinstance(env, Saved) and isinstance(other, Saved)
    rng = np.random.default_rng(seed)
    for begun in sorted({0, 1, steps // 3, steps - 1}):
        frame = env.reset(seed)
        for _ in range(begun):
            frame = env.step(random_actions(env.spaces, frame, rng)).frame
        saved, shown = env.save(), [array.copy() for array in _by_copy(frame)]
        kept = {name: array.copy() for name, array in saved.items()}
        for offset in range(2):  # `other` has a past of its own, which must not matter
            other.step(random_actions(other.spaces, other.reset(seed + 1 + offset), rng))
        where = f"saved after step {begun} and loaded"
        try:
            loaded = other.load(saved)
        except Exception as error:
            raise AssertionError(f"{where}: load() failed with {told(error)}") from error
        _check_frame(other, loaded, where)
        require(_same(shown, _by_copy(loaded)), f"{where}: the frame is another")
        require(_alike(kept, other.save()), f"{where}: the next save is another")
        for t in range(begun, steps):
            actions = random_actions(env.spaces, frame, rng)
            step, again = env.step(actions), other.step(tuple(action.copy() for action in actions))
            require(_same(_arrays(step), _arrays(again)), f"{where}: step {t} is another")
            frame = step.frame
        require(_alike(kept, saved), f"{where}: later steps changed the save; it must hold copies")
        require(_alike(env.save(), other.save()), f"{where}: the saves part ways")


def _check_truncate(env: BatchedEnv, other: BatchedEnv, steps: int, chosen_B: BoolArray, seed: int) -> None:
    """Truncate the copies at step `t` in `env`, and not in `other`; later episodes have their whole length again."""
    assert isinstance(env, Truncating)
    rng, t = np.random.default_rng(seed), steps // 3
    env.reset(seed)
    env.truncate(chosen_B)  # which the next reset cancels
    frame, length_B = env.reset(seed), np.zeros(env.batch, np.int64)
    other.reset(seed)
    for now in range(steps):
        actions = random_actions(env.spaces, frame, rng)
        if now == t:
            env.truncate(chosen_B)
        step = env.step(actions)
        where = f"truncated at step {t}: step {now}"
        if now <= t:
            _compare_truncated(step, other.step(actions), chosen_B & (now == t), where)
        length_B += 1
        if now != t:
            _check_length(env.spaces, length_B, step, where)
        length_B[step.ended] = 0
        frame = step.frame


def _compare_truncated(step: Transition, whole: Transition, chosen_B: BoolArray, where: str) -> None:
    """The chosen copies have ended, truncated unless they ended by themselves; all else is as in `whole`."""
    require(bool((step.ended == whole.ended | chosen_B).all()), f"{where}: ended must be true where it was truncated")
    wanted_B = whole.truncated | (chosen_B & ~whole.ended)
    require(bool((step.truncated == wanted_B).all()), f"{where}: truncated is wrong")
    require(_same([*step.rewards, *step.terminated], [*whole.rewards, *whole.terminated]), f"{where}: it differs")
    require(_same(_by_copy(step.final), _by_copy(whole.final)), f"{where}: final differs")
    others = [[array[~step.ended] for array in _by_copy(each.frame)] for each in (step, whole)]
    require(_same(*others), f"{where}: the frame of another copy differs")


def _play(env: BatchedEnv, steps: int, seed: int) -> list[Array]:
    """Run and check the steps; returns copies of all arrays seen."""
    rng = np.random.default_rng(seed)
    frame = env.reset(seed)
    _check_frame(env, frame, "reset")
    seen, length_B = [array.copy() for array in _by_copy(frame)], np.zeros(env.batch, np.int64)
    for t in range(steps):
        actions = random_actions(env.spaces, frame, rng)
        there = _there(frame)
        given = [action.copy() for action in actions]
        step = env.step(actions)
        require(_same(given, list(actions)), f"step {t} changed the actions it was given")
        length_B += 1
        _check_transition(env, there, step, f"step {t}")
        _check_length(env.spaces, length_B, step, f"step {t}")
        length_B[step.ended] = 0
        seen += [array.copy() for array in _arrays(step)]
        frame = step.frame
    return seen


def _check_spaces(spaces: EnvSpaces) -> None:
    require(len(set(spaces.agents)) == len(spaces.agents) > 0, f"agents need distinct names, got {spaces.agents}")
    names = [c.name for c in spaces.classes]
    require(len(set(names)) == len(names), f"agent classes need distinct names, got {names}")
    for c in spaces.classes:
        require(len(c.agents) > 0 and c.obs_size > 0 and c.action.n > 0, f"class {c.name} is empty or sees nothing")
        pixels = c.obs_size if c.image is None else prod(c.image)
        require(pixels == c.obs_size, f"class {c.name}: obs_size is {c.obs_size}, an image {c.image} has {pixels}")


def _check_frame(env: BatchedEnv, frame: Frame, where: str, leaving: There = None) -> None:
    """Check a frame; `leaving` agents were there in the step before and have not terminated: they may show an end."""
    spaces, batch = env.spaces, env.batch
    require((frame.state is None) == (spaces.state_size == 0), f"{where}: state and state_size disagree")
    require((frame.masks is None) != spaces.masks, f"{where}: masks and spaces.masks disagree")
    require((frame.alive is None) != (spaces.deaths or spaces.turns), f"{where}: alive and spaces.deaths disagree")
    require((frame.waits is None) != spaces.turns, f"{where}: waits and spaces.turns disagree")
    if frame.state is not None:
        _check(frame.state, "float32", (batch, spaces.state_size), f"{where}: state")
    for k, c in enumerate(spaces.classes):
        shape = (len(c.agents), batch)
        _check(frame.obs[k], c.obs_dtype, (*shape, c.obs_size), f"{where}: obs of {c.name}")
        if frame.masks is not None:
            _check(frame.masks[k], "bool", (*shape, c.action.n), f"{where}: mask of {c.name}")
            require(bool(frame.masks[k].any(axis=-1).all()), f"{where}: some {c.name} has no legal action")
        if frame.alive is not None:
            _check(frame.alive[k], "bool", shape, f"{where}: alive of {c.name}")
            absent_NB = ~frame.alive[k] if leaving is None else ~(frame.alive[k] | leaving[k])
            require(not frame.obs[k][absent_NB].any(), f"{where}: an absent {c.name} sees something")
        if frame.waits is not None and frame.alive is not None:
            _check(frame.waits[k], "bool", shape, f"{where}: waits of {c.name}")
            require(not (frame.waits[k] & frame.alive[k]).any(), f"{where}: a {c.name} both waits and is alive")
            require(not frame.obs[k][frame.waits[k]].any(), f"{where}: a {c.name} that waits sees something")


def _check_transition(env: BatchedEnv, there: There, step: Transition, where: str) -> None:
    leaving = None if there is None else tuple(map(np.greater, there, step.terminated))
    begun = None if leaving is None else tuple(leaving_NB & ~step.ended for leaving_NB in leaving)
    _check_frame(env, step.frame, f"{where}, frame", begun)
    _check_frame(env, step.final, f"{where}, final", leaving)
    _check(step.truncated, "bool", (env.batch,), f"{where}: truncated")
    _check(step.ended, "bool", (env.batch,), f"{where}: ended")
    require((step.won is None) != env.spaces.wins, f"{where}: won and spaces.wins disagree")
    if step.won is not None:
        _check(step.won, "bool", (env.batch,), f"{where}: won")
        require(not step.won[~step.ended].any(), f"{where}: an episode was won that has not ended")
    has = step.team_reward is not None
    require(has == env.spaces.team_reward, f"{where}: team_reward and spaces.team_reward disagree")
    if step.team_reward is not None:
        dtype = str(step.team_reward.dtype)
        require(dtype in ("float32", "float64"), f"{where}: team_reward is {dtype}")
        _check(step.team_reward, dtype, (env.batch,), f"{where}: team_reward")
    for k, c in enumerate(env.spaces.classes):
        shape = (len(c.agents), env.batch)
        dtype = str(step.rewards[k].dtype)
        require(dtype in ("float32", "float64"), f"{where}: reward of {c.name} is {dtype}")
        _check(step.rewards[k], dtype, shape, f"{where}: reward of {c.name}")
        _check(step.terminated[k], "bool", shape, f"{where}: terminated of {c.name}")
        if there is not None:
            absent = ~there[k]
            require(not step.rewards[k][absent].any(), f"{where}: an absent {c.name} was rewarded")
            require(not step.terminated[k][absent].any(), f"{where}: an absent {c.name} terminated")
    going_on = [[array[~step.ended] for array in _by_copy(frame)] for frame in (step.frame, step.final)]
    require(_same(*going_on), f"{where}: frame and final differ in a copy whose episode goes on")
    _check_end(there, step, where)


def _check_end(there: There, step: Transition, where: str) -> None:
    terminated_NB = np.concatenate(step.terminated)
    present_NB = np.ones_like(terminated_NB) if there is None else np.concatenate(there)
    all_gone_B = ~(present_NB & ~terminated_NB).any(axis=0)
    if (left := _there(step.final)) is not None:
        left_NB = np.concatenate(left)
        require(not (left_NB & terminated_NB).any(), f"{where}: an agent that terminated is still alive")
        all_gone_B = ~left_NB.any(axis=0)
    over_B = step.truncated | all_gone_B
    require(bool((step.ended == over_B).all()), f"{where}: ended must mean truncated, or every agent gone")
    if there is None:
        goes_on = terminated_NB.any(axis=0) & ~step.ended
        require(not goes_on.any(), f"{where}: an agent terminated in mid-episode, but spaces.deaths is false")


def _check_length(spaces: EnvSpaces, length_B: NDArray[np.int64], step: Transition, where: str) -> None:
    if spaces.max_steps is not None:
        over_B = length_B >= spaces.max_steps
        require(bool(step.ended[over_B].all()), f"{where}: an episode is longer than max_steps={spaces.max_steps}")
        early_B = step.truncated & ~over_B
        require(not early_B.any(), f"{where}: truncated before max_steps={spaces.max_steps}")


def _there(frame: Frame) -> There:
    """Copies of the flags of the agents in the episode."""
    if frame.alive is None:
        return None
    return tuple(np.array(frame.there(k)) for k in range(len(frame.alive)))


def _by_copy(frame: Frame) -> list[Array]:
    """All arrays of a frame, each with the copies as its first axis."""
    return [array if array is frame.state else array.swapaxes(0, 1) for array in frame.arrays()]


def _arrays(step: Transition) -> list[Array]:
    """All arrays of a transition."""
    once = tuple(each for each in (step.won, step.team_reward) if each is not None)
    frames = (*_by_copy(step.frame), *_by_copy(step.final))
    return [*frames, *step.rewards, *step.terminated, step.truncated, step.ended, *once]


def _alike(left: Mapping[str, Array], right: Mapping[str, Array]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def _same(left: Sequence[Array], right: Sequence[Array]) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, left, right))


def _check(array: Array, dtype: str, shape: tuple[int, ...], what: str) -> None:
    found = f"{array.dtype}{list(array.shape)}"
    require(found == f"{dtype}{list(shape)}", f"{what} is {found}, must be {dtype}{list(shape)}")
    require(array.dtype.kind != "f" or bool(np.isfinite(array).all()), f"{what} holds NaN or infinite values")
