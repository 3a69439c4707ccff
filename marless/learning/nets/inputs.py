"""The inputs of a net: the observation and, optionally, the last action and the agent's id. NumPy only, used by actors
and learners.

Rows of an input, in this order: the observation [O], or the last images, the oldest first, scaled to
[0, 1]; the last action [A], one-hot or its components as chosen, 0 at an episode's start and where the agent comes
back; the agent's id, one-hot. Shapes: N agents of a class, B copies or M samples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from marless.core.errors import CorruptError, shown
from marless.core.limits import MAX_FRAMES
from marless.learning.envs.base import ActionArray, AgentClass, BoolArray, Box, Discrete, FloatArray, ObsArray
from marless.learning.nets.net_kind import InputShape

if TYPE_CHECKING:  # at run time it would import pydantic into actors
    from marless.learning.nets.model import ModelSpec

_OBS, _LAST_ACTION, _ID = "obs", "last_action", "id"
FRAMES = "frames"
"""Metadata key of policy states whose nets read several images; its value is their number."""
WHITE = np.float32(255)
"""The byte of an image that is 1 for a net; nets read a byte v as v / 255."""


@dataclass(frozen=True)
class Inputs:
    """Which inputs the nets of an agent class have."""

    last_action: bool = False
    known: tuple[str, ...] = ()
    """All agents of the class, in the order of the one-hot id; () if the id is not an input."""
    frames: int = 1
    """How many images nets read: the last ones of the agent. Where it has seen fewer since it began, its first one is
    repeated, as Gymnasium's FrameStackObservation does."""

    @classmethod
    def of(cls, agents: AgentClass, model: ModelSpec, *, last_action: bool = False) -> Inputs:
        """The inputs of a class's nets in a job; an agent that is alone in its class needs no id."""
        known = agents.agents if model.agent_id and len(agents.agents) > 1 else ()
        return cls(last_action, known, 1 if agents.image is None else model.frames)

    @classmethod
    def parse(cls, metadata: Mapping[str, str]) -> Inputs:
        """The inverse of `metadata`; raises CorruptError for invalid metadata."""
        first, *more = metadata.get("inputs", _OBS).split("+")
        try:
            known = json.loads(metadata["ids"]) if _ID in more else []
        except (KeyError, TypeError, ValueError, RecursionError):
            known = None
        known = known if isinstance(known, list) and all(isinstance(agent, str) for agent in known) else None
        frames = _frames(metadata)
        found = cls(_LAST_ACTION in more, tuple(known or ()), frames)
        # Compared with what `metadata` would write, so that unknown, repeated and reordered inputs are refused, too.
        if known is None or first != _OBS or more != found._names():
            raise CorruptError(
                f"policy state: inputs {metadata.get('inputs')!r:.80} with ids {metadata.get('ids')!r:.80}"
            )
        return found

    def metadata(self) -> dict[str, str]:
        """The inputs as metadata of a policy state; {} if observations are the only input."""
        names = self._names()
        ids = {"ids": json.dumps(self.known)} if self.known else {}
        frames = {FRAMES: f"{self.frames}"} if self.frames > 1 else {}
        return {"inputs": "+".join([_OBS, *names]), **ids, **frames} if names else frames

    def extra(self, action: Discrete | Box) -> int:
        """Number of rows besides the observation."""
        return (action.n if self.last_action else 0) + len(self.known)

    def stacked(self, agent_class: AgentClass) -> AgentClass:
        """The class as if its agents observed all images that nets read as the channels of one."""
        if self.frames == 1 or agent_class.image is None:
            return agent_class
        channels, height, width = agent_class.image
        image = (self.frames * channels, height, width)
        return replace(agent_class, obs_size=self.frames * agent_class.obs_size, image=image)

    def size(self, agent_class: AgentClass) -> int:
        """Number of rows, without the row of ones."""
        return self.stacked(agent_class).obs_size + self.extra(agent_class.action)

    def shape(self, agent_class: AgentClass) -> InputShape:
        """The same with what is known of the observation's form."""
        seen = self.stacked(agent_class)
        return InputShape(self.size(agent_class), seen.image, seen.entities)

    def ids(self, agents: Sequence[str]) -> FloatArray:
        """One-hot ids of agents, float32 [N, known]; raises CorruptError for an unknown agent."""
        for agent in agents:
            if agent not in self.known:
                raise CorruptError(f"the policy tells {', '.join(self.known)} apart by their ids; it knows no {agent}")
        ids_NK = np.zeros((len(agents), len(self.known)), np.float32)
        for row, agent in enumerate(agents):
            ids_NK[row, self.known.index(agent)] = 1
        return ids_NK

    def build(
        self,
        agent_class: AgentClass,
        obs_NMO: ObsArray,
        last_action: ActionArray | None = None,
        first: BoolArray | None = None,
    ) -> FloatArray:
        """Inputs of a class's nets, feature-major with a last row of ones, float32 [N, size + 1, M].

        `last_action`, int32 [N, M] or float32 [N, M, A], has each agent's action in the step before; it is ignored
        where `first`, [M] or [N, M], is true: where the agent begins anew.
        """
        agents, samples, _ = obs_NMO.shape
        input_NIM = np.empty((agents, self.size(agent_class) + 1, samples), np.float32)
        self.write(input_NIM, agent_class, obs_NMO, last_action, first)
        return input_NIM

    def write(
        self,
        input_NIM: FloatArray,
        agent_class: AgentClass,
        obs_NMO: ObsArray,
        last_action: ActionArray | None = None,
        first: BoolArray | None = None,
    ) -> None:
        """Write the inputs that `build` returns to `input_NIM`."""
        seen = obs_NMO.shape[2]
        write_observation(input_NIM[:, :seen], obs_NMO)
        if self.last_action and last_action is not None and first is not None:
            rows_NAM = input_NIM[:, seen : seen + agent_class.action.n]
            write_action(rows_NAM, last_action)
            # A view with samples before components, in which a mask [N, M] selects whole actions;
            # assigning writes to the input.
            rows_NAM.swapaxes(1, 2)[np.broadcast_to(first, obs_NMO.shape[:2])] = 0
        if self.known:
            input_NIM[:, -1 - len(self.known) : -1] = self.ids(agent_class.agents)[:, :, None]
        input_NIM[:, -1] = 1

    def _names(self) -> list[str]:
        return [_LAST_ACTION] * self.last_action + [_ID] * bool(self.known)


def _frames(metadata: Mapping[str, str]) -> int:
    text = metadata.get(FRAMES, "1")
    if text not in map(str, range(1, MAX_FRAMES + 1)):
        raise CorruptError(f"policy state: {FRAMES} is {shown(text)}, expected 1 to {MAX_FRAMES}")
    return int(text)


def write_observation(rows_NOB: FloatArray, obs_NBO: ObsArray) -> None:
    """Write observations as rows of an input: float32 as it is, the bytes of images scaled to [0, 1]."""
    if obs_NBO.dtype == np.uint8:
        np.divide(obs_NBO.transpose(0, 2, 1), WHITE, out=rows_NOB)
    else:
        rows_NOB[:] = obs_NBO.transpose(0, 2, 1)


def write_action(rows_NAB: FloatArray, action: ActionArray) -> None:
    """Write actions, int32 [N, B] or float32 [N, B, A], as rows of an input."""
    if action.ndim == 3:
        rows_NAB[:] = action.transpose(0, 2, 1)
    else:
        np.equal(action[:, None], np.arange(rows_NAB.shape[1], dtype=np.int32)[:, None], out=rows_NAB)
