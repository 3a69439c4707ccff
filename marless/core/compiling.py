"""C sources, compiled by this machine's C compiler when they are first needed, and kept on disk.

They are optional: where there is no compiler, or MARLESS_KERNELS=numpy, there is no library, and who asks computes with
NumPy or torch instead.

A library is in $XDG_CACHE_HOME/marless/kernels (by default ~/.cache), in a directory that only this user may write to,
under a name that depends on the source, on the compiler's options, on the CPU, and on its own content: a file that a
power failure or a full disk has cut short is not loaded, but compiled anew. To remove it is safe.

Images have no compiler. `python -m marless.core.compiling MODULE:FILE` compiles a package's source when an image is
built, and puts the library beside the source; it runs on all CPUs of about the last ten years, and where it does not,
it is not loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from marless.core import private_files
from marless.core.errors import SpecError, shown
from marless.core.process_environment import KERNELS

VARIABLE = KERNELS
CHOICES = AUTO, COMPILED, NUMPY = "auto", "compiled", "numpy"
# Not -ffast-math: it would reorder additions, on which equal bits rely, and assume that there are no NaNs, which ReLU
# keeps for those who look for them. Without errno, square roots are computed in vectors.
_OPTIONS = ("-O3", "-std=gnu11", "-fno-math-errno", "-shared", "-fPIC")
_NATIVE = "-march=native"
_COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_S = 120.0
_PORTABLE: Final = {
    "x86_64": ("-march=x86-64-v3", ("avx2", "bmi2", "fma", "f16c", "movbe")),
    "aarch64": ("-march=armv8-a", ()),
}
"""For each kind of machine the option of libraries for images, and flags of /proc/cpuinfo without which they crash."""


class _MissingError(Exception):
    """A source cannot be compiled or loaded here; the message says why."""


def library(source: Path) -> tuple[ctypes.CDLL | None, str]:
    """The compiled library of a C source, or None where it is not used; and which of them, and why, for a log.

    Calls release the GIL, so that several threads compute at once. Raises SpecError for a wrong value of
    MARLESS_KERNELS, and if it demands kernels that cannot be compiled.
    """
    choice = os.environ.get(VARIABLE) or AUTO
    if choice not in CHOICES:
        raise SpecError(f"{VARIABLE} is {shown(choice)}; set it to one of {', '.join(CHOICES)}, or unset it")
    if choice == NUMPY:
        return None, f"numpy, as {VARIABLE} says"
    try:
        return ctypes.CDLL(str(_packed(source) or _built(source))), "compiled"
    except (OSError, _MissingError) as error:
        if choice == COMPILED:
            raise SpecError(f"{VARIABLE} is compiled, but the kernels cannot be: {error}") from None
        return None, f"numpy: {error}"


def pack(source: Path) -> Path:
    """Compile a source for other machines of this kind, and put the library beside it; returns its path.

    Raises SpecError if there is no compiler, or if it fails.
    """
    try:
        option, _ = _portable()
        return _kept(source, option, source.parent, _key(source, option))
    except (OSError, _MissingError) as error:
        raise SpecError(f"{source.name}: cannot be compiled for images: {error}") from None


def _packed(source: Path) -> Path | None:
    """The library that `pack` has put beside a source, if there is one, and this machine can run it."""
    try:
        option, needed = _portable()
    except _MissingError:
        return None
    flags = {flag for line in _cpu() if line.startswith("flags") for flag in line.split()}
    return _whole(source.parent, _key(source, option)) if flags.issuperset(needed) else None


def _portable() -> tuple[str, tuple[str, ...]]:
    try:
        return _PORTABLE[platform.machine()]
    except KeyError:
        raise _MissingError(f"unknown kind of machine: {platform.machine()}") from None


def _built(source: Path) -> Path:
    """The library of this machine, which is compiled if it is not there yet. Raises OSError and _MissingError."""
    return _kept(
        source,
        _NATIVE,
        private_files.directory(private_files.caches() / "marless" / "kernels"),
        _key(source, _NATIVE, *_cpu()),
    )


def _kept(source: Path, option: str, directory: Path, key: str) -> Path:
    if found := _whole(directory, key):
        return found
    for broken in directory.glob(f"{key}-*.so"):
        broken.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        made = Path(folder, "kernels.so")
        _compile(source, option, made)
        return made.replace(directory / _name(key, made))  # so that another process finds a whole file or none


def _whole(directory: Path, key: str) -> Path | None:
    """The library of this key; a process that maps a file which was cut short would be killed."""
    return next((found for found in directory.glob(f"{key}-*.so") if found.name == _name(key, found)), None)


def _name(key: str, library: Path) -> str:
    return f"{key}-{hashlib.sha256(library.read_bytes()).hexdigest()[:32]}.so"


def _key(source: Path, *how: str) -> str:
    return hashlib.sha256(repr((_OPTIONS, how)).encode() + source.read_bytes()).hexdigest()[:32]


def _compile(source: Path, option: str, target: Path) -> None:
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise _MissingError(f"no C compiler ({', '.join(_COMPILERS)}) is on the PATH")
    command = [compiler, *_OPTIONS, option, "-o", str(target), str(source), "-lm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise _MissingError(f"{compiler} took more than {_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), "it says nothing")
        raise _MissingError(f"{compiler} cannot compile them: {said}")


def _cpu() -> tuple[str, ...]:
    """What decides which instructions this machine has: the compiler uses all of them."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    return (platform.machine(), platform.processor(), *(line for line in lines if line.startswith(wanted)))


def _main(names: list[str]) -> None:
    for name in names:
        module, _, file = name.partition(":")
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # what it is a part of is missing
            found = None
        if found is None or found.origin is None or not file:
            sys.exit(f"{name}: give a package and a file in it, as in marless.learning.nets:kernels.c")
        try:
            sys.stdout.write(f"{pack(Path(found.origin).with_name(file))}\n")
        except SpecError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    _main(sys.argv[1:])
