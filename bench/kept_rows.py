"""Finished runs of a benchmark, in a file: a comparison of many hours goes on with the runs that are missing.

Returns after equally many env steps do not depend on the machine; times do, so each line names it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.harness import Row


class KeptRows:
    """Rows by what defines a run, in memory and, if a path is given, in a file with a JSON object a line."""

    def __init__(self, path: Path | None, about: Row, *, name: str = "run") -> None:
        """`about` describes this machine; it is written beside each new row. `name` is what lines call the definition.

        Raises ValueError for damaged lines.
        """
        self._path, self._about, self._name = path, about, name
        self._found: dict[str, Row] = {}
        self._read()

    def get(self, run: Any) -> Row | None:  # Any: JSON
        """The row of this run, if it is known: another process may have added it meanwhile."""
        if json.dumps(run) not in self._found:
            self._read()
        return self._found.get(json.dumps(run))

    def put(self, run: Any, found: Row) -> None:  # Any: JSON
        """Keep the row of a run."""
        self._found[json.dumps(run)] = found
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({self._name: run, **found, "machine": self._about}) + "\n")

    def _read(self) -> None:
        if self._path is None or not self._path.exists():
            return
        for number, line in enumerate(self._path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row: Row = json.loads(line)
                row.pop("machine", None)
                self._found[json.dumps(row.pop(self._name))] = row
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{self._path}, line {number} is no run ({error!r}): delete the line") from None
