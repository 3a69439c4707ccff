"""Finds the masks of legal actions in what agents observe or are told, and reads them.

`env.mask` of a job decides where a mask is; `auto` takes what says so itself, and nothing else:

1. the entry `action_mask` of a Dict observation; it must fit the actions, else the environment is refused;
2. else the one entry of a Dict observation that fits the actions and whose name says mask, legal, avail or valid;
3. else the entry `action_mask` of the agent's info, or the one that fits and whose name says so.

A mask that was found by its name alone (2, 3) is reported, and so is an entry that fits and was not taken. A mask has a
zero or one

- for each action: n of Discrete(n), or each combination of a MultiDiscrete or MultiBinary space, the last component
  changing fastest;
- or for each choice of each component, one component after another, as an array or as a Tuple of arrays: that is how
  `MultiDiscrete.sample` of Gymnasium takes masks. A combination is legal then if all its choices are. Where both
  readings have as many numbers, as for MultiDiscrete([2, 2]), this one is taken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from marless.core.errors import SpecError, shown
from marless.learning.envs.base import BoolArray

# Any stands for spaces and values of environments, because third-party ones need not subclass anything.
Space = Any
Form = Literal["actions", "components"]
Place = Literal["observation", "info"]
MASK = "action_mask"
LATE_MASK = (
    f"has {MASK!r} in its info, but no agent had one after the first reset, so it would be ignored; give one at each "
    "reset, or set env.mask: none"
)
_SAYS_MASK = re.compile(r"mask|legal|avail|valid", re.IGNORECASE)
_SAYS_NO = re.compile(r"invalid|illegal|unavail|in_?valid|not_|non_?legal|forbid|block|disallow", re.IGNORECASE)


@dataclass(frozen=True)
class MaskChoice:
    """Where a job says that masks are: `env.mask`."""

    key: str | None = MASK
    """The entry of observations or infos; None: there is no mask."""
    inverted: bool = False
    """True if ones stand for actions that are illegal."""
    form: Form | None = None
    """What a number of the mask stands for; None: follows from their number."""
    auto: bool = True
    """True if the job leaves it to marless; `key` is then what masks are usually called."""


AUTO = MaskChoice()


def parse_choice(value: object) -> MaskChoice:
    """Read the option `env.mask`: "auto", "none", an entry's name, or {key, inverted, of}; raises SpecError."""
    if value in ("auto", "none"):
        return AUTO if value == "auto" else MaskChoice(None, auto=False)
    given = {"key": value} if isinstance(value, str) else value
    if isinstance(given, Mapping) and given.keys() <= {"key", "inverted", "of"}:
        key, inverted, form = given.get("key"), given.get("inverted", False), given.get("of")
        if isinstance(key, str) and key and isinstance(inverted, bool) and form in (None, "actions", "components"):
            return MaskChoice(key, inverted, form, auto=False)
    raise SpecError(
        f"env.mask is {shown(value)}; it is auto, none, the name of an entry of observations or infos, or a mapping "
        "{key: NAME, inverted: true or false, of: actions or components}"
    )


@dataclass(frozen=True)
class MaskSource:
    """Where the mask of an agent class is, and how it is read."""

    place: Place
    key: str
    sizes: tuple[int, ...]
    """Choices per component of the action."""
    form: Form
    inverted: bool = False

    def __str__(self) -> str:
        per = "action" if self.form == "actions" else "choice of each component"
        forbids = ", ones forbid" if self.inverted else ""
        where = "observations" if self.place == "observation" else "infos"
        return f"{self.key!r} of {where} (a number per {per}{forbids})"

    def read(self, value: Any) -> BoolArray:
        """bool [A], the legal actions; raises SpecError for what is no such mask."""
        numbers = flat(value)
        wanted = math.prod(self.sizes) if self.form == "actions" else sum(self.sizes)
        if numbers is None or numbers.size != wanted:
            raise SpecError(f"has {shown(value)} as {self.key!r}, which is not a mask of {wanted} zeros and ones")
        bits = numbers.astype(np.bool_)
        if not np.array_equal(bits, numbers):
            raise SpecError(f"has a mask {self.key!r} with numbers that are neither 0 nor 1: {shown(numbers.tolist())}")
        if self.inverted:
            bits = ~bits
        if self.form == "actions":
            return bits
        # A combination is legal if the choice of each of its components is.
        parts = np.split(bits, np.cumsum(self.sizes)[:-1])
        combined: BoolArray = reduce(np.logical_and.outer, parts).ravel()
        return combined


def flat(value: Any) -> NDArray[np.generic] | None:
    """The numbers of an array, or of a sequence of arrays, one after another; None if they are not real numbers."""
    try:
        parts = value if isinstance(value, tuple | list) else (value,)
        found = np.concatenate([np.asarray(part).ravel() for part in parts]) if parts else np.empty(0)
    except (ValueError, TypeError):  # ragged, or no numbers
        return None
    return found if found.dtype.kind in "biuf" else None


def sizes_of(action: Space) -> tuple[int, ...] | None:
    """Choices per component of a discrete space; None for all other spaces."""
    if isinstance(action, spaces.Discrete):
        return (int(action.n),)
    if isinstance(action, spaces.MultiDiscrete):
        return tuple(int(n) for n in np.ravel(action.nvec))
    if isinstance(action, spaces.MultiBinary):
        return (2,) * math.prod(action.shape)
    return None


def _form(count: int, sizes: tuple[int, ...], wanted: Form | None) -> Form | None:
    """What a mask of `count` numbers is a mask of; None if it does not fit."""
    if count == sum(sizes) and len(sizes) > 1 and wanted != "actions":
        return "components"
    return "actions" if count == math.prod(sizes) and wanted != "components" else None


def _bits(space: Space) -> int:
    """Number of elements of a space of numbers from 0 to 1; 0 for all other spaces."""
    if isinstance(space, spaces.Tuple):
        parts = [_bits(part) for part in space.spaces]
        return sum(parts) if all(parts) else 0
    if isinstance(space, spaces.MultiBinary):
        return math.prod(space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.size) if (space.nvec == 2).all() and not np.any(space.start) else 0
    if isinstance(space, spaces.Box) and (space.low == 0).all() and (space.high == 1).all():
        return math.prod(space.shape)
    return 0


def in_observation(space: Space, action: Space, choice: MaskChoice) -> tuple[MaskSource | None, list[str]]:
    """The mask in observations of this space, and what a user should know of the choice.

    Raises SpecError if the entry that `choice` names, or `action_mask`, fits no mask of these actions.
    """
    sizes = sizes_of(action)
    if not isinstance(space, spaces.Dict) or sizes is None or len(space.spaces) < 2 or choice.key is None:
        return None, []
    source = partial(MaskSource, "observation", sizes=sizes, inverted=choice.inverted)

    if choice.key in space.spaces:
        part = space.spaces[choice.key]
        if (form := _form(_bits(part), sizes, choice.form)) is None:
            raise SpecError(
                f"{choice.key!r} of observations is no mask: its space is {shown(str(part))[1:-1]}, {_wanted(sizes)}"
            )
        return source(choice.key, form=form), []
    if not choice.auto:
        return None, []
    forms = {key: form for key, part in space.spaces.items() if (form := _form(_bits(part), sizes, None))}
    named = [key for key in forms if _SAYS_MASK.search(key) and not _SAYS_NO.search(key)]
    if named:
        return source(named[0], form=forms[named[0]]), [_taken("observations", named[0])]
    stands_alone = len(space.spaces) == 2 and "observation" in space.spaces
    doubtful = [key for key in forms if key != "observation" and (stands_alone or _SAYS_NO.search(key))]
    return None, [
        f"{key!r} of observations has a number per action and is observed, not taken for a mask; if it is one, set "
        f"env.mask: {key}, or env.mask: {{key: {key}, inverted: true}} if its ones forbid"
        for key in doubtful
    ]


def in_info(info: Mapping[Any, Any], action: Space, choice: MaskChoice) -> tuple[MaskSource | None, list[str]]:
    """The mask in an agent's info, found as by `in_observation`; only arrays of bits and what is called a mask are
    taken for one.
    """
    sizes = sizes_of(action)
    if not info or sizes is None or choice.key is None:
        return None, []
    if choice.key in info:
        numbers = flat(info[choice.key])
        if numbers is None or (form := _form(numbers.size, sizes, choice.form)) is None:
            raise SpecError(f"{choice.key!r} of infos is no mask: it is {shown(info[choice.key])}, {_wanted(sizes)}")
        return MaskSource("info", choice.key, sizes, form, choice.inverted), []
    if not choice.auto:
        return None, []
    for key, value in info.items():
        if not isinstance(key, str) or not _SAYS_MASK.search(key) or _SAYS_NO.search(key):
            continue
        numbers = flat(value)
        bits = isinstance(value, np.ndarray) and value.dtype.itemsize == 1
        if numbers is None or not np.isin(numbers, (0, 1)).all() or not ("mask" in key.lower() or bits):
            continue  # such as a list of legal actions
        if form := _form(numbers.size, sizes, None):
            return MaskSource("info", key, sizes, form), [_taken("infos", key)]
    return None, []


def _wanted(sizes: tuple[int, ...]) -> str:
    either = "" if len(sizes) == 1 else f", or {sum(sizes)}, one per choice of each component"
    return (
        f"and a mask has {math.prod(sizes)} numbers from 0 to 1, one per action{either}; correct it, or set "
        "env.mask: none to have it observed"
    )


def _taken(where: str, key: str) -> str:
    return (
        f"{key!r} of {where} is taken for the mask of legal actions, by its name; say so with env.mask: {key}, or set "
        "env.mask: none to have it observed"
    )
