"""Read and write lock files that pip understands: `name==version ; marker`, then hashes of that version's files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_HEADER = "# Written by `make lock`; pip install --require-hashes --no-deps -r requirements/{name}.txt\n"


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One package at one version."""

    name: str
    """Canonical name (PEP 503)."""
    version: str
    marker: str
    """Where it is installed (PEP 508); empty: everywhere."""
    hashes: tuple[str, ...]
    """"sha256:…" of each file that may be installed."""

    def applies(self, environment: Mapping[str, str]) -> bool:
        """True if this pin is installed where markers have the values of `environment`."""
        return not self.marker or Marker(self.marker).evaluate(dict(environment))


def parse(text: str) -> tuple[Pin, ...]:
    """The pins of a lock file; raises ValueError for a line that is no pin of an exact version."""
    logical = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    return tuple(_pin(line) for line in logical.splitlines() if line.strip())


def read(path: Path) -> tuple[Pin, ...]:
    """The pins of one lock file; raises OSError if there is none, ValueError as `parse` does."""
    return parse(path.read_text())


def write(path: Path, pins: Iterable[Pin]) -> None:
    """Write a lock file, sorted, so that a new lock differs only where a version does."""
    lines = [_HEADER.format(name=path.stem)]
    for pin in sorted(pins, key=lambda pin: (pin.name, pin.version)):
        marker = f" ; {pin.marker}" if pin.marker else ""
        lines.append(" \\\n    --hash=".join([f"{pin.name}=={pin.version}{marker}", *sorted(pin.hashes)]) + "\n")
    path.write_text("".join(lines))


def _pin(line: str) -> Pin:
    words, *hashes = re.split(r"\s+--hash=", line.strip())
    requirement = Requirement(words)
    exact = re.fullmatch(r"==([^*,]+)", str(requirement.specifier))
    if not exact:
        raise ValueError(f"{line.strip()[:80]!r} has no exact version")
    return Pin(
        name=canonicalize_name(requirement.name),
        version=exact[1],
        marker=str(requirement.marker or ""),
        hashes=tuple(hashes),
    )
