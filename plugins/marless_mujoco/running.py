"""Tasks in which moving pays: Hopper, Walker2d, HalfCheetah, Swimmer, Ant, Humanoid and HumanoidStandup.

Formulas are those of Gymnasium's v5 tasks. Suffixes as in `marless_mujoco.task`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeVar

import numpy as np

from marless.learning.envs.base import BoolArray
from marless_mujoco.options import (
    AntOptions,
    BodyOptions,
    HalfCheetahOptions,
    HopperOptions,
    HumanoidOptions,
    HumanoidStandupOptions,
    NoisyOptions,
    Range,
    RunnerOptions,
    SwimmerOptions,
    Walker2dOptions,
)
from marless_mujoco.task import ALL, Copies, Numbers, Task

NoisyType = TypeVar("NoisyType", bound=NoisyOptions)
RunnerType = TypeVar("RunnerType", bound=RunnerOptions)
BodyType = TypeVar("BodyType", bound=BodyOptions)


class Noisy(Task[NoisyType]):
    """Base of tasks that begin near the model's own state: all positions, and by default all velocities, uniformly."""

    NORMAL: ClassVar[bool] = False
    """True if velocities are normal instead."""

    def begun(self, count: int, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
        scale, speeds = self.options.reset_noise_scale, (count, self.model.nv)
        qpos = self.model.qpos0 + rng.uniform(-scale, scale, (count, self.model.nq))
        return qpos, scale * rng.standard_normal(speeds) if self.NORMAL else rng.uniform(-scale, scale, speeds)


class Runner(Noisy[RunnerType]):
    """Base of tasks in the plane: velocity forward pays, controls cost."""

    HIDDEN: ClassVar[int] = 1
    """Positions in space that are not observed."""
    FASTEST: ClassVar[float] = np.inf
    """Observed velocities are clipped to this."""

    def observe(self, copies: Copies) -> Numbers:
        hidden = self.HIDDEN if self.options.exclude_current_positions_from_observation else 0
        speeds = np.clip(self.qvel_BV[copies], -self.FASTEST, self.FASTEST)
        return np.concatenate([self.qpos_BP[copies][:, hidden:], speeds], axis=1)

    def outcome(self, place_BK: Numbers) -> tuple[Mapping[str, Numbers], BoolArray]:
        forward_B = (self.place(ALL) - place_BK)[:, 0] / self.seconds
        cost_B = np.square(self._ctrl_BA).sum(axis=1)
        parts = {
            "reward_forward": self.options.forward_reward_weight * forward_B,
            "reward_ctrl": -self.options.ctrl_cost_weight * cost_B,
        }
        return parts, np.zeros(self.batch, np.bool_)

    def place(self, copies: Copies) -> Numbers:
        return self.qpos_BP[copies, :1].copy()


class HalfCheetah(Runner[HalfCheetahOptions]):
    """HalfCheetah-v5."""

    MODEL, NORMAL = "half_cheetah.xml", True


class Swimmer(Runner[SwimmerOptions]):
    """Swimmer-v5."""

    MODEL, HIDDEN = "swimmer.xml", 2
    ABOVE, SHOWN_M = True, 6.0


class Hopper(Runner[HopperOptions]):
    """Hopper-v5."""

    MODEL, FASTEST = "hopper.xml", 10.0

    def outcome(self, place_BK: Numbers) -> tuple[Mapping[str, Numbers], BoolArray]:
        parts, _ = super().outcome(place_BK)
        state = np.concatenate([self.qpos_BP[:, 2:], self.qvel_BV], axis=1)
        healthy_B = _within(state, self.options.healthy_state_range).all(axis=1)
        healthy_B &= _within(self.qpos_BP[:, 1], self.options.healthy_z_range)
        healthy_B &= _within(self.qpos_BP[:, 2], self.options.healthy_angle_range)
        survive_B = self.options.healthy_reward * healthy_B.astype(np.float64)
        return {**parts, "reward_survive": survive_B}, ~healthy_B & self.options.terminate_when_unhealthy


class Walker2d(Runner[Walker2dOptions]):
    """Walker2d-v5."""

    MODEL, FASTEST = "walker2d_v5.xml", 10.0

    def outcome(self, place_BK: Numbers) -> tuple[Mapping[str, Numbers], BoolArray]:
        parts, _ = super().outcome(place_BK)
        healthy_B = _within(self.qpos_BP[:, 1], self.options.healthy_z_range)
        healthy_B &= _within(self.qpos_BP[:, 2], self.options.healthy_angle_range)
        survive_B = self.options.healthy_reward * healthy_B.astype(np.float64)
        return {**parts, "reward_survive": survive_B}, ~healthy_B & self.options.terminate_when_unhealthy


class Ant(Runner[AntOptions]):
    """Ant-v5."""

    MODEL, READS, HIDDEN, NORMAL, CONTACTS = "ant.xml", ("xpos",), 2, True, True
    SHOWN_M = 5.0

    def observe(self, copies: Copies) -> Numbers:
        moving = super().observe(copies)
        if not self.options.include_cfrc_ext_in_observation:
            return moving
        # The first body is the world.
        return np.concatenate([moving, self._forces(copies)[:, 6:]], axis=1)

    def outcome(self, place_BK: Numbers) -> tuple[Mapping[str, Numbers], BoolArray]:
        parts, _ = super().outcome(place_BK)
        low, high = self.options.healthy_z_range
        height_B = self.qpos_BP[:, 2]
        healthy_B = (low <= height_B) & (height_B <= high)
        return {
            **parts,
            "reward_survive": self.options.healthy_reward * healthy_B,
            "reward_contact": -self.options.contact_cost_weight * np.square(self._forces(ALL)).sum(axis=1),
        }, ~healthy_B & self.options.terminate_when_unhealthy

    def place(self, copies: Copies) -> Numbers:
        torso: Numbers = self.physics.xpos[copies, 1, :1]
        return torso.copy()

    def _forces(self, copies: Copies) -> Numbers:
        low, high = self.options.contact_force_range
        return np.clip(self.contacts_BK[copies], low, high)


class Body(Noisy[BodyType]):
    """Base of both humanoids: what they observe."""

    READS, CONTACTS = ("cinert", "cvel", "qfrc_actuator", "xipos"), True

    def observe(self, copies: Copies) -> Numbers:
        options, data, count = self.options, self.physics, len(self.qpos_BP[copies])
        hidden = 2 if options.exclude_current_positions_from_observation else 0
        # The first body is the world, and the first six degrees of freedom have no actuator.
        seen = (
            (True, self.qpos_BP[copies][:, hidden:]),
            (True, self.qvel_BV[copies]),
            (options.include_cinert_in_observation, data.cinert[copies, 1:].reshape(count, -1)),
            (options.include_cvel_in_observation, data.cvel[copies, 1:].reshape(count, -1)),
            (options.include_qfrc_actuator_in_observation, data.qfrc_actuator[copies, 6:]),
            (options.include_cfrc_ext_in_observation, self.contacts_BK[copies, 6:]),
        )
        return np.concatenate([numbers for shown, numbers in seen if shown], axis=1)

    def _impact(self, weight: float, bounds: Range) -> Numbers:
        low, high = bounds
        cost_B: Numbers = np.clip(weight * np.square(self.contacts_BK).sum(axis=1), low, high)
        return cost_B


class Humanoid(Body[HumanoidOptions]):
    """Humanoid-v5."""

    MODEL = "humanoid.xml"

    def outcome(self, place_BK: Numbers) -> tuple[Mapping[str, Numbers], BoolArray]:
        options = self.options
        forward_B = (self.place(ALL) - place_BK)[:, 0] / self.seconds
        healthy_B = _within(self.qpos_BP[:, 2], options.healthy_z_range)
        return {
            "reward_survive": options.healthy_reward * healthy_B,
            "reward_forward": options.forward_reward_weight * forward_B,
            "reward_ctrl": -options.ctrl_cost_weight * np.square(self._ctrl_BA).sum(axis=1),
            "reward_contact": -self._impact(options.contact_cost_weight, options.contact_cost_range),
        }, ~healthy_B & options.terminate_when_unhealthy

    def place(self, copies: Copies) -> Numbers:
        """The centre of mass, of which the first coordinate counts."""
        masses: Numbers = self.model.body_mass
        weighted: Numbers = masses[:, None] * self.physics.xipos[copies, :, :1]
        centre: Numbers = weighted.sum(axis=1) / masses.sum()
        return centre


class HumanoidStandup(Body[HumanoidStandupOptions]):
    """HumanoidStandup-v5."""

    MODEL = "humanoidstandup.xml"

    def outcome(self, place_BK: Numbers) -> tuple[Mapping[str, Numbers], BoolArray]:
        options = self.options
        return {
            "reward_linup": self.qpos_BP[:, 2] / self.model.opt.timestep,
            "reward_quadctrl": -options.ctrl_cost_weight * np.square(self._ctrl_BA).sum(axis=1),
            "reward_impact": -self._impact(options.impact_cost_weight, options.impact_cost_range),
            "reward_survive": np.ones(self.batch),
        }, np.zeros(self.batch, np.bool_)


def _within(values: Numbers, bounds: Range) -> BoolArray:
    low, high = bounds
    inside: BoolArray = (low < values) & (values < high)
    return inside
