"""Makes environments by name.

`mpe/<game>` and `game/<game>` are part of marless; `pettingzoo/<module>` and `gymnasium/<id>` adapt environments of
PettingZoo, of Gymnasium, and of packages that the operator allows (`marless.learning.envs.allowed`). Plug-ins and other
packages register environments in the entry-point group `marless.envs`: the entry's name is the environment's name, its
object a callable `(options, batch) -> BatchedEnv` that raises SpecError for invalid options. An entry `atari/<game>` is
that of a family, all names that begin with `atari/`; its object is a callable `(game, options, batch) -> BatchedEnv`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any, TypeVar

from marless.core.errors import MarlessError, SpecError, told, unknown_name
from marless.core.registry import declared, plugged
from marless.learning.envs import allowed, games
from marless.learning.envs.base import BatchedEnv, EnvSpaces, Saved, StateOnDemand
from marless.learning.envs.mpe import hunting, moving, speaking
from marless.learning.envs.mpe.options import ParticleOptions

Options = Mapping[str, Any]  # Any: options are YAML values
Factory = Callable[[Options, int], BatchedEnv]
OptionsType = TypeVar("OptionsType")

ENTRY_POINTS = "marless.envs"
PETTINGZOO = "pettingzoo/"
"""Prefix before a module's name, e.g. `pettingzoo/multiwalker_v9`; see `marless.learning.envs.allowed`."""

GYMNASIUM = "gymnasium/"
"""Prefix before an id, e.g. `gymnasium/CartPole-v1`; see `marless.learning.envs.gymnasium.ids`."""
ADAPTED = (PETTINGZOO, GYMNASIUM)
"""Prefixes of environments that are Python objects, one a copy, with masks as a job's `env.mask` says."""


def make(name: str, options: Options, batch: int, *, with_state: bool = True) -> BatchedEnv:
    """Make `batch` copies of an environment; raises SpecError for an unknown name, and for all of its errors.

    Without `with_state`, frames need not carry a global state, and do not where it would cost something.
    """
    if batch < 1:
        raise SpecError(f"environment {name}: needs at least one copy, got {batch}")
    factory = _factory(name)
    if allowed.MASK_OPTION in options and not name.startswith(ADAPTED):
        raise SpecError(
            f"environment {name}: its masks are part of its spaces, so env.mask has no meaning; leave it out"
        )
    with _blaming(name):
        env = factory(options, batch)
        if not with_state and isinstance(env, StateOnDemand):
            env.without_state()
        return env


def make_carried(name: str, options: Options, batch: int, *, with_state: bool = True) -> BatchedEnv:
    """Make copies whose episodes go on over rounds, as `make` does; those that cannot be saved are kept apart.

    They are then stepped one after another, and saved as their seeds and actions (`marless.learning.envs.replayed`).
    """
    env = make(name, options, batch, with_state=with_state)
    if isinstance(env, Saved):
        return env
    env.close()
    from marless.learning.envs.replayed import Apart  # imported here: few environments need it

    return Apart(partial(make, name, options, 1, with_state=with_state), batch)


def spaces(name: str, options: Options) -> EnvSpaces:
    """Make an environment once to read its spaces; raises SpecError as `make` does."""
    return examined(name, options)[0]


def examined(name: str, options: Options) -> tuple[EnvSpaces, bool]:
    """Make an environment once; returns its spaces, and whether it can be saved. Raises SpecError as `make` does."""
    env = make(name, options, 1)
    with _blaming(name, "closed"):
        try:
            return env.spaces, isinstance(env, Saved)
        finally:
            env.close()


@contextmanager
def _blaming(name: str, what: str = "made with these options") -> Iterator[None]:
    """Turn every error of an environment into a SpecError.

    This includes SystemExit and its like, which would otherwise end the service that makes the environment.
    """
    try:
        yield
    except SpecError as error:
        raise SpecError(f"environment {name}: {error}") from error
    except MarlessError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # raised by Ctrl-C, not by the environment
        raise SpecError(f"environment {name}: cannot be {what}: {told(error)}") from error


def is_ours(name: str) -> bool:
    """True for an environment whose code is part of marless or of one of its plug-ins."""
    return name in _OURS or _entry(name, plugged(ENTRY_POINTS)) is not None


def environments() -> list[str]:
    """The names of all environments; `pettingzoo/<module>` and `gymnasium/<id>` stand for those of other packages."""
    return [*_OURS, *declared(ENTRY_POINTS), f"{PETTINGZOO}<module>", f"{GYMNASIUM}<id>"]


def options_of(name: str) -> dict[str, object]:
    """The options of an environment of marless, with their defaults; {} for those of other packages."""
    fields = dataclasses.fields(_OURS[name][1]) if name in _OURS else ()
    return {field.name: field.default for field in fields}


def one_by_one(name: str) -> bool:
    """True if the copies of this environment are Python objects that are stepped one after another."""
    return name.startswith(ADAPTED)


def read_options(options_type: type[OptionsType], options: Options) -> OptionsType:
    """Make an options dataclass; raises SpecError, with the nearest match, for an unknown option."""
    known = [field.name for field in dataclasses.fields(options_type)]  # type: ignore[arg-type]  # any dataclass
    for option in options:
        if option not in known:
            raise SpecError(unknown_name("option", option, known))
    return options_type(**options)


_OURS: Mapping[str, tuple[Callable[..., BatchedEnv], type]] = MappingProxyType(
    {
        "mpe/simple": (moving.Simple, ParticleOptions),
        "mpe/simple_adversary": (moving.SimpleAdversary, moving.AdversaryOptions),
        "mpe/simple_crypto": (speaking.SimpleCrypto, ParticleOptions),
        "mpe/simple_push": (moving.SimplePush, ParticleOptions),
        "mpe/simple_reference": (speaking.SimpleReference, speaking.ReferenceOptions),
        "mpe/simple_speaker_listener": (speaking.SimpleSpeakerListener, ParticleOptions),
        "mpe/simple_spread": (moving.SimpleSpread, moving.SpreadOptions),
        "mpe/simple_tag": (hunting.SimpleTag, hunting.TagOptions),
        "mpe/simple_world_comm": (hunting.SimpleWorldComm, hunting.WorldCommOptions),
        "game/cartpole": (games.CartPole, games.CartPoleOptions),
        "game/matrix": (games.Matrix, games.MatrixOptions),
        "game/two_step": (games.TwoStep, games.NoOptions),
        "game/target": (games.Target, games.TargetOptions),
    }
)


def _adapted(path: str, options: Options, batch: int) -> BatchedEnv:
    place = allowed.place(path)  # checked before PettingZoo is imported
    from marless.learning.envs.pettingzoo import making

    own = {name: value for name, value in options.items() if name != allowed.MASK_OPTION}
    return making.adapt(place, own, batch, options.get(allowed.MASK_OPTION, "auto"))


def _single(path: str, options: Options, batch: int) -> BatchedEnv:
    from marless.learning.envs.gymnasium import making

    own = {name: value for name, value in options.items() if name not in (allowed.MASK_OPTION, allowed.FILM_OPTION)}
    mask = options.get(allowed.MASK_OPTION, "auto")
    return making.adapt(path, own, batch, mask, filmed=allowed.FILM_OPTION in options)


def _factory(name: str) -> Factory:
    if name in _OURS:
        env, options_type = _OURS[name]
        return lambda options, batch: env(read_options(options_type, options), batch)
    if name.startswith(PETTINGZOO):
        return partial(_adapted, name.removeprefix(PETTINGZOO))
    if name.startswith(GYMNASIUM):
        return partial(_single, name.removeprefix(GYMNASIUM))
    # All entry points are only read where marless's own have no such name.
    entry = _entry(name, plugged(ENTRY_POINTS)) or _entry(name, declared(ENTRY_POINTS))
    if entry is None:
        raise SpecError(unknown_name("environment", name, environments()))

    def loaded(options: Options, batch: int) -> BatchedEnv:  # loads when called, so that `make` reports its errors
        made = entry.load()
        factory: Factory = made if entry.name == name else partial(made, name.partition("/")[2])
        return factory(options, batch)

    return loaded


def _entry(name: str, entries: Mapping[str, EntryPoint]) -> EntryPoint | None:
    """The entry point of an environment, or that of its family."""
    if name in entries:
        return entries[name]
    prefix, slash, _ = name.partition("/")
    return next((entry for each, entry in entries.items() if slash and each.startswith(f"{prefix}/<")), None)
