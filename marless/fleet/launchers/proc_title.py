"""What `/proc`, and so `ps`, shows of a forked process: by default the command line and environment of its template.

Both lie in the memory of the process, where it may overwrite them within their length. Linux only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

_ARG_START, _ENV_END = 45, 48
"""Positions in /proc/self/stat, counted from the field after the command's name: proc(5) has them as 48 to 51."""


def show_command(words: Sequence[str]) -> None:
    """Show this command line, cut to the length of the one that this process was started with."""
    start, end, _, _ = _area()
    shown = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def show_variable(name: str, value: str) -> None:
    """Set an environment variable, also in what /proc shows. It must have been set when this process was started.

    Raises ValueError unless the value is as long as the one before.
    """
    _, _, start, end = _area()
    # With the NUL before it, so that another variable whose name only ends like this one is not found.
    before, after = (os.fsencode(f"\0{name}={each}\0") for each in (os.environ.get(name, ""), value))
    position = (b"\0" + ctypes.string_at(start, end - start)).find(before)
    if position < 0 or len(before) != len(after):
        raise ValueError(f"{name}: set at the start, and as long as before, is what can be shown")
    ctypes.memmove(start + position, after[1:], len(after) - 1)
    os.environ[name] = value


def _area() -> tuple[int, int, int, int]:
    """Start and end of the command line, and of the environment, in this process's memory."""
    # The name of the command, in parentheses, may itself have spaces and parentheses.
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    arg_start, arg_end, env_start, env_end = map(int, fields[_ARG_START : _ENV_END + 1])
    return arg_start, arg_end, env_start, env_end
