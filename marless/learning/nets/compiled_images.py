"""The functions of images.c, compiled by this machine's C compiler when they are first needed.

Without a compiler, or with MARLESS_KERNELS=numpy, `library()` is None, and `acting_images` (NumPy) and torch compute
the same up to rounding. Where libraries are kept, `marless.core.compiling` says.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from marless.core import compiling

SOURCE = Path(__file__).with_name("images.c")
_Function = Callable[..., None]
_WHOLE, _ARRAY = ctypes.c_long, ctypes.c_void_p


class CStep(ctypes.Structure):
    """`struct step` of images.c, whose `from` is a word of Python's."""

    _fields_: ClassVar = [
        *((name, _WHOLE) for name in ("planes", "height", "width", "depth")),
        *((name, _WHOLE) for name in ("size", "stride", "padding", "rows", "columns", "outputs")),
        *((name, _ARRAY) for name in ("panels", "pieces", "source", "added", "room", "to")),
        *((name, ctypes.c_int) for name in ("from_positive", "to_positive")),
    ]


class CGradient(ctypes.Structure):
    """`struct gradient` of images.c."""

    _fields_: ClassVar = [
        *((name, _WHOLE) for name in ("images", "places", "outputs", "inputs")),
        *((name, _ARRAY) for name in ("begins", "offsets")),
        ("image", _WHOLE),
        *((name, _ARRAY) for name in ("x", "d")),
    ]


@dataclass(frozen=True)
class ImageLibrary:
    """The functions of images.c, which says what each computes. Arrays are addresses, distances count elements.

    Nothing is checked: wrong shapes, strides or indices read and write memory of others.
    """

    width: int
    """Outputs of a panel."""
    take_steps: _Function
    weight_gradient: _Function
    interleave: _Function


@cache
def library() -> ImageLibrary | None:
    """The compiled functions, or None where they are not used. Raises SpecError as `compiling.library` does."""
    loaded, _ = compiling.library(SOURCE)
    if loaded is None:
        return None
    loaded.take_steps.argtypes = ctypes.POINTER(CStep), _WHOLE, _WHOLE, _ARRAY, _WHOLE, _ARRAY, _WHOLE
    loaded.weight_gradient.argtypes = ctypes.POINTER(CGradient), _ARRAY, _ARRAY
    loaded.interleave.argtypes = _WHOLE, _WHOLE, _WHOLE, _ARRAY, _ARRAY
    for function in (loaded.take_steps, loaded.weight_gradient, loaded.interleave):
        function.restype = None
    return ImageLibrary(loaded.panel_width(), loaded.take_steps, loaded.weight_gradient, loaded.interleave)
