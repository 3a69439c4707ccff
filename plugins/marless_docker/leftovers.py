"""The containers that pools which have ended left behind, for `marless fleet`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from marless.core.errors import SpecError
from marless.core.orphans import Orphan
from marless.fleet.launchers.base import Options
from marless_docker import containers, engine

ENGINE_S = 15.0
"""Seconds that a container engine may take to answer a call."""


class LeftoverContainers:
    """The containers of one engine."""

    what = "containers"

    def __init__(self, found: engine.Engine) -> None:
        self._engine = found

    def of_dead_pools(self) -> Sequence[Orphan]:
        return list(containers.of_dead_pools(self._engine))

    def end(self, found: Sequence[Orphan]) -> None:
        for each in found:
            self._engine.remove(each.id)


def leftovers(options: Options | None) -> LeftoverContainers | None:
    """The containers of the engine that pools use here; None if there is none, or nothing here has ever used one."""
    url = (options or {}).get("engine", "")
    if not url and not os.environ.get("DOCKER_HOST") and not Path(engine.DEFAULT.removeprefix("unix://")).exists():
        return None
    try:
        return LeftoverContainers(engine.Engine(url, ENGINE_S))
    except SpecError:
        return None  # without the SDK, or with TLS, no pool of this machine has started a container
