"""A terminal of 80 columns: what a person sees of a command that runs in it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

COLUMNS, ROWS = 80, 200
_TAB = 8
DEEPER = "  "
"""Before what is left of a long line."""
_CONTROL = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")
BAR, _TRAINING = "━", "return "
"""What bars have; and those that show how a job trains, of which one is worth showing."""


class Screen:
    """As much of a terminal as rich needs: lines that are written over, erased and left."""

    def __init__(self) -> None:
        self._lines = [""]
        self._row = self._column = 0
        self._bars: list[tuple[int, str]] = []
        """What was erased of bars, and where."""

    def write(self, text: str) -> None:
        """Show what a command prints."""
        place = 0
        while place < len(text):
            if control := _CONTROL.match(text, place):
                self._control(control[1], control[2])
                place = control.end()
            else:
                self._put(text[place])
                place += 1

    def text(self) -> str:
        """What is there now, and a bar of training as it was half-way, which is gone by now."""
        lines = list(self._lines)
        if self._bars:
            row, bar = self._bars[len(self._bars) // 2]
            lines.insert(row, bar)
        return "\n".join(_wrapped(line.rstrip()) for line in lines).strip("\n")

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row, self._column = self._row + 1, 0
            self._lines += [""] * (self._row + 1 - len(self._lines))
        elif character == "\t":
            self._column += _TAB - self._column % _TAB
        else:
            line = self._lines[self._row].ljust(self._column)
            self._lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
            self._column += 1

    def _control(self, parameters: str, letter: str) -> None:
        if letter == "A":
            self._row = max(self._row - int(parameters or 1), 0)
        elif letter == "K":
            line = self._lines[self._row]
            if BAR in line and _TRAINING in line:
                self._bars.append((self._row, line))
            self._lines[self._row] = line[: self._column] if parameters in ("", "0") else ""


def _wrapped(line: str) -> str:
    """A line that is longer than the terminal is wide, parted at words: easier to read than where the edge is."""
    whole = {"break_long_words": False, "break_on_hyphens": False}  # paths are as long as the directory's name
    return line if len(line) <= COLUMNS else "\n".join(textwrap.wrap(line, COLUMNS, subsequent_indent=DEEPER, **whole))


def shown(script: Path, place: Path, environment: Mapping[str, str], between: str) -> list[str]:
    """Run a script of bash in a terminal; what is seen of it, parted where the script prints `between` on a line."""
    printed = printed_by(("bash", str(script)), place, environment)
    return [_seen(part) for part in printed.split(f"{between}\n")]


def printed_by(command: Sequence[str], place: Path, environment: Mapping[str, str], columns: int = COLUMNS) -> str:
    """Run a command in a terminal; all that it prints there, control characters included."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    with subprocess.Popen(command, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs):
        os.close(theirs)
        return _all(ours).replace("\r\n", "\n")


def _seen(printed: str) -> str:
    screen = Screen()
    screen.write(printed)
    return screen.text()


def _all(descriptor: int) -> str:
    found = b""
    with open(descriptor, "rb", buffering=0) as terminal:
        while True:
            try:
                part = terminal.read(2**16)
            except OSError:  # Linux: the last program in it has ended
                part = b""
            if not part:
                return found.decode()
            found += part
