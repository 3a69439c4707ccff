"""Modules of torch as nets, `model: {net: module/<name>}`: their names. Imports neither torch nor NumPy.

A package registers a factory under the entry point group "marless.modules". Learners call it (`nets.modules`); actors
run the ONNX graph that learners write into the states of policies (`nets.acting_module`), without torch or the package.
See docs/extending/module.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from marless.core.errors import SpecError, shown, unknown_name
from marless.core.limits import MAX_WIDTH
from marless.core.registry import Registry
from marless.learning.nets.net_kind import InputShape

_PREFIX, _GROUP = "module/", "marless.modules"
ModuleFactory: TypeAlias = Callable[
    [InputShape, tuple[int, ...], int], Any
]  # Any: a torch.nn.Module, not imported here
"""(what the net reads, `model.hidden`, K) → a module that maps float32 [samples, I] to [samples, K].

With an image it gets float32 [samples, channels, height, width] within [0, 1], and as a second argument the inputs
after the image, float32 [samples, others], if there are any.

A module with memory has an attribute `memory`, H, an int: its last argument is float32 [samples, H], zeros at the start
of an episode, and it returns (outputs, the next memory).
"""
MAX_MEMORY = 4 * MAX_WIDTH
"""The largest H."""
MODULES: Registry[ModuleFactory] = Registry("module", _GROUP, "", {})


def is_module(kind: str) -> bool:
    """True for the names of kinds of nets that are modules of torch."""
    return kind.startswith(_PREFIX)


def check_declared(kind: str) -> None:
    """Raise SpecError unless an installed package declares this module, which is not imported."""
    name, known = kind.removeprefix(_PREFIX), MODULES.names()
    if name not in known:
        none = f"unknown module {shown(name)}; no installed package has an entry point in the group {_GROUP}"
        raise SpecError(unknown_name("module", name, known) if known else none)


def factory_of(kind: str) -> ModuleFactory:
    """The factory of a module; raises SpecError for one that is not installed, or cannot be imported."""
    return MODULES.find(kind.removeprefix(_PREFIX))
