"""Options of the tasks, with Gymnasium's names and defaults.

Left out are `xml_file`, Ant's `main_body`, and what concerns rendering.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from marless.core.errors import SpecError, shown, unknown_name

Range = Sequence[float]
"""Two numbers, the lower one first; may be infinite."""
RANDOMISED = ("actuator_gear", "body_mass", "dof_damping", "geom_friction")
"""Fields of MuJoCo's model that may differ between episodes."""
_MOST = {"frame_skip": 10**4, "max_episode_steps": 10**6, "threads": 256}


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of every task."""

    frame_skip: int
    """Steps of the physics in an env step."""
    max_episode_steps: int = 1000
    randomise: Mapping[str, float] = field(default_factory=dict)
    """Field of the model (`RANDOMISED`) → w: in each episode, each of its numbers is multiplied by a factor of its own,
    which is drawn uniformly from [1 − w, 1 + w]. Masses take their inertia along."""
    threads: int = 1
    """Threads that step the copies of one actor. The number has no influence on results."""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            if each.name != "randomise":
                _check(each.name, getattr(self, each.name))
        if not isinstance(self.randomise, Mapping):
            raise SpecError(f"randomise must be a mapping of fields to numbers, got {shown(self.randomise)}")
        for name, width in self.randomise.items():
            if name not in RANDOMISED:
                raise SpecError(unknown_name("field of randomise", name, RANDOMISED))
            if not (_is_number(width) and 0 < width < 1):
                raise SpecError(f"randomise: {name} must be a number above 0 and below 1, got {shown(width)}")


@dataclass(frozen=True, kw_only=True)
class NoisyOptions(TaskOptions):
    """Options of tasks that begin near one state."""

    reset_noise_scale: float


@dataclass(frozen=True, kw_only=True)
class RunnerOptions(NoisyOptions):
    """Options of tasks in which moving forward pays."""

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 1e-3
    exclude_current_positions_from_observation: bool = True


@dataclass(frozen=True, kw_only=True)
class UprightOptions(RunnerOptions):
    """Options of tasks in which an episode ends if the body is not healthy: above all, if it falls."""

    healthy_z_range: Range
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True


@dataclass(frozen=True, kw_only=True)
class HopperOptions(UprightOptions):
    """Options of Hopper-v5."""

    frame_skip: int = 4
    reset_noise_scale: float = 5e-3
    healthy_state_range: Range = (-100.0, 100.0)
    healthy_z_range: Range = (0.7, math.inf)
    healthy_angle_range: Range = (-0.2, 0.2)


@dataclass(frozen=True, kw_only=True)
class Walker2dOptions(UprightOptions):
    """Options of Walker2d-v5."""

    frame_skip: int = 4
    reset_noise_scale: float = 5e-3
    healthy_z_range: Range = (0.8, 2.0)
    healthy_angle_range: Range = (-1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class HalfCheetahOptions(RunnerOptions):
    """Options of HalfCheetah-v5."""

    frame_skip: int = 5
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1


@dataclass(frozen=True, kw_only=True)
class SwimmerOptions(RunnerOptions):
    """Options of Swimmer-v5."""

    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-4
    reset_noise_scale: float = 0.1


@dataclass(frozen=True, kw_only=True)
class AntOptions(UprightOptions):
    """Options of Ant-v5."""

    frame_skip: int = 5
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    healthy_z_range: Range = (0.2, 1.0)
    contact_force_range: Range = (-1.0, 1.0)
    reset_noise_scale: float = 0.1
    include_cfrc_ext_in_observation: bool = True


@dataclass(frozen=True, kw_only=True)
class BodyOptions(NoisyOptions):
    """Which of the computed quantities a humanoid observes."""

    frame_skip: int = 5
    reset_noise_scale: float = 1e-2
    exclude_current_positions_from_observation: bool = True
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = True


@dataclass(frozen=True, kw_only=True)
class HumanoidOptions(BodyOptions, UprightOptions):
    """Options of Humanoid-v5."""

    forward_reward_weight: float = 1.25
    ctrl_cost_weight: float = 0.1
    contact_cost_weight: float = 5e-7
    contact_cost_range: Range = (-math.inf, 10.0)
    healthy_reward: float = 5.0
    healthy_z_range: Range = (1.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class HumanoidStandupOptions(BodyOptions):
    """Options of HumanoidStandup-v5, but for `uph_cost_weight`, which has no effect there."""

    ctrl_cost_weight: float = 0.1
    impact_cost_weight: float = 0.5e-6
    impact_cost_range: Range = (-math.inf, 10.0)


@dataclass(frozen=True, kw_only=True)
class ReacherOptions(TaskOptions):
    """Options of Reacher-v5."""

    frame_skip: int = 2
    max_episode_steps: int = 50
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class PusherOptions(TaskOptions):
    """Options of Pusher-v5."""

    frame_skip: int = 5
    max_episode_steps: int = 100
    reward_near_weight: float = 0.5
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 0.1


@dataclass(frozen=True, kw_only=True)
class InvertedPendulumOptions(NoisyOptions):
    """Options of InvertedPendulum-v5."""

    frame_skip: int = 2
    reset_noise_scale: float = 0.01


@dataclass(frozen=True, kw_only=True)
class InvertedDoublePendulumOptions(NoisyOptions):
    """Options of InvertedDoublePendulum-v5."""

    frame_skip: int = 5
    reset_noise_scale: float = 0.1
    healthy_reward: float = 10.0


def _check(name: str, value: object) -> None:
    """Raise SpecError unless the value of an option is of its kind, which its name tells."""
    if name in _MOST:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST[name]:
            raise SpecError(f"{name} must be a whole number from 1 to {_MOST[name]:,}, got {shown(value)}")
    elif name.endswith("_range"):
        pair = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
        if len(pair) != 2 or not all(_is_number(each, finite=False) for each in pair) or not pair[0] < pair[1]:
            raise SpecError(f"{name} must be two numbers, the lower one first, got {shown(value)}")
    elif name.startswith(("include_", "exclude_", "terminate_")):
        if not isinstance(value, bool):
            raise SpecError(f"{name} must be true or false, got {shown(value)}")
    elif not _is_number(value):
        raise SpecError(f"{name} must be a number, got {shown(value)}")


def _is_number(value: object, *, finite: bool = True) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        return False
    return math.isfinite(value) or not finite
