"""Spaces of games that are like spread but for what a test needs."""

import math
from dataclasses import replace

from marless.learning.envs.base import Box, EnvSpaces


def space_of(spaces: EnvSpaces, name: str) -> EnvSpaces:
    """`continuous`: moves of a box; `unbounded`: of one without limits; `unknown`: nobody says whether agents compete;
    `stateless`: no global state.
    """
    match name:
        case "continuous" | "unbounded":
            limit = 1.0 if name == "continuous" else math.inf
            moves = Box((-limit, -limit), (limit, limit))
            classes = tuple(replace(each, action=moves) for each in spaces.classes)
            return replace(spaces, classes=classes)
        case "unknown":
            return replace(spaces, rewards="unknown")
        case "stateless":
            return replace(spaces, state_size=0)
        case _:
            return spaces
