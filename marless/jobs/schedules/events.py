"""The events that a schedule follows, and their form in the records of a job whose rollouts overlap.

A round begins with what happened since the version before it, in order, so that a job can be recovered, and repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from marless.core.errors import SpecError, shown

Kind = Literal["rollout", "gradient", "lost rollout", "lost gradient", "actors", "restart", "version", "last"]
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
class ScheduleEvent:
    """One event.

    - rollout, gradient: a command has ended, and what it made is there; lost: it has failed for good.
    - version: the round of this number is recorded, and with it all rounds before.
    - last: the job ends with the round of this number.
    - actors: so many rollouts are to be under way from now on.
    - restart: what was under way or waited has been lost, as after a restore from a checkpoint.
    """

    kind: Kind
    number: int = 0
    """Of the rollout, learner or round; for actors, how many."""
    env_steps: int = 0
    """Of a rollout."""

    def __str__(self) -> str:
        letter = _BY_KIND[self.kind]
        if self.kind == "restart":
            return letter
        return f"{letter}{self.number}:{self.env_steps}" if self.kind == "rollout" else f"{letter}{self.number}"


def written(events: Iterable[ScheduleEvent]) -> str:
    """Events as one text: "r0:500 r2:500 g0" are rollouts 0 and 2 of 500 env steps, and the gradient of learner 0.

    R and G are lost ones, a8 means eight actors from now on, x is a restart. Versions have no word: each ends a record.
    """
    return " ".join(map(str, events))


def read(text: str) -> tuple[ScheduleEvent, ...]:
    """The inverse of `written`; raises SpecError, naming the word, for a text that it has not written."""
    return tuple(map(_event, text.split()))


def _event(word: str) -> ScheduleEvent:
    found = _WORD.fullmatch(word)
    if found is None or (found[3] is not None) != (found[1] == "r"):
        raise SpecError(f"{shown(word)} is no event of an asynchronous job, such as r12:500, g3, R4, G5, a8 or x")
    if found[1] is None:
        return ScheduleEvent("restart")
    return ScheduleEvent(_LETTERS[found[1]], int(found[2]), int(found[3] or 0))
