"""The kernels of kernels.c, compiled by this machine's C compiler when they are first needed, and kept on disk.

They are optional: where there is no compiler, or MARLESS_KERNELS=numpy, `library()` is None, and
`marless.learning.nets.kernels` computes the same with NumPy and torch, up to rounding. So weights are the same bit for
bit only between machines that use the same of the two. Neither depends on the number of threads.

The library is in $XDG_CACHE_HOME/marless/kernels (by default ~/.cache), in a directory that only this user may write
to, under a name that depends on the source, on the compiler's options, on the CPU, and on its own content: a file that
a power failure or a full disk has cut short is not loaded, but compiled anew. To remove it is safe.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Final

from marless.core import private_files
from marless.core.errors import SpecError, shown
from marless.core.process_environment import KERNELS

VARIABLE = KERNELS
CHOICES = AUTO, COMPILED, NUMPY = "auto", "compiled", "numpy"
SOURCE = Path(__file__).with_name("kernels.c")
# Not -ffast-math: it would reorder additions, on which equal bits rely, and assume that there are no NaNs, which ReLU
# keeps for those who look for them. Without errno, square roots are computed in vectors.
_OPTIONS = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-shared", "-fPIC")
_COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_S = 120.0
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


class _MissingError(Exception):
    """The kernels cannot be compiled or loaded here; the message says why."""


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
    choice = os.environ.get(VARIABLE) or AUTO
    if choice not in CHOICES:
        raise SpecError(f"{VARIABLE} is {shown(choice)}; set it to one of {', '.join(CHOICES)}, or unset it")
    if choice == NUMPY:
        return None, f"numpy, as {VARIABLE} says"
    try:
        return _load(_built()), "compiled"
    except (OSError, _MissingError) as error:
        if choice == COMPILED:
            raise SpecError(f"{VARIABLE} is compiled, but the kernels cannot be: {error}") from None
        return None, f"numpy: {error}"


def _built() -> Path:
    """The library of this machine, which is compiled if it is not there yet. Raises OSError and _MissingError."""

    def name(library: Path) -> str:
        return f"{key}-{hashlib.sha256(library.read_bytes()).hexdigest()[:32]}.so"

    directory = private_files.directory(_cache() / "marless" / "kernels")
    key = hashlib.sha256(repr((_OPTIONS, _cpu())).encode() + SOURCE.read_bytes()).hexdigest()[:32]
    for found in directory.glob(f"{key}-*.so"):
        if found.name == name(found):  # a process that maps a file which was cut short would be killed
            return found
        found.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        made = Path(folder, "kernels.so")
        _compile(made)
        return made.replace(directory / name(made))  # so that another process finds a whole file or none


def _cache() -> Path:
    """The directory of this user's caches. Raises _MissingError if there is none."""
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # as in a container whose user has no entry in /etc/passwd
        raise _MissingError("this user has no home directory; set XDG_CACHE_HOME") from None


def _compile(target: Path) -> None:
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise _MissingError(f"no C compiler ({', '.join(_COMPILERS)}) is on the PATH")
    command = [compiler, *_OPTIONS, "-o", str(target), str(SOURCE), "-lm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise _MissingError(f"{compiler} took more than {_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), "it says nothing")
        raise _MissingError(f"{compiler} cannot compile them: {said}")


def _load(path: Path) -> Library:
    # CDLL releases the GIL during a call, so that nets which are trained on several threads compute at once.
    loaded = ctypes.CDLL(str(path))
    functions: dict[str, _Function] = {}
    for name, types in _TYPES.items():
        function = getattr(loaded, name)
        # Without types ctypes passes whole numbers as C's int, which cuts addresses off.
        function.argtypes, function.restype = types, None
        functions[name] = function
    return Library(width=loaded.panel_width(), lanes=loaded.vector_lanes(), **functions)


def _cpu() -> tuple[str, ...]:
    """What decides which instructions this machine has: the compiler uses all of them."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    return (platform.machine(), platform.processor(), *(line for line in lines if line.startswith(wanted)))
