"""The kernels of kernels.c, compiled by this machine's C compiler when they are first needed.

They are optional: where there is no compiler, or MARLESS_KERNELS=numpy, `library()` is None, and
`marless.learning.nets.kernels` computes the same with NumPy and torch, up to rounding. So weights are the same bit for
bit only between machines that use the same of the two. Neither depends on the number of threads. Where libraries are
kept, `marless.core.compiling` says.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Final

from marless.core import compiling

SOURCE = Path(__file__).with_name("kernels.c")
_Function = Callable[..., None]

_WHOLE, _REAL, _ARRAY = ctypes.c_long, ctypes.c_float, ctypes.c_void_p
_NET_ROW = (_ARRAY, _WHOLE, _WHOLE)
"""An array, and its strides of nets and rows."""
_NET_ROW_STEP = (*_NET_ROW, _WHOLE)


class CLayer(ctypes.Structure):
    """`struct layer` of kernels.c."""

    _fields_: ClassVar = [
        ("weights", _ARRAY),
        ("weights_net", _WHOLE),
        ("gradient", _ARRAY),
        ("gradient_net", _WHOLE),
        ("values", _ARRAY),
        ("sums", _ARRAY),
        ("outputs", _WHOLE),
        ("inputs", _WHOLE),
    ]


class CPerceptrons(ctypes.Structure):
    """`struct perceptrons` of kernels.c."""

    _fields_: ClassVar = [
        ("nets", _WHOLE),
        ("layers", _WHOLE),
        ("columns", _WHOLE),
        ("then", ctypes.c_int),
        ("panels", _ARRAY),
        ("panel", _WHOLE),
        ("layer", ctypes.POINTER(CLayer)),
    ]


class GRU(ctypes.Structure):
    """`struct gru` of kernels.c."""

    _fields_: ClassVar = [
        *((name, _WHOLE) for name in ("nets", "units", "steps", "copies")),
        ("weights", _ARRAY),
        ("weights_net", _WHOLE),
        ("input", _ARRAY),
        ("input_net", _WHOLE),
        ("input_row", _WHOLE),
        ("keep", _ARRAY),
        ("keep_step", _WHOLE),
        ("keep_net", _WHOLE),
        *((name, _ARRAY) for name in ("memory", "recurrent", "gates", "before", "hidden")),
        *((name, _ARRAY) for name in ("d_hidden", "d_recurrent", "d_new", "panels")),
    ]


_PERCEPTRONS = ctypes.POINTER(CPerceptrons)
_TYPES: Final = {
    "forward": (_PERCEPTRONS, *_NET_ROW, *_NET_ROW),
    "backward": (_PERCEPTRONS, *_NET_ROW, *_NET_ROW, *_NET_ROW),
    "gru_forward": (ctypes.POINTER(GRU),),
    "gru_backward": (ctypes.POINTER(GRU),),
    "product": (*4 * (_WHOLE,), *_NET_ROW_STEP, *_NET_ROW_STEP, *_NET_ROW, *_NET_ROW_STEP, ctypes.c_int),
    "take": (_WHOLE, _WHOLE, _ARRAY, _WHOLE, _ARRAY, _ARRAY, _WHOLE),
    "clip": (_WHOLE, _WHOLE, _ARRAY, _WHOLE, _REAL, _ARRAY),
    "adam": (_WHOLE, _WHOLE, *4 * (_ARRAY, _WHOLE), _ARRAY, _ARRAY, _REAL, _REAL, _REAL),
    "categorical": (*3 * (_WHOLE,), *_NET_ROW, *_NET_ROW, _REAL, *5 * (_ARRAY,)),
    "categorical_gradient": (*3 * (_WHOLE,), *7 * (_ARRAY,)),
    "gaussian": (*3 * (_WHOLE,), *_NET_ROW, *_NET_ROW, _ARRAY, _WHOLE, *3 * (_ARRAY,)),
    "gaussian_gradient": (*3 * (_WHOLE,), _ARRAY, _ARRAY, _WHOLE, *4 * (_ARRAY,), _WHOLE),
    "surrogate_gradient": (*2 * (_WHOLE,), *4 * (_ARRAY, _WHOLE), _REAL, _ARRAY),
}


@dataclass(frozen=True)
class Library:
    """The functions of kernels.c, which says what each computes. Arrays are addresses, strides count elements.

    Nothing is checked: wrong shapes, strides or indices read and write memory of others.
    """

    width: int
    """Columns of a panel."""
    lanes: int
    """Elements of a vector."""
    forward: _Function
    backward: _Function
    gru_forward: _Function
    gru_backward: _Function
    product: _Function
    take: _Function
    clip: _Function
    adam: _Function
    categorical: _Function
    categorical_gradient: _Function
    gaussian: _Function
    gaussian_gradient: _Function
    surrogate_gradient: _Function


def library() -> Library | None:
    """The compiled kernels, or None where they are not used. Raises SpecError for a wrong value of MARLESS_KERNELS, and
    if it demands kernels that cannot be compiled.
    """
    return _chosen()[0]


def described() -> str:
    """Which kernels this process uses, and why, for a log. Raises SpecError as `library` does."""
    return _chosen()[1]


@cache
def _chosen() -> tuple[Library | None, str]:
    loaded, said = compiling.library(SOURCE)
    return None if loaded is None else _typed(loaded), said


def _typed(loaded: ctypes.CDLL) -> Library:
    functions: dict[str, _Function] = {}
    for name, types in _TYPES.items():
        function = getattr(loaded, name)
        # Without types ctypes passes whole numbers as C's int, which cuts addresses off.
        function.argtypes, function.restype = types, None
        functions[name] = function
    return Library(width=loaded.panel_width(), lanes=loaded.vector_lanes(), **functions)
