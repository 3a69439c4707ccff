"""The events of an asynchronous job (schedule `stellaris`), in order, as records and replays have them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from marless.core.errors import SpecError, shown

Kind = Literal["rollout", "gradient", "lost rollout", "lost gradient", "actors", "restart"]
_LETTERS: dict[str, Kind] = {
    "r": "rollout",
    "g": "gradient",
    "R": "lost rollout",
    "G": "lost gradient",
    "a": "actors",
    "x": "restart",
}
_BY_KIND = {kind: letter for letter, kind in _LETTERS.items()}
# Numbers are bounded, because an order may come from anybody, and Python refuses to read thousands of digits.
_WORD = re.compile(r"([rgRGa])(\d{1,15})(?::(\d{1,15}))?|x")


@dataclass(frozen=True)
class Arrival:
    """One event."""

    kind: Kind
    """rollout, gradient: it has come; lost: it has failed for good; actors: so many are to be under way from now on;
    restart: what was under way or waited has been lost, as after a restore from a checkpoint."""
    number: int = 0
    """Of the rollout or learner; for actors, how many."""
    env_steps: int = 0
    """Of a rollout."""

    def __str__(self) -> str:
        letter = _BY_KIND[self.kind]
        if self.kind == "restart":
            return letter
        return f"{letter}{self.number}:{self.env_steps}" if self.kind == "rollout" else f"{letter}{self.number}"


def written(arrivals: Iterable[Arrival]) -> str:
    """Events as one text: "r0:500 r2:500 g0" are rollouts 0 and 2 of 500 env steps, and the gradient of learner 0.

    R and G are lost ones, a8 means eight actors from now on, x is a restart.
    """
    return " ".join(map(str, arrivals))


def read(text: str) -> tuple[Arrival, ...]:
    """The inverse of `written`; raises SpecError, naming the word, for a text that it has not written."""
    return tuple(map(_arrival, text.split()))


def _arrival(word: str) -> Arrival:
    found = _WORD.fullmatch(word)
    if found is None or (found[3] is not None) != (found[1] == "r"):
        raise SpecError(f"{shown(word)} is no event of an asynchronous job, such as r12:500, g3, R4, G5, a8 or x")
    if found[1] is None:
        return Arrival("restart")
    return Arrival(_LETTERS[found[1]], int(found[2]), int(found[3] or 0))
