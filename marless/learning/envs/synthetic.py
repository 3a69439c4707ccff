"""A synthetic environment for any spaces, which covers edge cases within few steps.

For tests of marless and of other packages: agents die and wait, actions are illegal, episodes terminate and are
truncated. Shape suffixes as in `marless.learning.envs.base`.
"""

from __future__ import annotations

import numpy as np

from marless.learning.envs.base import (
    ActionArray,
    AgentClass,
    Arrays,
    BoolArray,
    Box,
    EnvSpaces,
    FloatArray,
    Frame,
    ObsArray,
    RewardArray,
    Transition,
    Truncatable,
    load_generator,
    save_generator,
    saved,
)

_END = 0.1
"""Probability per step that an agent terminates or, if the spaces have no deaths, that the whole team does."""
_WAITS = 0.3
"""Probability per step that an agent waits, if the spaces have turns."""
_PAID_WAITING = 0.5
"""Reward of an agent in a step in which it waits."""
_LEGAL = 0.6
"""Probability that an action is legal, if the spaces have masks; the first action always is."""


class SyntheticEnv(Truncatable):
    """Agents observe noise, or images of it, whose bytes count as 0 to 1. The reward of a discrete action a is
    component a of the observation (modulo its size); a continuous action costs the sum of its components' distances
    from those of the observation. The team's reward, if there is one, is the greatest of its agents' rewards.
    """

    def __init__(self, spaces: EnvSpaces, batch: int) -> None:
        self.spaces = spaces
        self.batch = batch
        self._there: tuple[BoolArray, ...] = ()
        self._alive: tuple[BoolArray, ...] = ()
        self._cut_B = np.zeros(batch, np.bool_)

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        self._steps_B = np.zeros(self.batch, np.int64)
        self._cut_B[:] = False
        self._frame = self._view(tuple(np.ones((len(c.agents), self.batch), np.bool_) for c in self.spaces.classes))
        return self._frame

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """Raise ValueError for an action out of range, or an illegal one of an agent alive."""
        rewards = tuple(self._rewards(k, action) for k, action in enumerate(actions))
        if self.spaces.deaths:
            terminated = tuple(there & (self._rng.random(there.shape) < _END) for there in self._there)
        else:
            over_B = self._rng.random(self.batch) < _END
            terminated = tuple(there & over_B for there in self._there)
        left = tuple(there & ~over for there, over in zip(self._there, terminated, strict=True))
        self._steps_B += 1
        gone_B = ~np.concatenate(left).any(axis=0)
        late_B = self._steps_B == (self.spaces.max_steps or np.iinfo(np.int64).max)
        truncated_B = ~gone_B & (late_B | self._cut_B)
        ended_B = gone_B | truncated_B
        self._cut_B[:] = False
        final = self._view(left)
        self._steps_B[ended_B] = 0
        self._frame = _joined(final, self._view(tuple(there | ended_B for there in left)), ended_B)
        self._there = tuple(there | ended_B for there in left)
        self._alive = self._frame.alive or self._there
        team = np.concatenate(rewards).max(axis=0) if self.spaces.team_reward else None
        return Transition(self._frame, final, rewards, terminated, truncated_B, ended_B, team_reward=team)

    def save(self) -> Arrays:
        state = {name: array.copy() for name, array in self._arrays().items()}
        return {**state, "random": save_generator(self._rng), "steps": self._steps_B.copy()}

    def load(self, arrays: Arrays) -> Frame:
        self.reset(0)
        # A frame is noise, so it is part of the save.
        for name, array in self._arrays().items():
            array[...] = saved(arrays, name, array.dtype.name, array.shape)
        self._rng = load_generator(saved(arrays, "random", "uint64", (6,)))
        self._steps_B = saved(arrays, "steps", "int64", (self.batch,)).copy()
        waits = self._frame.waits or map(np.zeros_like, self._alive)
        self._there = tuple(map(np.logical_or, self._alive, waits))
        return self._frame

    def _arrays(self) -> dict[str, BoolArray | ObsArray]:
        frame = self._frame
        found: dict[str, BoolArray | ObsArray] = {} if frame.state is None else {"state": frame.state}
        found |= {f"obs/{k}": array for k, array in enumerate(frame.obs)}
        found |= {f"mask/{k}": array for k, array in enumerate(frame.masks or ())}
        found |= {f"waits/{k}": array for k, array in enumerate(frame.waits or ())}
        return found | {f"alive/{k}": array for k, array in enumerate(self._alive)}

    def _view(self, there: tuple[BoolArray, ...]) -> Frame:
        """Draw the next frame, with these agents in the episode."""
        spaces, rng = self.spaces, self._rng
        waits = tuple(each & (rng.random(each.shape) < _WAITS) for each in there) if spaces.turns else None
        alive = there if waits is None else tuple(np.greater(*each) for each in zip(there, waits, strict=True))
        self._there, self._alive = there, alive
        obs = tuple(self._noise(c, alive_NB) for c, alive_NB in zip(spaces.classes, alive, strict=True))
        state = rng.standard_normal((self.batch, spaces.state_size), np.float32) if spaces.state_size else None
        masks = None
        if spaces.masks:
            masks = tuple(rng.random((len(c.agents), self.batch, c.action.n)) < _LEGAL for c in spaces.classes)
            for mask_NBA in masks:
                mask_NBA[..., 0] = True
        return Frame(obs, state, masks, alive if spaces.deaths or spaces.turns else None, waits)

    def _noise(self, agents: AgentClass, alive_NB: BoolArray) -> ObsArray:
        shape = (*alive_NB.shape, agents.obs_size)
        if agents.image is not None:
            return self._rng.integers(256, size=shape, dtype=np.uint8) * alive_NB[..., None]
        return self._rng.standard_normal(shape, np.float32) * alive_NB[..., None]

    def _rewards(self, k: int, action: ActionArray) -> RewardArray:
        earned_NB = self._paid(k, action)
        if self._frame.waits is None:
            return earned_NB
        return np.where(self._frame.waits[k], np.float32(_PAID_WAITING), earned_NB)

    def _paid(self, k: int, action: ActionArray) -> RewardArray:
        agents, alive_NB = self.spaces.classes[k], self._alive[k]
        space, white = agents.action, np.float32(1 if agents.image is None else 255)
        obs_NBO: FloatArray = np.divide(self._frame.obs[k], white, dtype=np.float32)
        if isinstance(space, Box):
            low_A, high_A = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
            if not ((action >= low_A) & (action <= high_A)).all():
                raise ValueError(f"class {self.spaces.classes[k].name}: an action is outside of its box")
            seen_NBA = obs_NBO[..., np.arange(space.n) % obs_NBO.shape[2]]
            cost_NB: FloatArray = np.abs(action - seen_NBA).sum(axis=-1, dtype=np.float32)
            return np.where(alive_NB, -cost_NB, np.float32(0))
        legal_NB = (action >= 0) & (action < space.n)
        if legal_NB.all() and self._frame.masks is not None:
            taken = action[..., None].astype(np.intp)
            legal_NB = np.take_along_axis(self._frame.masks[k], taken, axis=2)[..., 0] | ~alive_NB
        if not legal_NB.all():
            raise ValueError(f"class {self.spaces.classes[k].name}: an action is illegal")
        place = (action % obs_NBO.shape[2])[..., None].astype(np.intp)
        earned_NB: FloatArray = np.take_along_axis(obs_NBO, place, axis=2)[..., 0]
        return np.where(alive_NB, earned_NB, np.float32(0))


def _joined(going_on: Frame, fresh: Frame, ended_B: BoolArray) -> Frame:
    """A frame with the arrays of `fresh` in copies that ended, and of `going_on` in the others."""

    def pick(old: tuple[BoolArray, ...] | None, new: tuple[BoolArray, ...] | None) -> tuple[BoolArray, ...] | None:
        if old is None or new is None:
            return None
        wide = [ended_B.reshape(1, -1, *[1] * (each.ndim - 2)) for each in old]
        return tuple(np.where(w, n, o) for w, n, o in zip(wide, new, old, strict=True))

    obs = tuple(np.where(ended_B[None, :, None], n, o) for n, o in zip(fresh.obs, going_on.obs, strict=True))
    state = None
    if fresh.state is not None and going_on.state is not None:
        state = np.where(ended_B[:, None], fresh.state, going_on.state)
    flags = ((going_on.masks, fresh.masks), (going_on.alive, fresh.alive), (going_on.waits, fresh.waits))
    return Frame(obs, state, *(pick(*each) for each in flags))
