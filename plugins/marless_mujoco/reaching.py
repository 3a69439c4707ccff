"""Tasks of reaching a goal and of balancing: Reacher, Pusher, InvertedPendulum and InvertedDoublePendulum.

Formulas are those of Gymnasium's v5 tasks. Suffixes as in `marless_mujoco.task`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from marless.learning.envs.base import BoolArray
from marless_mujoco.options import (
    InvertedDoublePendulumOptions,
    InvertedPendulumOptions,
    PusherOptions,
    ReacherOptions,
)
from marless_mujoco.running import Noisy
from marless_mujoco.task import ALL, Copies, Numbers, Task


class Reacher(Task[ReacherOptions]):
    """Reacher-v5."""

    MODEL, READS = "reacher.xml", ("xpos",)
    ABOVE, SHOWN_M = True, 0.7

    def observe(self, copies: Copies) -> Numbers:
        qpos, qvel = self.qpos_BP[copies], self.qvel_BV[copies]
        seen = (np.cos(qpos[:, :2]), np.sin(qpos[:, :2]), qpos[:, 2:], qvel[:, :2], self._way(copies)[:, :2])
        return np.concatenate(seen, axis=1)

    def outcome(self, place_BK: Numbers) -> tuple[Mapping[str, Numbers], BoolArray]:
        return {
            "reward_dist": -self.options.reward_dist_weight * np.linalg.norm(self._way(ALL), axis=1),
            "reward_ctrl": -self.options.reward_control_weight * np.square(self._ctrl_BA).sum(axis=1),
        }, np.zeros(self.batch, np.bool_)

    def begun(self, count: int, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
        qpos = rng.uniform(-0.1, 0.1, (count, self.model.nq)) + self.model.qpos0
        qpos[:, -2:] = _drawn(count, lambda n: rng.uniform(-0.2, 0.2, (n, 2)), lambda distance: distance < 0.2)
        qvel = rng.uniform(-0.005, 0.005, (count, self.model.nv))
        qvel[:, -2:] = 0
        return qpos, qvel

    def _way(self, copies: Copies) -> Numbers:
        """How the fingertip lies from the target, float64 [B, 3]."""
        tip, target = (self.model.body(name).id for name in ("fingertip", "target"))
        places: Numbers = self.physics.xpos[copies]
        return places[:, tip] - places[:, target]


class Pusher(Task[PusherOptions]):
    """Pusher-v5."""

    MODEL, READS = "pusher_v5.xml", ("xpos",)
    ABOVE, SHOWN_M = True, 2.5

    def observe(self, copies: Copies) -> Numbers:
        tips, thing, goal = self._bodies(copies)
        return np.concatenate([self.qpos_BP[copies][:, :7], self.qvel_BV[copies][:, :7], tips, thing, goal], axis=1)

    def outcome(self, place_BK: Numbers) -> tuple[Mapping[str, Numbers], BoolArray]:
        tips, thing, goal = self._bodies(ALL)
        return {
            "reward_dist": -self.options.reward_dist_weight * np.linalg.norm(thing - goal, axis=1),
            "reward_ctrl": -self.options.reward_control_weight * np.square(self._ctrl_BA).sum(axis=1),
            "reward_near": -self.options.reward_near_weight * np.linalg.norm(thing - tips, axis=1),
        }, np.zeros(self.batch, np.bool_)

    def begun(self, count: int, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
        qpos = np.repeat(self.model.qpos0[None], count, axis=0)
        qpos[:, -4:-2] = _drawn(
            count, lambda n: rng.uniform((-0.3, -0.2), (0.0, 0.2), (n, 2)), lambda distance: distance > 0.17
        )
        qpos[:, -2:] = 0
        qvel = rng.uniform(-0.005, 0.005, (count, self.model.nv))
        qvel[:, -4:] = 0
        return qpos, qvel

    def _bodies(self, copies: Copies) -> list[Numbers]:
        """Where the arm's tips, the object and the goal are, float64 [B, 3] each."""
        places = self.physics.xpos[copies]
        return [places[:, self.model.body(name).id] for name in ("tips_arm", "object", "goal")]


class InvertedPendulum(Noisy[InvertedPendulumOptions]):
    """InvertedPendulum-v5."""

    MODEL = "inverted_pendulum.xml"

    def observe(self, copies: Copies) -> Numbers:
        return np.concatenate([self.qpos_BP[copies], self.qvel_BV[copies]], axis=1)

    def outcome(self, place_BK: Numbers) -> tuple[Mapping[str, Numbers], BoolArray]:
        over_B: BoolArray = np.abs(self.qpos_BP[:, 1]) > 0.2
        return {"reward_survive": (~over_B).astype(np.float64)}, over_B


class InvertedDoublePendulum(Noisy[InvertedDoublePendulumOptions]):
    """InvertedDoublePendulum-v5."""

    MODEL, NORMAL, READS = "inverted_double_pendulum.xml", True, ("qfrc_constraint", "site_xpos")

    def observe(self, copies: Copies) -> Numbers:
        qpos, qvel = self.qpos_BP[copies], self.qvel_BV[copies]
        force = self.physics.qfrc_constraint[copies, :1]
        seen = (qpos[:, :1], np.sin(qpos[:, 1:]), np.cos(qpos[:, 1:]), np.clip(qvel, -10, 10), np.clip(force, -10, 10))
        return np.concatenate(seen, axis=1)

    def outcome(self, place_BK: Numbers) -> tuple[Mapping[str, Numbers], BoolArray]:
        x_B, height_B = self.physics.site_xpos[:, 0, 0], self.physics.site_xpos[:, 0, 2]
        over_B: BoolArray = height_B <= 1
        return {
            "reward_survive": self.options.healthy_reward * ~over_B,
            "distance_penalty": -(0.01 * x_B**2 + (height_B - 2) ** 2),
            "velocity_penalty": -(1e-3 * self.qvel_BV[:, 1] ** 2 + 5e-3 * self.qvel_BV[:, 2] ** 2),
        }, over_B


def _drawn(count: int, draw: Callable[[int], Numbers], accepts: Callable[[Numbers], BoolArray]) -> Numbers:
    """Points [count, 2] at distances from the origin that are accepted; others are drawn again, as often as needed."""
    points = draw(count)
    while (wrong := ~accepts(np.linalg.norm(points, axis=1))).any():
        points[wrong] = draw(int(wrong.sum()))
    return points
