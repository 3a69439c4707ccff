"""The one place that imports structlog, without rich, which structlog would import for logs that people read.

Our logs are JSON. Importing rich would take a tenth of the time in which an actor worker starts.
"""

from __future__ import annotations

import json
import os
import sys
from io import TextIOBase, UnsupportedOperation
from typing import Any, TextIO, cast

__all__ = ["Lines", "structlog"]

_modules = cast("dict[str, Any]", sys.modules)  # None in place of a module makes its import an ImportError
_kept = _modules.setdefault("rich", None)
try:
    import structlog
finally:
    if _kept is None:
        del _modules["rich"]


class Lines(TextIOBase):
    """A log's end: each line is written at once, or lost if it cannot be, as on a full disk. No write raises.

    What reports on work must not end it. A line in front of the next one that can be written says how many were lost.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = ""
        """A line without its end."""
        self._lost = 0
        self._torn = False
        """True if only a part of the last line was written."""

    def write(self, text: str) -> int:
        """Write the lines that are whole now, and keep the rest."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._write_line(line)
        return len(text)

    def _write_line(self, line: str) -> None:
        said = [json.dumps({"event": "log.lines_lost", "lines": self._lost})] if self._lost else []
        data = ("\n" * self._torn + "\n".join((*said, line)) + "\n").encode(errors="backslashreplace")
        try:
            written = self._put(data)
        except (OSError, ValueError):  # ValueError: of a stream that is closed
            self._lost += 1
            return
        self._torn = 0 < written < len(data)
        self._lost = 0 if written == len(data) else self._lost + 1

    def _put(self, data: bytes) -> int:
        """Write as much as can be written; returns how many bytes. Raises OSError, ValueError."""
        try:
            descriptor = self._stream.fileno()
        except UnsupportedOperation:  # a stream of a test
            self._stream.write(data.decode())
            return len(data)
        # What others wrote to the stream comes first. The line itself goes past its buffer, which would keep what a
        # full disk has refused, and raise again.
        self._stream.flush()
        return os.write(descriptor, data)
