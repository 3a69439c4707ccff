"""Units placed by hand, and battles that a test scripts."""

import numpy as np

from marless_smac.kinds import FACTS
from marless_smac.maps import find
from marless_smac.units import Units, UnitTeam


def team(kinds, *places, batch=1, **changes):
    """Fresh units of these kinds at (x, y) each; `changes` replace whole rows, e.g. health=[45, 0]."""
    x, y = np.array(places, np.float32).T
    rows = {
        "kind": np.array(kinds, np.int8),
        "x": x,
        "y": y,
        "health": [FACTS[kind].health for kind in kinds],
        "shield": [FACTS[kind].shield for kind in kinds],
        "cooldown": np.zeros(len(kinds)),
        "energy": np.zeros(len(kinds)),
        "health_max": [FACTS[kind].health for kind in kinds],
    } | changes
    dtype = {"kind": np.int8}
    return UnitTeam(
        **{k: np.repeat(np.array(v, dtype.get(k, np.float32))[:, None], batch, axis=1) for k, v in rows.items()}
    )


def row(count, x=0.5, y=16.5, gap=0.0):
    """Places of `count` units one above another."""
    return [(x, y + gap * i) for i in range(count)]


class Scripted:
    """A backend whose units move to the next of `scenes` with each step; a scene is None if the game fails in it."""

    def __init__(self, name, *scenes):
        self.map, self.batch, self.walkable = find(name), 1, find(name).walkable()
        self.scenes, self.at, self.orders = scenes, 0, []
        self.units = scenes[0]

    def reset(self, seed):
        self.start(np.ones(1, np.bool_))

    def start(self, fresh_B):
        self.at, self.units = 0, self.scenes[0]

    def advance(self, action_NB):
        self.orders.append(action_NB[:, 0].tolist())
        self.at += 1
        scene = self.scenes[min(self.at, len(self.scenes) - 1)]
        self.units = scene or self.units
        return np.array([scene is None])

    def close(self):
        pass


def scene(name, ally_places, enemy_places, *, allies=None, enemies=None, batch=1):
    """Both teams of a map at these places; `allies` and `enemies` replace rows as in `team`."""
    smac_map = find(name)
    return Units(
        team(smac_map.ally_kinds, *ally_places, batch=batch, **(allies or {})),
        team(smac_map.enemy_kinds, *enemy_places, batch=batch, **(enemies or {})),
    )
