"""What a picture of training may be asked for. Imports nothing, because the command line's options are made of it."""

from __future__ import annotations

from enum import StrEnum


class Over(StrEnum):
    """What the horizontal axis counts."""

    env_steps = "env-steps"
    rounds = "rounds"
    seconds = "seconds"
    usd = "usd"


class Quantity(StrEnum):
    """What is drawn over it."""

    returns = "return"
    win_rate = "win-rate"


class Returns(StrEnum):
    """Whose episodes are drawn: those of evaluations, or those that actors played for training."""

    greedy = "greedy"
    exploring = "exploring"


class Center(StrEnum):
    """What of several runs the line is."""

    iqm = "iqm"
    mean = "mean"
    median = "median"


class Band(StrEnum):
    """What of several runs the band is."""

    ci = "ci"
    range = "range"
    std = "std"
    none = "none"
