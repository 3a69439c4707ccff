"""When a job has reached what it was run for."""

from __future__ import annotations

from marless.record import Returns
from marless.spec import StopSpec
from services.coordinator.journal import Journal


def limit_reached(stop: StopSpec, *, rounds: int, env_steps: int, wall_s: float) -> str:
    """Why there is no round after this many, as a sentence; "" if there is."""
    if stop.rounds is not None and rounds >= stop.rounds:
        return f"{rounds} rounds done"
    if stop.env_steps is not None and env_steps >= stop.env_steps:
        return f"{env_steps} env steps sampled"
    if stop.wall_s is not None and wall_s >= stop.wall_s:
        return f"{wall_s:.0f} s of training passed"
    return ""


def return_reached(stop: StopSpec, greedy: Returns | None) -> str:
    """Why there is no round after this evaluation, as a sentence; "" if there is."""
    if stop.greedy_return is None or greedy is None or greedy.mean < stop.greedy_return:
        return ""
    return f"greedy return per agent {greedy.mean:.3f} reached {stop.greedy_return:g}"


def ending(stop: StopSpec, journal: Journal) -> str:
    """Why a job has no round left to run, going by what is recorded; "" if it has. A job's last round is evaluated."""
    if journal.last is None or journal.last.evaluation is None:
        return ""
    reached = limit_reached(stop, rounds=journal.rounds, env_steps=journal.env_steps, wall_s=journal.rounds_s)
    return reached or return_reached(stop, journal.greedy)
