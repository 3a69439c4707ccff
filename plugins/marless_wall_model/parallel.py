"""One channel as a parallel environment of PettingZoo.

    from marless_wall_model.parallel import parallel_env
    env = parallel_env(state="llwm", grid="S")

Each agent on the wall chooses the factor by which its stress changes. The global state is the wall stress of every
agent, by the true mean.
"""

from __future__ import annotations

from typing import Any

from marless.core.errors import SpecError, unknown_name
from marless.learning.envs.base import Frame, Transition
from marless.learning.envs.pettingzoo.view import BatchedView
from marless.learning.envs.registry import read_options
from marless_wall_model.env import WallModel
from marless_wall_model.options import WallModelOptions
from marless_wall_model.sensing import STATE_SIZES, State


class ChannelParallelEnv(BatchedView[WallModel]):
    """One flow at a time."""

    metadata = {"name": "marless_wall_model", "render_modes": ["rgb_array"], "is_parallelizable": True}  # noqa: RUF012

    def __init__(self, state: State = "llwm", render_mode: str | None = None, **options: Any) -> None:
        # Any: checked by WallModelOptions
        if state not in STATE_SIZES:
            raise SpecError(unknown_name("state", str(state), STATE_SIZES))
        env = WallModel(state, read_options(WallModelOptions, options), 1)
        super().__init__(env, masked=False, render_mode=render_mode, least_state=0.0)

    def restarted(self) -> Frame:
        return self._env.restart()

    def info(self, moved: Transition) -> dict[str, Any]:
        return {"blown_up": moved.broken is not None and bool(moved.broken[0])}

    def render(self) -> Any:  # Any: uint8 [height, width, 3], or None
        """A slice of the flow as pixels, if `render_mode` is rgb_array."""
        return self._env.picture() if self.render_mode == "rgb_array" and self._frame is not None else None


parallel_env = ChannelParallelEnv
"""The name by which PettingZoo's users look for it."""
