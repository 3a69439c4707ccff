"""Environments of Gymnasium for tests: every kind of space, and each way of being wrong."""

import gymnasium
import numpy as np
from gymnasium import spaces

NAME = f"gymnasium/{__name__}"


class Medley(gymnasium.Env):
    """Observes parts of every kind, which follow from its seed and its actions; ends by a count of its own."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = spaces.Dict(
        place=spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
        whole=spaces.Box(-9, 9, (2,), np.int64),
        pair=spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2))),
        dice=spaces.MultiDiscrete([2, 3]),
    )

    def __init__(self, action="box", ends=4, render_mode=None):
        self.action_space = {
            "box": spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64),
            "discrete": spaces.Discrete(3, start=5),
            "dice": spaces.MultiDiscrete([2, 3]),
            "bits": spaces.MultiBinary(2),
            "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))),
            "many": spaces.MultiDiscrete([17, 17, 17]),
        }[action]
        self.ends, self.render_mode, self.received = ends, render_mode, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.sum = 0, 0.0
        return self._seen(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.received.append(action)
        self.t, self.sum = self.t + 1, self.sum + float(np.sum(action))
        return self._seen(), self.sum + self.np_random.random(), self.t == self.ends, False, {}

    def render(self):
        return np.full((4, 6, 3), self.t, np.uint8)

    def _seen(self):
        return {
            "place": self.np_random.normal(size=(2, 2)) + self.sum,
            "whole": np.array([self.t, -self.t]),
            "pair": (np.int64(self.t % 3 - 1), np.array([self.t % 2, 1], np.int8)),
            "dice": np.array([self.t % 2, self.t % 3]),
        }


class Wrong(gymnasium.Env):
    """Is right until step `at` of an episode, or of its `episode`-th reset, and then `way` is what is wrong."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, way, at=3):
        self.way, self.at, self.resets = way, at, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.resets = 0, self.resets + 1
        if self.way == "other_space" and self.resets > 1:
            self.observation_space = spaces.Box(-1, 1, (2,), np.float64)
        if self.way == "reset_alone":
            return np.zeros(2)
        return np.zeros(2), None

    def step(self, action):
        self.t += 1
        honest = (np.zeros(2), 1.0, self.t == 9, False, {})
        if self.t != self.at:
            return honest
        changes = {
            "nan": (0, np.array([0, np.nan])),
            "huge": (0, np.array([0, 1e300])),
            "size": (0, np.zeros(3)),
            "inf_reward": (1, np.inf),
            "two_rewards": (1, np.ones(2)),
            "no_flag": (2, None),
            "mask": (4, {"action_mask": np.ones(2, np.int8)}),
        }
        if self.way in changes:
            place, value = changes[self.way]
            return (*honest[:place], value, *honest[place + 1 :])
        if self.way == "raises":
            raise IndexError("no such step")
        return honest[:4] if self.way == "four" else honest

    def close(self):
        if self.way == "close":
            raise OSError("no door")


class Unseeded(gymnasium.Env):
    """Takes no seed, as in the old API."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self):
        return np.zeros(2, np.float32), {}


class Masked(gymnasium.Env):
    """Allows the actions whose numbers are above its step, in its info."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return 0, self._info()

    def step(self, action):
        self.t += 1
        return self.t, 0.0, False, self.t == 4, self._info()

    def _info(self):
        return {"action_mask": (np.arange(3) >= self.t).astype(np.int8)}


def not_an_env():
    return object()


if "cases/Medley-v0" not in gymnasium.registry:
    gymnasium.register(
        "cases/Medley-v0", entry_point=f"{__name__}:Medley", max_episode_steps=3, kwargs={"action": "discrete"}
    )
