"""The record of a lane: the environment copies that one actor of a job runs, round after round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LaneRecord:
    """The state in which a round left a lane of environment copies, which its next round starts from."""

    lane: int
    """Index of the lane, and of the actor that runs it."""
    version: int
    """Version of the lane's carry in the param_store; 0 for a lane that has not begun."""
    digest: str
    """SHA-256 of the carry, lowercase hexadecimal; "" for a lane that has not begun."""
