"""The options of SMAC's battles; names and defaults are those of SMAC's class."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from marless.core.errors import SpecError, shown


@dataclass(frozen=True, kw_only=True)
class SmacOptions:
    """What agents observe, what they are paid for, and what the time limit means."""

    obs_all_health: bool = True
    """Observations have the health and shields of other units."""
    obs_own_health: bool = True
    """Observations have the agent's own health and shield."""
    obs_last_action: bool = False
    """Observations have the last actions of visible allies, one-hot."""
    obs_pathing_grid: bool = False
    """Observations tell for eight cells around the agent whether they are walkable."""
    obs_timestep_number: bool = False
    """Observations have the fraction of the time limit that is over."""
    obs_instead_of_state: bool = False
    """The global state is what all agents observe, one after another."""
    state_last_action: bool = True
    """The global state has the last action of every agent, one-hot."""
    state_timestep_number: bool = False
    """The global state has the fraction of the time limit that is over."""
    reward_sparse: bool = False
    """The reward is 1 for a win, −1 for a defeat, and 0 before."""
    reward_only_positive: bool = True
    """Damage to enemies is paid, damage to allies costs nothing."""
    reward_death_value: float = 10.0
    """Reward of each enemy killed, before scaling."""
    reward_win: float = 200.0
    """Reward of a win, before scaling."""
    reward_defeat: float = 0.0
    """Reward of a defeat, before scaling."""
    reward_negative_scale: float = 0.5
    """What damage to allies counts for if `reward_only_positive` is false."""
    reward_scale: bool = True
    """Rewards are divided so that a battle won without losses pays about `reward_scale_rate`."""
    reward_scale_rate: float = 20.0
    continuing_episode: bool = True
    """A battle at its time limit is truncated: its value is that of going on. Otherwise it is over, and worth 0.

    SMAC's default, and that of `StarCraft2Env`, is False.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(SmacOptions):
            value = getattr(self, field.name)
            if isinstance(field.default, bool):
                if not isinstance(value, bool):
                    raise SpecError(f"{field.name} must be true or false, got {shown(value)}")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e6:
                raise SpecError(f"{field.name} must be a number between -1,000,000 and 1,000,000, got {shown(value)}")
        if self.reward_scale_rate <= 0:
            raise SpecError(f"reward_scale_rate must be above 0, got {shown(self.reward_scale_rate)}")
