"""The base of all tasks: B copies of one MuJoCo model, stepped at once by MuJoCo's own threads.

Physics is computed in float64, as Gymnasium's v5 tasks compute it, and only what is observed is rounded to float32.
Suffixes: B copies, P positions, V velocities, O observed numbers, A controls.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError
from marless.learning.envs.base import (
    ActionArray,
    AgentClass,
    Arrays,
    BoolArray,
    Box,
    EnvSpaces,
    Frame,
    Transition,
    Truncatable,
    load_generator,
    save_generator,
    saved,
)
from marless_mujoco.options import TaskOptions
from marless_mujoco.picturing import Pixels, drawn

try:
    import mujoco
    from mujoco import batch as mujoco_batch
except ImportError as missing:
    raise SpecError(
        f"needs MuJoCo 4, which is not installed ({missing}); pip install 'marless[mujoco]', after `pip uninstall "
        "mujoco` if an older one is there"
    ) from None

Numbers = NDArray[np.float64]
Copies = slice | NDArray[np.intp]
"""Which copies: all of them, or those of these numbers."""
ALL = slice(None)
OptionsType = TypeVar("OptionsType", bound=TaskOptions)
_NO_STAGE = mujoco.mjtStage.mjSTAGE_NONE.value


class Task(Truncatable, ABC, Generic[OptionsType]):
    """A task for one agent; what it observes, earns and begins with is its subclass's."""

    MODEL: ClassVar[str]
    """The file in Gymnasium's wheel."""
    CONTACTS: ClassVar[bool] = False
    """True if it uses the forces of contacts, `contacts_BK`."""
    READS: ClassVar[tuple[str, ...]] = ()
    """The computed quantities that it reads. MuJoCo copies out those that were bound before a step: one that is bound
    later is all zeros until the next."""
    ABOVE: ClassVar[bool] = False
    """True if it is drawn from above, because it moves in the plane of x and y."""
    SHOWN_M: ClassVar[float] = 3.0
    """Metres that a picture shows from top to bottom."""
    parts: Mapping[str, Numbers]
    """The rewards of the last step by Gymnasium's names, float64 [B] each; they add up to what was earned."""
    _obs_BO: Numbers  # noqa: N815  # a shape suffix
    _place_BK: Numbers  # noqa: N815

    def __init__(self, options: OptionsType, batch: int) -> None:
        self.options = options
        self.batch = batch
        self.model = _model(self.MODEL)
        # Otherwise a thread has one set of computed quantities for all of its copies, and contacts could not be found
        # after the step.
        self.physics = mujoco_batch.Batch(self.model, batch, options.threads, persistent=self.CONTACTS)
        self.qpos_BP: Numbers = self.physics.bind("qpos")
        self.qvel_BV: Numbers = self.physics.bind("qvel")
        self._ctrl_BA: Numbers = self.physics.bind("ctrl")
        for name in self.READS:
            self.physics.bind(name)
        self.contacts_BK: Numbers = np.zeros((batch, 6 * self.model.nbody))
        """Torque and force of contacts on each body, float64 [B, 6 · bodies]; kept if `CONTACTS`."""
        self.seconds = self.model.opt.timestep * options.frame_skip
        self._data = mujoco.MjData(self.model)
        self._varied = {name: self.physics.expand(name) for name in _fields(options.randomise)}
        self._cut_B = np.zeros(batch, np.bool_)
        self._last_qpos_P: Numbers = np.zeros(0)
        self._begin(ALL, np.random.default_rng(0))
        self.spaces = self._spaces()

    def _spaces(self) -> EnvSpaces:
        low, high = self.model.actuator_ctrlrange.astype(np.float32).T.tolist()
        agents = AgentClass("agent", ("agent_0",), self._obs_BO.shape[1], Box(tuple(low), tuple(high)))
        return EnvSpaces((agents,), 0, self.options.max_episode_steps, rewards="cooperative")

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        self._steps_B = np.zeros(self.batch, np.int64)
        self._cut_B[:] = False
        self._begin(ALL, self._rng)
        return self._frame()

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        self._ctrl_BA[...] = actions[0][0]
        broken_B = self._advance()
        parts, over_B = self.outcome(self._place_BK)
        obs_BO, reward_B = self.observe(ALL), sum(parts.values(), np.zeros(self.batch))
        if broken_B.any():
            # MuJoCo has put these back to where models begin, or, after an error, to where they were before the step.
            # What they observed last and can be relied on is what they observed before it.
            obs_BO[broken_B], reward_B[broken_B], over_B[broken_B] = self._obs_BO[broken_B], 0.0, False
        self._obs_BO, self._place_BK, self.parts = obs_BO, self.place(ALL), parts
        self._steps_B += 1
        truncated_B = (self._steps_B == self.options.max_episode_steps) | self._cut_B | broken_B
        truncated_B &= ~over_B
        ended_B = over_B | truncated_B
        self._cut_B[:] = False
        final = frame = self._frame()
        if ended_B.any():
            if ended_B[0]:
                self._last_qpos_P = self.qpos_BP[0].copy()
            self._begin(np.flatnonzero(ended_B), self._rng)
            self._steps_B[ended_B] = 0
            frame = self._frame()
        return Transition(frame, final, (reward_B[None],), (over_B[None],), truncated_B, ended_B, broken=broken_B)

    def save(self) -> Arrays:
        """Besides the state, what is observed and where it was: they hold quantities that a state does not determine,
        because MuJoCo computes them before the last step of its integrator.
        """
        varied = {f"model/{name}": values.copy() for name, values in self._varied.items()}
        return varied | {
            "state": self.physics.state.copy(),
            "obs": self._obs_BO.copy(),
            "place": self._place_BK.copy(),
            "steps": self._steps_B.copy(),
            "random": save_generator(self._rng),
        }

    def load(self, arrays: Arrays) -> Frame:
        steps_B = saved(arrays, "steps", "int64", (self.batch,))
        if not ((steps_B >= 0) & (steps_B < self.options.max_episode_steps)).all():
            raise CorruptError(
                f"saved environment: steps holds numbers outside 0 to {self.options.max_episode_steps - 1}"
            )
        self._rng = load_generator(saved(arrays, "random", "uint64", (6,)))
        self._steps_B = steps_B.copy()
        self._obs_BO = saved(arrays, "obs", "float64", self._obs_BO.shape).copy()
        self._place_BK = saved(arrays, "place", "float64", self._place_BK.shape).copy()
        for name, values in self._varied.items():
            values[...] = saved(arrays, f"model/{name}", "float64", values.shape)
        if self._varied:
            self.physics.set_const()
        self.physics.state[...] = saved(arrays, "state", "float64", self.physics.state.shape)
        self._cut_B[:] = False
        return self._frame()

    def picture(self, *, ended: bool = False) -> Pixels:
        """See `marless.learning.envs.base.Pictured`."""
        self._data.qpos[:] = self._last_qpos_P if ended else self.qpos_BP[0]
        mujoco.mj_kinematics(self.model, self._data)
        return drawn(self.model, self._data, above=self.ABOVE, height_m=self.SHOWN_M)

    @abstractmethod
    def observe(self, copies: Copies) -> Numbers:
        """What the agent observes in these copies now, a new float64 [B, O]."""

    @abstractmethod
    def outcome(self, place_BK: Numbers) -> tuple[Mapping[str, Numbers], BoolArray]:
        """What the last step has earned, by Gymnasium's names, float64 [B] each; and bool [B]: the episode is over.

        `place_BK` is what `place` said before the step.
        """

    @abstractmethod
    def begun(self, count: int, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
        """Positions [count, P] and velocities [count, V] of as many episodes that begin."""

    def place(self, copies: Copies) -> Numbers:
        """Where these copies are, for rewards of moving; a new float64 [B, K], by default with K = 0."""
        return np.zeros((len(self.qpos_BP[copies]), 0))

    def _begin(self, copies: Copies, rng: np.random.Generator) -> None:
        ids = np.arange(self.batch)[copies]
        self.physics.reset(ids, stage=_NO_STAGE)
        if self._varied:
            self._vary(ids, rng)
        self.qpos_BP[copies], self.qvel_BV[copies] = self.begun(len(ids), rng)
        self.physics.forward(ids)
        self.contacts_BK[copies] = 0
        if isinstance(copies, slice):
            self._obs_BO, self._place_BK = self.observe(ALL), self.place(ALL)
        else:
            self._obs_BO[copies], self._place_BK[copies] = self.observe(copies), self.place(copies)

    def _vary(self, ids: NDArray[np.intp], rng: np.random.Generator) -> None:
        for name, width in self.options.randomise.items():
            usual = getattr(self.model, name)
            factors = rng.uniform(1 - width, 1 + width, (len(ids), *usual.shape))
            self._varied[name][ids] = usual * factors
            if name == "body_mass":
                self._varied["body_inertia"][ids] = self.model.body_inertia * factors[..., None]
        self.physics.set_const(ids)

    def _advance(self) -> BoolArray:
        """Step all copies; bool [B]: the physics of this copy has become unstable."""
        warned_B = self._warnings()
        broken_B = np.zeros(self.batch, np.bool_)
        try:
            self.physics.step(nstep=self.options.frame_skip)
        except mujoco_batch.SimulationError as error:
            broken_B[error.ids] = True
        if self.CONTACTS:
            self._find_contacts()
        return broken_B | (self._warnings() > warned_B)

    def _warnings(self) -> NDArray[np.intp]:
        """How often each copy had positions, velocities or accelerations that are no numbers, or are huge."""
        counts: NDArray[np.intp] = self.physics.warning[:, _UNSTABLE, 1].sum(axis=1, dtype=np.intp)
        return counts

    def _find_contacts(self) -> None:
        """Gymnasium asks MuJoCo for these forces after each env step; MuJoCo's batches do not compute them."""
        for b, row_K in enumerate(self.contacts_BK):
            self.physics.get_data(b, self._data)
            mujoco.mj_rnePostConstraint(self.model, self._data)
            row_K[:] = self._data.cfrc_ext.ravel()

    def _frame(self) -> Frame:
        return Frame(obs=(self._obs_BO.astype(np.float32)[None],))


_UNSTABLE = [int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{what}").value) for what in ("QPOS", "QVEL", "QACC")]


def _fields(randomised: Mapping[str, float]) -> list[str]:
    return [*randomised, *(["body_inertia"] if "body_mass" in randomised else [])]


def _model(file: str) -> Any:  # MuJoCo has no types
    """A model of Gymnasium's, of which nothing is imported: its own tasks need a display's libraries."""
    # What MuJoCo warns of is counted; it would write it into a file in the current directory.
    mujoco.set_mju_user_warning(lambda text: None)
    found = importlib.util.find_spec("gymnasium")
    if found is None or found.origin is None:
        raise SpecError("needs gymnasium, which has its models; pip install 'marless[mujoco]'")
    path = Path(found.origin).parent / "envs" / "mujoco" / "assets" / file
    if not path.exists():
        raise SpecError(f"needs a gymnasium with {file}, which has v5 tasks; pip install 'gymnasium>=1.4,<2'")
    return mujoco.MjModel.from_xml_path(str(path))
