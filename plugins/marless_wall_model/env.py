"""B turbulent channels behind the batched protocol, whose wall stress is set by agents on their walls.

Bae and Koumoutsakos 2022. An agent multiplies its own wall stress by its action and earns how much nearer to the true
mean stress, 1, this has brought it. The flow then runs for one interval under these stresses, bilinear between agents.

Suffixes: N agents, B flows, O observed numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError
from marless.learning.envs.base import (
    ActionArray,
    AgentClass,
    Arrays,
    BoolArray,
    Box,
    EnvSpaces,
    FloatArray,
    Frame,
    Transition,
    Truncatable,
    load_generator,
    save_generator,
    saved,
)
from marless_wall_model.channel import Channel
from marless_wall_model.flow import AgentFlow, begun
from marless_wall_model.options import WallModelOptions
from marless_wall_model.picturing import Pixels, drawn
from marless_wall_model.placing import AgentGrid, Reals
from marless_wall_model.sensing import STATE_SIZES, State
from marless_wall_model.snapshots import Recipe, Snapshot, keep_blown_up, log, snapshots_of


class WallModel(Truncatable):
    """Independent flows, each with its own Reynolds number, agents' heights and wall stresses.

    The global state is every agent's wall stress, which agents cannot know: it is the unit of what they observe.
    """

    def __init__(self, state: State, options: WallModelOptions, batch: int) -> None:
        self.options, self.batch = options, batch
        self.placing = AgentGrid(options.geometry, options.spacing)
        names = self.placing.names
        action = Box((1 - options.change,), (1 + options.change,))
        self.spaces = EnvSpaces(
            classes=(AgentClass("wall", names, STATE_SIZES[state], action),),
            state_size=len(names),
            max_steps=options.decisions,
            rewards="cooperative",
        )
        self.blown_up = 0
        """Flows that have blown up since this environment was made."""
        self._state: State = state
        self._recipes = [Recipe.of(options, re_tau) for re_tau in options.re_tau]
        self._snapshots: dict[int, list[Snapshot]] = {}
        self._cut_B = np.zeros(batch, np.bool_)
        self._last_picture: Pixels | None = None

    def reset(self, seed: int) -> Frame:
        """Start an episode in every flow; the first reset reads the snapshots, or makes them."""
        self._rng = np.random.default_rng(seed)
        self._steps_B = np.zeros(self.batch, np.int64)
        self._re_B = np.zeros(self.batch, np.int64)
        self._cut_B[:] = False
        self._last_picture = None
        self._flows = [self._begun(b) for b in range(self.batch)]
        self._obs_NBO = np.stack([self._observed(flow) for flow in self._flows], axis=1)
        return self._frame()

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        reward_NB = np.stack([self._act(b, actions[0][:, b, 0]) for b in range(self.batch)], axis=1)
        broken_B = np.array([flow.channel.blown_up for flow in self._flows])
        self._obs_NBO = self._obs_NBO.copy()
        for b in np.flatnonzero(~broken_B):  # of a flow that has blown up, the last observation counts
            self._obs_NBO[:, b] = self._observed(self._flows[b])
        self._steps_B += 1
        truncated_B = (self._steps_B == self.options.decisions) | self._cut_B | broken_B
        self._cut_B[:] = False
        final = frame = self._frame()
        if truncated_B.any():
            frame = self._begun_anew(truncated_B, broken_B)
        nobody_NB = np.zeros(reward_NB.shape, np.bool_)
        return Transition(frame, final, (reward_NB,), (nobody_NB,), truncated_B, truncated_B.copy(), broken=broken_B)

    def restart(self) -> Frame:
        """Begin a new episode in every flow, without a new seed."""
        every_B = np.ones(self.batch, np.bool_)
        return self._begun_anew(every_B, ~every_B)

    @property
    def flows(self) -> list[AgentFlow]:
        """The flows as they are now, for controllers and statistics."""
        return self._flows

    def picture(self, *, ended: bool = False) -> Pixels:
        return self._last_picture if ended and self._last_picture is not None else drawn(self._flows[0].channel)

    def save(self) -> Arrays:
        flows = [flow.channel.arrays() for flow in self._flows]
        return {f"flow/{name}": np.stack([flow[name] for flow in flows]) for name in flows[0]} | {
            "stress": np.stack([flow.stress_N for flow in self._flows]),
            "heights": np.stack([flow.height_N for flow in self._flows]),
            "reynolds": self._re_B.copy(),
            "steps": self._steps_B.copy(),
            "random": save_generator(self._rng),
        }

    def load(self, arrays: Arrays) -> Frame:
        shape = (self.batch, len(self.placing.names))
        stress_BN = saved(arrays, "stress", "float64", shape)
        height_BN = saved(arrays, "heights", "float64", shape)
        self._re_B = _numbers(arrays, "reynolds", self.batch, len(self._recipes))
        self._steps_B = _numbers(arrays, "steps", self.batch, self.options.decisions)
        self._rng = load_generator(saved(arrays, "random", "uint64", (6,)))
        self._cut_B[:] = False
        self._flows = [
            AgentFlow(self._loaded(arrays, b), self.placing, height_BN[b].copy(), stress_BN[b].copy())
            for b in range(self.batch)
        ]
        self._obs_NBO = np.stack([self._observed(flow) for flow in self._flows], axis=1)
        return self._frame()

    def _act(self, b: int, action_N: NDArray[np.generic]) -> Reals:
        """Let the agents of one flow act, and the flow run on; returns what each earns, 0 if it blows up."""
        flow, change = self._flows[b], self.options.change
        missed_N = np.abs(1 - flow.stress_N)
        flow.multiply(np.clip(action_N.astype(np.float64), 1 - change, 1 + change))
        misses_N = np.abs(1 - flow.stress_N)
        flow.run(self.options.interval)
        if flow.channel.blown_up:
            return np.zeros_like(misses_N)
        earned_N: Reals = missed_N - misses_N + self.options.bonus * (misses_N < self.options.bonus_within)
        return earned_N

    def _begun(self, b: int) -> AgentFlow:
        k = int(self._rng.integers(len(self._recipes)))
        self._re_B[b] = k
        if k not in self._snapshots:
            self._snapshots[k] = snapshots_of(self._recipes[k])
        return begun(self.options, self.placing, self._recipes[k].channel(), self._snapshots[k], self._rng)

    def _begun_anew(self, ended_B: BoolArray, broken_B: BoolArray) -> Frame:
        self._obs_NBO = self._obs_NBO.copy()
        if ended_B[0]:
            self._last_picture = drawn(self._flows[0].channel)
        for b in map(int, np.flatnonzero(ended_B)):
            if broken_B[b]:
                self._record_blown_up(b)
            self._flows[b] = self._begun(b)
            self._obs_NBO[:, b] = self._observed(self._flows[b])
        self._steps_B[ended_B] = 0
        return self._frame()

    def _record_blown_up(self, b: int) -> None:
        """Count a flow that has blown up, and keep its state; the first one is logged."""
        self.blown_up += 1
        recipe = self._recipes[self._re_B[b]]
        about = {"re_tau": recipe.re_tau, "decision": int(self._steps_B[b]), "subgrid": recipe.subgrid}
        kept = keep_blown_up(self._flows[b].channel.arrays(), about)
        if self.blown_up == 1:
            log(
                "flow.blown_up",
                **about,
                kept=str(kept),
                help="its episode ends and does not count; later ones are not logged",
            )

    def _loaded(self, arrays: Arrays, b: int) -> Channel:
        """The channel of a flow from a save."""
        channel: Channel = self._recipes[self._re_B[b]].channel()
        own = channel.arrays()
        channel.load(
            {
                name: saved(arrays, f"flow/{name}", own[name].dtype.name, (self.batch, *own[name].shape))[b]
                for name in own
            }
        )
        return channel

    def _observed(self, flow: AgentFlow) -> FloatArray:
        return flow.sense().observed(self._state)

    def _frame(self) -> Frame:
        state = np.stack([flow.stress_N for flow in self._flows]).astype(np.float32)
        return Frame(obs=(self._obs_NBO,), state=state)


def _numbers(arrays: Arrays, name: str, batch: int, count: int) -> NDArray[np.int64]:
    """Whole numbers of a save, int64 [batch], from 0 to below `count`; raises CorruptError."""
    found = saved(arrays, name, "int64", (batch,))
    if not ((found >= 0) & (found < count)).all():
        raise CorruptError(f"saved environment: {name} holds numbers outside 0 to {count - 1}")
    return found.copy()
