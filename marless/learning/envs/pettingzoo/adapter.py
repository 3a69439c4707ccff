"""Steps copies of a PettingZoo environment behind the batched protocol; the package has the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import SpecError, told
from marless.learning.envs.base import (
    ActionArray,
    Box,
    Discrete,
    EnvSpaces,
    FloatArray,
    Frame,
    Transition,
)
from marless.learning.envs.gymnasium.calls import close_all, pixels, where_of, write_observation
from marless.learning.envs.gymnasium.images import WHOLE, ImageLook
from marless.learning.envs.gymnasium.masks import AUTO, LATE_MASK, MASK, MaskChoice
from marless.learning.envs.gymnasium.spaces import state_encoder
from marless.learning.envs.pettingzoo.agents import STEP, ParallelEnv, Seats, call_reset, call_step, reward_of
from marless.learning.envs.replayed import EpisodeLog, SavedByLog

TURNS = "turns"
"""Option that says whether agents may wait for their turn."""
Seen = tuple[Mapping[Any, Any], Mapping[Any, Any]]
"""Observations and infos by agent, as `reset` answers them."""


class _View:
    """The arrays of one frame."""

    def __init__(self, spaces: EnvSpaces, batch: int, seats: Seats) -> None:
        self._seats = seats
        shapes = [(len(c.agents), batch) for c in spaces.classes]
        sized = list(zip(shapes, spaces.classes, strict=True))
        self.obs = tuple(np.zeros((*shape, c.obs_size), c.obs_dtype) for shape, c in sized)
        self.alive = tuple(np.zeros(shape, np.bool_) for shape in shapes)
        self.waits = tuple(np.zeros(shape, np.bool_) for shape in shapes)
        self.masks = tuple(np.ones((*s, c.action.n), np.bool_) for s, c in sized) if spaces.masks else None
        self.state = np.zeros((batch, spaces.state_size), np.float32) if spaces.state_size else None
        self.without_choice = set[tuple[int, str]]()
        """Copy and name of agents alive whose mask allows no action."""
        waits = self.waits if spaces.turns else None
        self.frame = Frame(obs=self.obs, state=self.state, masks=self.masks, alive=self.alive, waits=waits)

    def clear(self, b: int) -> None:
        """Show copy b without agents."""
        if self.without_choice:
            self.without_choice = {each for each in self.without_choice if each[0] != b}
        for k in range(len(self.obs)):
            self.obs[k][:, b] = 0
            self.alive[k][:, b] = False
            self.waits[k][:, b] = False
            self._forbid(k, slice(None), b)

    def show(self, b: int, agent: Any, seen: Seen, *, alive: bool) -> None:
        """Write what an agent observes in copy b; raises SpecError if that is not finite or of another size."""
        (k, i), observation, info = self._seats[agent], seen[0][agent], seen[1].get(agent) or {}
        codec, row = self._seats.codecs[k], self.obs[k][i, b]
        write_observation(row, codec.encode(observation))
        self.alive[k][i, b] = alive
        if self.masks is not None and self._seats.discrete[k]:
            mask = codec.mask(observation, info)
            self.masks[k][i, b] = True if mask is None else mask
            if not self.masks[k][i, b].any():
                self.without_choice |= {(b, self._seats.classes[k].agents[i])} if alive else set()
                self._forbid(k, i, b)
        elif MASK in info and self._seats.unmasked:
            raise SpecError(LATE_MASK)

    def copy_from(self, other: _View) -> None:
        """Show what another view of the same environment shows."""
        self.without_choice = other.without_choice
        for mine, theirs in zip(self.frame.arrays(), other.frame.arrays(), strict=True):
            np.copyto(mine, theirs)

    def _forbid(self, k: int, i: int | slice, b: int) -> None:
        if self.masks is not None and self._seats.discrete[k]:
            self.masks[k][i, b] = False
            self.masks[k][i, b, 0] = True


class PettingZooEnv(SavedByLog):
    """B copies of a parallel PettingZoo environment behind the batched protocol."""

    spaces: EnvSpaces
    batch: int

    def __init__(
        self, envs: Sequence[ParallelEnv], mask: MaskChoice = AUTO, look: ImageLook = WHOLE, *, turns: bool = True
    ) -> None:
        """Adapt environments that are made already; without `turns`, an agent that waits is refused."""
        self._envs = list(envs)
        self.batch = len(envs)
        # A reset first: some environments define their spaces only then, and only then masks and state can be seen.
        observations, infos = call_reset(envs[0], 0, "")
        self._seats = Seats(envs[0], observations, infos, mask, look)
        self._seats.check_names([(STEP[0], observations)], envs[0].agents, "reset()")
        size, reason = _state_size(envs[0])
        self.spaces = EnvSpaces(
            classes=self._seats.classes,
            state_size=size,
            max_steps=None,
            masks=bool(self._seats.masked),
            deaths=True,
            turns=turns,
            no_state=reason,
            masked_by=self._seats.masked,
            notes=tuple(self._seats.notes),
        )
        self._now, self._next = self._views()
        self.without_choice = set[str]()
        """See `marless.learning.envs.base.Helping`."""
        self._state = state_encoder(getattr(envs[0], "state_space", None))
        self._present: list[list[Any]] = [[] for _ in envs]
        """Agents that act next, by copy."""
        self._waiting: list[list[Any]] = [[] for _ in envs]
        """Agents that are in the episode and wait, by copy."""
        self._step = np.zeros(self.batch, np.int64)
        self._log = EpisodeLog(self.spaces.classes, self.batch)
        self._cut_B = np.zeros(self.batch, np.bool_)
        self._filmed = getattr(envs[0], "render_mode", None) == "rgb_array"
        self._last_picture: NDArray[np.uint8] | None = None
        # Observations that do not fit their spaces are refused here, before a job starts, not in its first round.
        self._write(0, self._now, ([a for a in envs[0].agents if a in observations], ()), (observations, infos))

    def without_state(self) -> None:
        self.spaces = replace(self.spaces, state_size=0)
        self._now, self._next = self._views()

    def reset(self, seed: int) -> Frame:
        """Start an episode in every copy, each with a seed of its own."""
        self._log.begin(seed)
        self._cut_B[:] = False
        for b in range(self.batch):
            self._start(b, self._now)
        return self._shown(self._now)

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """Let all agents alive act in every copy, one copy after another; copies whose episode ends are reset.

        Raises SpecError for rewards, observations and states that are NaN or infinite.
        """
        shapes = [(len(c.agents), self.batch) for c in self.spaces.classes]
        rewards = tuple(np.zeros(shape) for shape in shapes)
        terminated = tuple(np.zeros(shape, np.bool_) for shape in shapes)
        truncated, ended = np.zeros(self.batch, np.bool_), np.zeros(self.batch, np.bool_)
        for b in range(self.batch):
            outcome = self._advance(b, actions)
            for agent in (*self._present[b], *self._waiting[b]):
                k, i = self._seats[agent]
                rewards[k][i, b] = reward_of(agent, outcome.rewards, self._where(b))
                terminated[k][i, b] = agent in outcome.terminated
            self._show(b, self._now, outcome)
            truncated[b], ended[b] = outcome.truncated, outcome.over
        truncated |= self._cut_B & ~ended
        ended |= self._cut_B
        self._cut_B[:] = False
        self._log.add(actions, ended)
        # Before the copy is reset: from then on it draws the next episode.
        if ended[0] and self._filmed:
            self._last_picture = self.picture()
        view = self._now
        if ended.any():
            view = self._next
            view.copy_from(self._now)
            for over in np.flatnonzero(ended):
                self._start(int(over), view)
        return Transition(
            frame=self._shown(view),
            final=self._now.frame,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            ended=ended,
        )

    def _current_frame(self) -> Frame:
        return self._now.frame

    def picture(self, *, ended: bool = False) -> NDArray[np.uint8]:
        """The picture that copy 0 draws of itself, if it was made with `render_mode: rgb_array`."""
        if ended and self._last_picture is not None:
            return self._last_picture
        return pixels(self._envs[0])

    def close(self) -> None:
        """Close every copy; then raises SpecError if the close() of one has raised."""
        close_all(self._envs)

    def _views(self) -> tuple[_View, _View]:
        now, then = (_View(self.spaces, self.batch, self._seats) for _ in range(2))
        return now, then

    def _advance(self, b: int, actions: tuple[ActionArray, ...]) -> _Outcome:
        env = self._envs[b]
        self._step[b] += 1
        acted = [*self._present[b], *self._waiting[b]]
        chosen: dict[Any, Any] = {}
        for agent in env.agents:
            k, i = self._seats[agent]
            # What a policy without an observation draws is noise, so an agent that waits does what never changes.
            action = _idle(self.spaces.classes[k].action) if agent in self._waiting[b] else actions[k][i, b]
            chosen[agent] = self._seats.codecs[k].decode(action)
        result = call_step(env, chosen, self._where(b))
        self._seats.check_names(zip(STEP[:4], result[:4], strict=True), acted, f"step() {self._where(b)}")
        if self._step[b] == 1:
            self._seats.check_actions(env, self._where(b))
        return _Outcome(env, acted, result)

    def _replay(self, b: int) -> None:
        """Play the present episode of copy b again; only its last frame is shown."""
        self._start(b, self._now)
        for t in range(int(self._log.steps[b])):
            outcome = self._advance(b, self._log.actions(t))
            self._present[b], self._waiting[b] = outcome.present, outcome.waiting
            if outcome.over:
                raise SpecError(f"it ended after {t + 1} steps")
        if self._log.steps[b]:
            self._show(b, self._now, outcome)

    def _start(self, b: int, view: _View) -> None:
        env = self._envs[b]
        seen = call_reset(env, self._log.seed(b), f" of copy {b}")
        self._seats.check_names([(STEP[0], seen[0])], env.agents, f"reset() of copy {b}")
        self._seats.check_actions(env, f"of copy {b} after a reset")
        self._step[b], self._present[b] = 0, [a for a in env.agents if a in seen[0]]
        self._waiting[b] = [a for a in env.agents if a not in seen[0]]
        self._write(b, view, (self._present[b], ()), seen)
        if view.state is not None:
            view.state[b] = self._global_state(b, view.state.shape[1])

    def _show(self, b: int, view: _View, outcome: _Outcome) -> None:
        self._present[b], self._waiting[b] = outcome.present, outcome.waiting
        self._write(b, view, (outcome.present, outcome.leaving), outcome.seen)
        if view.state is None or (outcome.over and not outcome.truncated):
            return  # nothing follows a state in which all have terminated, and state() may fail there
        if (state := self._global_state(b, view.state.shape[1], over=outcome.over)) is not None:
            view.state[b] = state

    def _write(self, b: int, view: _View, agents: tuple[Sequence[Any], Sequence[Any]], seen: Seen) -> None:
        """Write the observations of the agents that are present and of those that are just leaving, and who waits."""
        view.clear(b)
        for alive, some in zip((True, False), agents, strict=True):
            for agent in some:
                try:
                    view.show(b, agent, seen, alive=alive)
                except SpecError as error:
                    raise SpecError(f"the environment is broken: agent {agent!r} {self._where(b)} {error}") from None
        if self._waiting[b] and not self.spaces.turns:
            raise SpecError(
                f"agent {self._waiting[b][0]!r} {self._where(b)} observes nothing, as agents do that wait for their "
                f"turn; set env.options: {{{TURNS}: true}}"
            )
        for agent in self._waiting[b]:
            k, i = self._seats[agent]
            view.waits[k][i, b] = True

    def _global_state(self, b: int, size: int, *, over: bool = False) -> FloatArray | None:
        """The global state of a copy; None if it cannot be had after the `over`, where PettingZoo promises none.

        Then the state before the last step stays, as the nearest to bootstrap from.
        """
        try:
            with np.errstate(over="ignore"):
                state = np.asarray(self._state(self._envs[b].state()), np.float32)
        except Exception as error:
            if over:
                return None
            raise self._no_state(b, f"fails: {told(error)}") from error
        if state.shape != (size,):
            raise self._no_state(b, f"has {state.size} numbers, after the first reset it had {size}")
        if not np.isfinite(state).all():
            raise self._no_state(b, "holds NaN or infinite values")
        return state

    def _no_state(self, b: int, what: str) -> SpecError:
        return SpecError(
            f"the environment is broken: the state {self._where(b)} {what}; algorithms that use no state, such as "
            "ippo, can train in it"
        )

    def _where(self, b: int) -> str:
        return f"of {where_of(b, int(self._step[b]))}"

    def _shown(self, view: _View) -> Frame:
        """The frame that is acted upon next; frames at the end of an episode may well allow no action."""
        self.without_choice |= {agent for _, agent in view.without_choice}
        return view.frame


def _idle(action: Discrete | Box) -> NDArray[np.generic]:
    """The action of an agent that waits: 0 or, where the bounds exclude it, the nearest to it."""
    if isinstance(action, Discrete):
        return np.zeros((), np.int32)
    return np.clip(np.zeros(action.n), action.low, action.high).astype(np.float32)


class _Outcome:
    """The meaning of a parallel step for the episode, by the rules of the package."""

    def __init__(self, env: ParallelEnv, acted: Sequence[Any], result: tuple[Any, ...]) -> None:
        observations, self.rewards, terminations, truncations, infos = result
        self.seen: Seen = (observations, infos)
        cut_off = [a for a in acted if truncations.get(a, False) and not terminations.get(a, False)]
        last_seen = [a for a in cut_off if a in observations]
        going_on = [a for a in env.agents if not terminations.get(a, False) and not truncations.get(a, False)]
        self.over = not going_on
        self.truncated = self.over and bool(last_seen)
        self.present = last_seen if self.over else [a for a in going_on if a in observations]
        """Agents of the next frame."""
        self.leaving = [] if self.over else last_seen
        """Agents that were truncated while others go on."""
        unseen = [a for a in cut_off if a not in observations] if self.truncated else going_on
        self.waiting = [a for a in unseen if a not in observations]
        """Agents that wait in the next frame; after a truncation those whose turn it was not."""
        self.terminated = set(acted) - set(going_on) - set(last_seen) - set(self.waiting)


def _state_size(env: ParallelEnv) -> tuple[int, str]:
    """The size of the global state after a reset; 0 and the reason if there is none, or none that can be used."""
    try:
        return int(np.asarray(env.state(), np.float32).size), ""
    except NotImplementedError:  # by which PettingZoo says that an environment has no state
        return 0, ""
    except AttributeError as error:
        if error.name == "state":  # it, or the environment that it wraps, has none
            return 0, ""
        return 0, f"its state() is broken: {told(error)}"
    except Exception as error:  # noqa: BLE001  # third-party code may raise anything
        return 0, f"its state() is broken: {told(error)}"
