"""Settings that may move over the course of a job, such as a learning rate."""

from __future__ import annotations

from typing import TypeAlias

from pydantic import Field, NonNegativeFloat

from marless.core.settings import Strict


class Ramp(Strict):
    """A value that moves linearly from `start` to `end` over the first `env_steps` env steps, then stays."""

    start: NonNegativeFloat
    end: NonNegativeFloat
    env_steps: int = Field(gt=0, le=10**15)

    def at(self, env_steps: int) -> float:
        """The value once `env_steps` env steps (all agents act once) have been sampled."""
        done = min(env_steps / self.env_steps, 1.0)
        return self.start + (self.end - self.start) * done


Rate: TypeAlias = NonNegativeFloat | Ramp
"""A setting that may follow a ramp."""


def check_probability(name: str, rate: Rate) -> None:
    """Raise ValueError, naming the setting, for a rate that exceeds 1 at some time."""
    highest = max(rate.start, rate.end) if isinstance(rate, Ramp) else rate
    if highest > 1:
        raise ValueError(f"{name} is a probability and cannot be {highest:g}; keep it between 0 and 1")


def value_at(rate: Rate, env_steps: int) -> float:
    """The value of a rate after `env_steps` env steps."""
    return rate.at(env_steps) if isinstance(rate, Ramp) else rate
