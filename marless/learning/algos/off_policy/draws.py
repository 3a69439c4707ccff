"""Draws of batches from the replay buffer; shapes are those of `marless.learning.algos.off_policy.batches`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.learning.algos.off_policy.batches import Batch, ClassBatch, Gains
from marless.learning.algos.off_policy.config import OffPolicyConfig
from marless.learning.algos.training.observed import STATE, ObservationStatistics
from marless.learning.algos.training.rewards import RewardMoments
from marless.learning.algos.training.turns import Rows, last_turns, next_turns, open_steps, turn_times
from marless.learning.algos.training.uploads import Uploads
from marless.learning.data.frames import ReplaySchema
from marless.learning.data.replay_buffer import ReplayBuffer
from marless.learning.data.trajectory import returned
from marless.learning.envs.base import ActionArray, AgentClass, BoolArray, Discrete, FloatArray, ObsArray
from marless.learning.nets.inputs import Inputs

_AT_ONCE = 2**23
"""Maximum number of bytes of frames that are gathered at once, for several batches. Gathering batch by batch is much
slower, because every gradient step evicts the CPU caches."""
_CACHED = 512
"""Number of frames that are transposed to columns at once."""


@dataclass(frozen=True)
class _Frames:
    """The frames of a draw, and the relations between them."""

    frame: Rows
    """[F], rows of T + 1 time steps of E columns; of several batches, one after another."""
    then: Rows
    """[n, M], the frames whose rewards a sample sums: its own and, for n-step targets of single env steps, those after
    it as long as they are `taken`."""
    steps: int
    """T."""
    follows: BoolArray
    """[T, E]; see `Batch`."""
    valid: FloatArray | None
    """[M]; see `Batch`."""
    taken: BoolArray | None = None
    """[n, M]: false beyond the segment's end, and after a step in which an agent was truncated; None if n = 1."""
    first: Rows | None = None
    """[E], first frames of whole episodes, or of parts of them; None for single env steps."""
    width: int = 0
    """Columns of a batch of single env steps, of which there may be several."""


@dataclass(frozen=True)
class _Own:
    """The frames of a draw for the agents of one class: `_Frames`, unless some of them wait; see `turns`."""

    frame: Rows
    """[F], or [F, N]."""
    act: Rows
    """[M] or [M, N], the frames whose actions count."""
    then: Rows
    """[n, M]."""
    taken: BoolArray | None
    """[n, M] or [n, N, M]."""
    alive: BoolArray | None
    """[F, N], samples that count; None: all."""
    waits: BoolArray | None = None
    """[M, N], agents that wait, and whose last choice stands; None where agents have values of their own."""
    after: Rows | None = None
    """[M, N], likewise: the frames of their last turns in the successors."""
    keeps: BoolArray | None = None
    """[M, N], likewise: who waits in the successors."""
    turn: Rows | None = None
    """[F, N], see `ClassBatch`."""
    waiting: BoolArray | None = None
    """[F, N], `waits` of `ClassBatch`."""
    legal: Rows | None = None
    """[F, N], the frames whose legal actions count; None: those of `frame`."""


@dataclass(frozen=True, kw_only=True)
class BatchSource:
    """Draws batches from a replay buffer."""

    replay: ReplayBuffer
    schema: ReplaySchema
    """Schema of the replay buffer."""
    classes: tuple[tuple[int, AgentClass, Inputs], ...]
    """The classes of the scope: index, class, and inputs of its nets."""
    config: OffPolicyConfig
    longest: int | None
    """Maximum number of steps of an episode; None if unknown."""
    team: bool
    """True if batches have the rewards of the team, False if those of each agent."""
    together: bool = False
    """True if the agents of an env step are valued together, by a mixer or by joint critics."""
    with_dead_agents_rewarded: bool
    """True if agents have values after their death, as they still earn the team's reward."""
    units: int
    """Units of the nets' memory; 0 if they have none."""
    statistics: ObservationStatistics | None = None
    """By which observations and states are normalised, as they are when a batch is drawn; None: they are not."""
    device: torch.device

    @cached_property
    def _fields(self) -> frozenset[str]:
        """Names of the fields of a frame."""
        return frozenset(self.schema.fields())

    @cached_property
    def _uploads(self) -> Uploads:
        return Uploads(self.device)

    @cached_property
    def _bytes_of_frame(self) -> int:
        """Bytes of a frame as nets read it: four for each of an image's."""
        read = sum(len(a.agents) * a.obs_size * (4 * i.frames - 1) for _, a, i in self.classes if a.image is not None)
        return self.schema.frame_bytes + read

    def draws(
        self, rng: np.random.Generator, count: int, times: int, moments: RewardMoments, beta: float
    ) -> Iterator[Sequence[Batch]]:
        """Draw `times` batches of `count` env steps or episodes each, by the config's unit, in lists of one or more.

        Batches are drawn when the first of them is requested, with the priorities of that time: for prioritised draws
        `priorities_every` of them. `beta` is the exponent of importance weights.
        """
        of_unit = self._of_episodes if self.config.replay.unit == "episodes" else self._of_steps
        return of_unit(rng, count, times, moments, beta)

    def _of_episodes(
        self, rng: np.random.Generator, count: int, times: int, moments: RewardMoments, beta: float
    ) -> Iterator[Sequence[Batch]]:
        """The draws of episodes, one batch at a time, because each has a length of its own."""
        uniform, every = self.config.replay.draw == "uniform", self.config.replay.priorities_every
        for begun in range(0, times, every):
            for draw in [self.replay.draw_episodes(rng, count, beta) for _ in range(min(times - begun, every))]:
                frames = self._whole(draw.first, draw.length)
                importance = None if uniform else np.tile(draw.weight, frames.steps)
                yield [self._batch(draw.first, frames, moments, importance)]

    def _of_steps(
        self, rng: np.random.Generator, count: int, times: int, moments: RewardMoments, beta: float
    ) -> Iterator[Sequence[Batch]]:
        """The draws of env steps; as many batches as `_AT_ONCE` allows are gathered together."""
        uniform, most = self.config.replay.draw == "uniform", max(_AT_ONCE // (2 * count * self._bytes_of_frame), 1)
        every = most if uniform else self.config.replay.priorities_every
        for begun in range(0, times, every):
            batches = min(times - begun, every)
            if uniform:
                row, weight = self.replay.draw(rng, batches * count).row, None
            else:
                drawn = [self.replay.draw(rng, count, beta) for _ in range(batches)]
                row = np.concatenate([draw.row for draw in drawn])
                weight = np.concatenate([draw.weight for draw in drawn])
            for first in range(0, batches * count, most * count):
                some = slice(first, first + most * count)
                importance = None if weight is None else weight[some]
                yield list(self._batch(row[some], self._single(row[some], count), moments, importance).parts(count))

    def _single(self, row_M: Rows, width: int) -> _Frames:
        """Single env steps with their successor n steps later, or at the segment's end; in batches of `width`.

        The successor is one for all agents: where one is truncated before, the sums of all end with that step.
        """
        then, taken, after_M = [row_M], [np.ones(len(row_M), np.bool_)], row_M + 1
        for _ in range(self.config.n_step - 1):
            # A sample that cannot go on stays at its frame: every sample has n rows, of which
            # `taken` tells those that count.
            taken.append(taken[-1] & ~self._is("last", after_M) & ~self._truncated(after_M - 1))
            then.append(after_M)
            after_M = after_M + taken[-1]
        follows = np.zeros((1, len(row_M)), np.bool_)
        # Successors stand beside the samples of their own batch, so that several batches are cut apart as views.
        frame = np.stack([row_M.reshape(-1, width), after_M.reshape(-1, width)], axis=1)
        summed = np.stack(taken) if len(taken) > 1 else None
        return _Frames(frame.ravel(), np.stack(then), 1, follows, None, summed, width=width)

    def _truncated(self, row_M: Rows) -> BoolArray:
        """[M]: an agent left in this step without terminating; never so for a team, whose value goes on."""
        found_M = np.zeros(len(row_M), np.bool_)
        for k, _, _ in self.classes:
            if self._may_leave(k) and not self.team:
                left_MN = self._there(k, row_M) & ~self._there(k, row_M + 1)
                found_M |= (left_MN & ~self._is(f"terminated/{k}", row_M)).any(axis=1)
        return found_M

    def _whole(self, first_E: Rows, length_E: Rows) -> _Frames:
        """Whole episodes, padded with their last frame.

        Where a part of an episode starts from a memory that older weights computed, its first steps only bring the
        memory up to date: burn-in (Kapturowski et al. 2019, §3).
        """
        steps = _padded(int(length_E.max()), self.longest)
        time_T1 = np.arange(steps + 1)[:, None]
        # The frame after the last step is the episode's own view of where it ended or was
        # cut, with which padding is filled.
        frame_TE = first_E + np.minimum(time_T1, length_E)
        burnt_E = np.zeros_like(length_E)
        if self.units and self.schema.memory:
            burnt_E = np.where(self._is("resumed", first_E), np.minimum(self.config.replay.burn_in, length_E // 2), 0)
        valid_TE = (time_T1[:-1] < length_E) & (time_T1[:-1] >= burnt_E)
        valid = None if valid_TE.all() else valid_TE.astype(np.float32).ravel()
        return _Frames(
            frame_TE.ravel(), frame_TE[:-1].reshape(1, -1), steps, time_T1[1:] < length_E, valid, None, first_E
        )

    def _batch(self, row: Rows, frames: _Frames, moments: RewardMoments, importance_M: FloatArray | None) -> Batch:
        self._uploads.begin()
        own = [self._own(k, frames) for k, _, _ in self.classes]
        classes = zip(self.classes, own, strict=True)
        state_1SF = None
        if self.schema.with_state:
            columns_1SF = np.ones((1, self.schema.spaces.state_size + 1, len(frames.frame)), np.float32)
            for some in _pieces(len(frames.frame)):
                columns_1SF[0, :-1, some] = self._numbers("state", frames.frame[some]).T
            if self.statistics is not None:
                self.statistics.write(columns_1SF[:, :-1], STATE)
            state_1SF = self._to(columns_1SF)
        return Batch(
            classes=tuple(self._class_batch(k, agents, inputs, frames, mine) for (k, agents, inputs), mine in classes),
            gains=self._gains(frames, own, moments),
            steps=frames.steps,
            width=len(row),
            importance=None if importance_M is None else self._to(importance_M),
            valid=None if frames.valid is None else self._to(frames.valid),
            follows=self._to(frames.follows),
            state=state_1SF,
            row=row,
        )

    def _own(self, k: int, frames: _Frames) -> _Own:
        """The frames of the agents of a class: those of all, unless some of them wait."""
        alive_FN = self._is(f"alive/{k}", frames.frame) if self._may_leave(k) else None
        common = _Own(frames.frame, frames.then[0], frames.then, frames.taken, alive_FN)
        waits_FN = self._is(f"waits/{k}", frames.frame) if f"waits/{k}" in self._fields else None
        if waits_FN is None or not waits_FN.any():
            return common
        if frames.first is not None:
            over_time = self._held_over_time if self.together else _counted
            return over_time(common, frames, waits_FN)
        return self._held(k, frames, waits_FN) if self.together else self._chained(k, frames, waits_FN)

    def _chained(self, k: int, frames: _Frames, waits_FN: BoolArray) -> _Own:
        """Samples from each agent's turn to its next turn; open turns do not count."""
        width, agents = frames.width, waits_FN.shape[1]
        now_M, after_M = (part.ravel() for part in frames.frame.reshape(-1, 2, width).swapaxes(0, 1))
        taken_nM = np.ones_like(frames.then, np.bool_) if frames.taken is None else frames.taken
        waits, last = partial(self._is, f"waits/{k}"), partial(self._is, "last")
        ahead = next_turns(frames.then, taken_nM, after_M, waits=waits, last=last)
        now_MN = np.repeat(now_M[:, None], agents, axis=1)
        parts = [part.reshape(-1, width, agents) for part in (now_MN, ahead.after)]
        frame_FN = np.stack(parts, axis=1).reshape(-1, agents)
        alive_FN = self._flags(f"alive/{k}", frame_FN) if self._may_leave(k) else np.ones_like(waits_FN)
        silent = np.stack([ahead.open.reshape(parts[0].shape), np.zeros(parts[0].shape, np.bool_)], axis=1)
        counts_FN = alive_FN & ~silent.reshape(-1, agents) & ~self._flags(f"waits/{k}", frame_FN)
        return _Own(frame_FN, frames.then[0], ahead.then, ahead.taken, counts_FN)

    def _held(self, k: int, frames: _Frames, waits_FN: BoolArray) -> _Own:
        """The observations and actions of the last turns of agents that wait."""
        waits, first = partial(self._is, f"waits/{k}"), partial(self._is, "first")
        frame_FN = last_turns(frames.frame, waits=waits, first=first)
        # An agent without a turn so far still waits at the frame that was found, the
        # segment's first: it counts nothing.
        alive_FN = self._flags(f"alive/{k}", frame_FN) if self._may_leave(k) else ~self._flags(f"waits/{k}", frame_FN)
        now_MN, after_MN = (part.reshape(-1, part.shape[-1]) for part in _halves(frame_FN, frames.width))
        waits_MN, waits_after_MN = (part.reshape(-1, part.shape[-1]) for part in _halves(waits_FN, frames.width))
        return _Own(frame_FN, now_MN, frames.then, frames.taken, alive_FN, waits_MN, after_MN, waits_after_MN)

    def _held_over_time(self, common: _Own, frames: _Frames, waits_FN: BoolArray) -> _Own:
        """The same for episodes, whose nets see all steps: the actions of last turns, and when those were."""
        steps, agents = frames.steps, waits_FN.shape[1]
        frame_TEN = np.repeat(frames.frame.reshape(steps + 1, -1, 1), agents, axis=2)
        turn_TEN = turn_times(waits_FN.reshape(frame_TEN.shape))
        held_TEN = np.take_along_axis(frame_TEN, turn_TEN, axis=0)
        acts_FN = ~waits_FN if common.alive is None else common.alive
        acted_TEN = np.take_along_axis(acts_FN.reshape(frame_TEN.shape), turn_TEN, axis=0)
        now, after = (part.reshape(-1, agents) for part in (held_TEN[:-1], held_TEN[1:]))
        width = frame_TEN.shape[1]
        return replace(
            common,
            legal=held_TEN.reshape(-1, agents),
            act=now,
            alive=acted_TEN.reshape(-1, agents),
            waits=waits_FN[:-width],
            after=after,
            keeps=waits_FN[width:],
            turn=turn_TEN.reshape(-1, agents),
        )

    def _class_batch(self, k: int, agents: AgentClass, inputs: Inputs, frames: _Frames, own: _Own) -> ClassBatch:
        discrete = isinstance(agents.action, Discrete)
        action = self._each(f"action/{k}", own.act)
        legal = own.frame if own.legal is None else own.legal
        legal_FNA = self._each(f"mask/{k}", legal) if f"mask/{k}" in self._fields else None
        kept = None if own.after is None else self._each(f"action/{k}", own.after)
        if discrete and kept is not None and own.keeps is not None:
            legal_FNA = _only(kept, own.keeps, agents.action.n, legal_FNA, frames)
        standing_NAM = acts_NM = None
        if not discrete and kept is not None and own.keeps is not None:
            standing_MNA = np.where(own.keeps[..., None], kept, np.nan).astype(np.float32)
            standing_NAM = self._to(standing_MNA.transpose(1, 2, 0))
        if own.waits is not None and own.alive is not None:
            now = own.alive[: len(own.waits)] if own.turn is not None else _halves(own.alive, frames.width)[0]
            acts_NM = self._to((now.reshape(own.waits.shape) & ~own.waits).T.astype(np.float32))
        memory_NHE = None
        if self.units and self.schema.memory and frames.first is not None:
            # Its last numbers are the last action, see `_features`.
            memory_NHE = self._to(self._numbers(f"memory/{k}", frames.first)[:, :, : self.units].transpose(1, 2, 0))
        return ClassBatch(
            features=self._to(self._features(k, agents, inputs, own.frame)),
            action=self._to(action.T[:, None].astype(np.int64) if discrete else action.transpose(1, 2, 0)),
            legal=None if legal_FNA is None else self._to(legal_FNA.transpose(1, 2, 0)),
            alive=None if own.alive is None else self._to(own.alive.T.astype(np.float32)),
            acts=acts_NM,
            kept=standing_NAM,
            waits=None if own.waiting is None else self._to(own.waiting.T.astype(np.float32)),
            turn=None if own.turn is None else self._to(own.turn.T[:, None]),
            returned=self._returned(k, frames),
            memory=memory_NHE,
        )

    def _may_leave(self, k: int) -> bool:
        """True if agents of the class may leave, and have no values then."""
        return f"alive/{k}" in self._fields and not self.with_dead_agents_rewarded

    def _returned(self, k: int, frames: _Frames) -> Tensor | None:
        if not self.units or f"alive/{k}" not in self._fields:
            return None
        there_FN = self._there(k, frames.frame)
        found_TEN = returned(there_FN.reshape(frames.steps + 1, -1, there_FN.shape[1]))
        return self._to(found_TEN.reshape(there_FN.shape).T[:, None])

    def _features(self, k: int, agents: AgentClass, inputs: Inputs, frame: Rows) -> FloatArray:
        input_NIF = np.empty((len(agents.agents), inputs.size(agents) + 1, len(frame)), np.float32)
        for some in _pieces(len(frame)):
            row = frame[some]
            obs_NFO = self._observations(k, agents, inputs, row)
            before, anew = self._before(k, agents, row) if inputs.last_action else (None, None)
            inputs.write(input_NIF[:, :, some], agents, obs_NFO, before, anew)
            if self.statistics is not None:
                self.statistics.write(input_NIF[:, : agents.obs_size, some], k)
            if inputs.last_action and self.schema.memory and (resumed_F := self._is("resumed", row)).any():
                # Last actions of earlier rounds are no frames of the segment: they are kept with the nets' memory.
                seen = inputs.stacked(agents).obs_size
                last_NAF = input_NIF[:, seen : seen + agents.action.n, some]
                memory_RNH = self._numbers(f"memory/{k}", row[resumed_F])
                last_NAF[:, :, resumed_F] = memory_RNH[:, :, -agents.action.n :].transpose(1, 2, 0)
        return input_NIF

    def _observations(self, k: int, agents: AgentClass, inputs: Inputs, row: Rows) -> ObsArray:
        """[N, F, O] of frames [F], or [F, N] if agents have frames of their own; of images, the last ones of each."""
        rows = [row]
        if inputs.frames > 1 and row.ndim == 1 and f"alive/{k}" in self._fields:
            rows = [np.repeat(row[:, None], len(agents.agents), axis=1)]  # agents come back at times of their own
        while len(rows) < inputs.frames:
            rows.append(rows[-1] - self._goes_on(k, rows[-1]))
        parts = [self._each(f"obs/{k}", each).swapaxes(0, 1) for each in reversed(rows)]
        found: NDArray[Any] = np.concatenate(parts, axis=2) if len(parts) > 1 else parts[0]  # Any: of each dtype
        return found.astype(agents.obs_dtype, copy=False)

    def _goes_on(self, k: int, row: Rows) -> BoolArray:
        """Whether the frame before is one that the agent has seen since it began; in the shape of `row`."""
        begun = self._is("first", row)
        if self.schema.before:
            begun = begun & ~self._is("resumed", row)
        if f"alive/{k}" in self._fields:
            here, before = (self._flags(f"alive/{k}", each) for each in (row, row - ~begun))
            begun = begun | (here & ~before)
        return ~begun

    def _before(self, k: int, agents: AgentClass, row: Rows) -> tuple[ActionArray, BoolArray]:
        """The agents' actions in the step before; and [F] or [N, F], True where there is none, because agents begin
        anew. `row` is [F], or [F, N] if agents have frames of their own.
        """
        first = self._is("first", row)
        # A first frame has none before it: its own action is read instead, and ignored because the agent begins anew.
        before = self._each(f"action/{k}", row - ~first).swapaxes(0, 1)
        anew = first.T
        if f"alive/{k}" in self._fields:
            there_2FN = np.stack([self._flags(f"alive/{k}", each) for each in (row - ~first, row)])
            if f"waits/{k}" in self._fields:
                there_2FN |= np.stack([self._flags(f"waits/{k}", each) for each in (row - ~first, row)])
            anew = first.T | returned(there_2FN)[1].T
        if isinstance(agents.action, Discrete):
            return before.astype(np.int32, copy=False), anew
        return before.astype(np.float32, copy=False), anew

    def _gains(self, frames: _Frames, own: Sequence[_Own], moments: RewardMoments) -> tuple[Gains, ...]:
        got = [
            (_by_agent(self._numbers(f"reward/{k}", mine.then)), _by_agent(self._is(f"terminated/{k}", mine.then)))
            for (k, _, _), mine in zip(self.classes, own, strict=True)
        ]
        if self.team:
            gone = []
            for (k, _, _), (_, over_nNM) in zip(self.classes, got, strict=True):
                absent = ~_by_agent(self._there(k, frames.then)) if self._may_leave(k) else False
                gone.append((over_nNM | absent).all(axis=1, keepdims=True))
            everyone_n1M: BoolArray = np.logical_and.reduce(gone)
            reward_n1M = got[0][0][:, :1]  # all agents have the team's
            return (self._discounted(reward_n1M, everyone_n1M, frames.taken, moments, 0),)
        return tuple(
            self._discounted(reward_nNM, over_nNM, own[index].taken, moments, index)
            for index, (reward_nNM, over_nNM) in enumerate(got)
        )

    def _discounted(
        self, reward_nNM: FloatArray, over_nNM: BoolArray, taken: BoolArray | None, moments: RewardMoments, row: int
    ) -> Gains:
        """Discounted sums of rewards up to the terminal state, or as long as frames are `taken`, [n, M] or [n, N, M].

        With `reward_normalisation` values are shifted and scaled, see `RewardMoments`.
        """
        gamma, normalised = np.float32(self.config.gamma), self.config.reward_normalisation
        scale, centre = (moments.scale(row), moments.centre(row)) if normalised else (1.0, 0.0)
        gained_nNM = reward_nNM * np.float32(scale)
        reward_NM, discount_NM = gained_nNM[0], np.where(over_nNM[0], np.float32(0), gamma)
        later = zip(gained_nNM[1:], over_nNM[1:], () if taken is None else taken[1:], strict=True)
        for gained_NM, over_NM, summed in later:
            reward_NM += np.where(summed, discount_NM * gained_NM, np.float32(0))
            discount_NM *= np.where(summed, np.where(over_NM, np.float32(0), gamma), np.float32(1))
        # The successor's V is Q / scale + centre, and the centre is subtracted again for Q itself: what
        # remains is (discount − 1) · centre.
        reward_NM += (discount_NM - np.float32(1)) * np.float32(centre * scale)
        return Gains(self._to(reward_NM), self._to(discount_NM))

    def _numbers(self, name: str, row: Rows) -> FloatArray:
        return self.replay.take(name, row).astype(np.float32, copy=False)

    def _is(self, name: str, row: Rows) -> BoolArray:
        return self.replay.take(name, row).astype(np.bool_, copy=False)

    def _each(self, name: str, row: Rows) -> NDArray[np.generic]:
        """A field of all agents of a class in frames [F], or of each in frames of its own, [F, N]."""
        return self.replay.take(name, row) if row.ndim == 1 else self.replay.take_each(name, row)

    def _flags(self, name: str, row: Rows) -> BoolArray:
        return self._each(name, row).astype(np.bool_, copy=False)

    def _there(self, k: int, row: Rows) -> BoolArray:
        """[x, N]: the agents in the episode, whether they act or wait."""
        alive = self._is(f"alive/{k}", row)
        return alive | self._is(f"waits/{k}", row) if f"waits/{k}" in self._fields else alive

    def _to(self, array: NDArray[np.generic]) -> Tensor:
        return self._uploads.upload(array)


def _pieces(frames: int) -> Iterator[slice]:
    """Slices of all frames, so small that the first-level cache holds the rows until they are transposed."""
    return (slice(begun, begun + _CACHED) for begun in range(0, frames, _CACHED))


def _counted(common: _Own, frames: _Frames, waits_FN: BoolArray) -> _Own:
    """Whole episodes in which agents with values of their own wait: those steps and open turns do not count."""
    shape = (frames.steps + 1, -1, waits_FN.shape[1])
    alive_FN = np.ones_like(waits_FN) if common.alive is None else common.alive
    opened = open_steps(waits_FN.reshape(shape), frames.follows).reshape(-1, waits_FN.shape[1])
    counts_FN = alive_FN & ~waits_FN
    counts_FN[: len(opened)] &= ~opened
    return replace(common, alive=counts_FN, waiting=waits_FN)


def _halves(array: NDArray[Any], width: int) -> NDArray[Any]:  # Any: of each dtype
    """[F, …] of batches of single env steps → [2, batches, width, …]: the samples, and their successors."""
    return array.reshape(-1, 2, width, *array.shape[1:]).swapaxes(0, 1)


def _only(
    kept_MN: NDArray[Any], keeps_MN: BoolArray, actions: int, legal_FNA: NDArray[Any] | None, frames: _Frames
) -> BoolArray:
    """The legal actions, [F, N, A], if agents that wait can only keep to their last choice in the successors."""
    shape = (len(frames.frame), kept_MN.shape[1], actions)
    found_FNA = np.ones(shape, np.bool_) if legal_FNA is None else np.array(legal_FNA, np.bool_)
    after = _halves(found_FNA, frames.width)[1] if frames.first is None else found_FNA[-len(kept_MN) :]
    chosen = kept_MN[..., None] == np.arange(actions)
    wide = after.shape
    after[...] = np.where(keeps_MN.reshape(*wide[:-1], 1), chosen.reshape(wide), after)
    return found_FNA


def _by_agent(rows_nMN: NDArray[Any]) -> NDArray[Any]:  # Any: of each dtype
    """[n, M, N] → [n, N, M], contiguous along the columns."""
    return np.ascontiguousarray(rows_nMN.swapaxes(1, 2))


def _padded(length: int, longest: int | None) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 … not below `length`, at most `longest`.

    Few distinct lengths, because every net has buffers for each.
    """
    power = 1 << (length - 1).bit_length()
    rounded = power * 3 // 4 if power >= 4 and length <= power * 3 // 4 else power
    return min(rounded, longest) if longest is not None and longest >= length else rounded
