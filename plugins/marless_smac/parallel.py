"""SMAC's battles as a parallel environment of PettingZoo.

    from marless_smac.parallel import parallel_env
    env = parallel_env(map_name="8m")

Each agent observes a Dict of `observation` and `action_mask`. Agents that died stay until the battle is over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marless.learning.envs.base import Frame, Transition
from marless.learning.envs.pettingzoo.view import BatchedView
from marless.learning.envs.registry import read_options
from marless_smac.embedded import EmbeddedSmac
from marless_smac.maps import find
from marless_smac.options import SmacOptions


class parallel_env(BatchedView[EmbeddedSmac]):  # noqa: N801  # the name by which PettingZoo's users look for it
    """One battle at a time on the embedded engine; `marless evaluate --render` draws battles."""

    metadata = {"name": "marless_smac", "render_modes": [], "is_parallelizable": True}  # noqa: RUF012  # PettingZoo's

    def __init__(self, map_name: str = "8m", **options: Any) -> None:  # Any: checked by SmacOptions
        super().__init__(EmbeddedSmac(find(map_name), read_options(SmacOptions, options), 1), masked=True)

    def restarted(self) -> Frame:
        return self._env.restart(np.ones(1, np.bool_))

    def info(self, moved: Transition) -> dict[str, Any]:
        return {"battle_won": moved.won is not None and bool(moved.won[0])}
