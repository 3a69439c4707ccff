"""Steps copies of a Gymnasium environment behind the batched protocol; the package has the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import SpecError, shown
from marless.learning.envs.base import (
    ActionArray,
    AgentClass,
    BoolArray,
    EnvSpaces,
    Frame,
    ObsArray,
    Transition,
)
from marless.learning.envs.gymnasium.calls import (
    close_all,
    kind,
    pixels,
    reset_answer,
    reward_number,
    step_answer,
    where_of,
    write_observation,
)
from marless.learning.envs.gymnasium.masks import AUTO, LATE_MASK, MASK, MaskChoice
from marless.learning.envs.gymnasium.spaces import check_found, codec, with_mask_of_infos
from marless.learning.envs.replayed import EpisodeLog, SavedByLog

# Any stands for Gymnasium's objects: third-party ones answer what they like.
Env = Any
AGENT = "agent_0"
_STEP = "(observation, reward, terminated, truncated, info)"


class _View:
    """The arrays of one frame."""

    def __init__(self, spaces: EnvSpaces, batch: int) -> None:
        (agent,) = spaces.classes
        self.obs_BO: ObsArray = np.zeros((batch, agent.obs_size), agent.obs_dtype)
        self.mask_BA = np.ones((batch, agent.action.n), np.bool_) if spaces.masks else None
        masks = None if self.mask_BA is None else (self.mask_BA[None],)
        self.frame = Frame(obs=(self.obs_BO[None],), masks=masks)

    def copy_from(self, other: _View) -> None:
        """Show what another view of the same environment shows."""
        for mine, theirs in zip(self.frame.arrays(), other.frame.arrays(), strict=True):
            np.copyto(mine, theirs)


class GymnasiumEnv(SavedByLog):
    """B copies of a Gymnasium environment behind the batched protocol."""

    spaces: EnvSpaces
    batch: int

    def __init__(
        self,
        envs: Sequence[Env],
        mask: MaskChoice = AUTO,
        *,
        max_steps: int | None = None,
        fresh_only: str = "",
        notes: Sequence[str] = (),
    ) -> None:
        """Read the spaces of the first copy after a reset, which some environments need for that; raises SpecError.

        `max_steps`, `fresh_only` and `notes` are those of `spaces`.
        """
        self._envs = list(envs)
        self.batch = len(envs)
        observation, info = _begun(envs[0], 0, "")
        self._declared = _spaces_of(envs[0])
        known, found = codec(*self._declared, mask)
        self._codec, more = with_mask_of_infos(known, [info], mask)
        check_found([self._codec], mask)
        source = self._codec.mask_source
        self._unmasked = mask.auto and source is None
        """True if masks were looked for, and none was found."""
        self.spaces = EnvSpaces(
            classes=(AgentClass("agent", (AGENT,), self._codec.obs_size, self._codec.action_space, self._codec.image),),
            state_size=0,
            max_steps=max_steps,
            masks=source is not None,
            rewards="cooperative",
            fresh_only=fresh_only,
            masked_by=str(source or ""),
            notes=(*notes, *found, *more),
        )
        self._now, self._next = (_View(self.spaces, self.batch) for _ in range(2))
        self.without_choice = set[str]()
        """See `marless.learning.envs.base.Helping`."""
        self._step_B = np.zeros(self.batch, np.int64)
        self._checked: list[tuple[Any, Any]] = [(None, None)] * self.batch
        """The spaces of each copy that were found to be those of the first."""
        self._log = EpisodeLog(self.spaces.classes, self.batch)
        self._cut_B = np.zeros(self.batch, np.bool_)
        self._filmed = getattr(envs[0], "render_mode", None) == "rgb_array"
        self._last_picture: NDArray[np.uint8] | None = None
        # An observation that does not fit its space is refused here, before a job starts, not in its first round.
        self._write(0, self._now, observation, info)

    def reset(self, seed: int) -> Frame:
        """Start an episode in every copy, each with a seed of its own."""
        self._log.begin(seed)
        self._cut_B[:] = False
        for b in range(self.batch):
            self._start(b, self._now)
        return self._now.frame

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """Step every copy, one after another; those whose episode ends are reset.

        Raises SpecError, naming copy and step, for rewards and observations that are NaN, infinite or of another kind.
        """
        reward_B = np.zeros(self.batch)
        terminated_B, truncated_B = np.zeros(self.batch, np.bool_), np.zeros(self.batch, np.bool_)
        for b in range(self.batch):
            observation, reward, terminated_B[b], truncated_B[b], info = self._advance(b, actions)
            reward_B[b] = reward_number(reward, where_of(b, int(self._step_B[b])))
            self._write(b, self._now, observation, info, over=bool(terminated_B[b]))
        truncated_B = (truncated_B | self._cut_B) & ~terminated_B
        ended_B = terminated_B | truncated_B
        self._cut_B[:] = False
        self._log.add(actions, ended_B)
        return Transition(
            frame=self._going_on(ended_B),
            final=self._now.frame,
            rewards=(reward_B[None],),
            terminated=(terminated_B[None],),
            truncated=truncated_B,
            ended=ended_B,
        )

    def _current_frame(self) -> Frame:
        return self._now.frame

    def picture(self, *, ended: bool = False) -> NDArray[np.uint8]:
        """The picture that copy 0 draws of itself, if it was made for a film."""
        return self._last_picture if ended and self._last_picture is not None else pixels(self._envs[0])

    def close(self) -> None:
        """Close every copy; then raises SpecError if the close() of one has raised."""
        close_all(self._envs)

    def _advance(self, b: int, actions: tuple[ActionArray, ...]) -> tuple[Any, Any, bool, bool, Any]:
        self._step_B[b] += 1
        where = where_of(b, int(self._step_B[b]))
        answer = step_answer(self._envs[b], self._codec.decode(actions[0][0, b]), f"of {where}")
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise SpecError(f"its step() of {where} answers {kind(answer)}; expected are five: {_STEP}")
        observation, reward, terminated, truncated, info = answer
        return observation, reward, _flag(terminated, "terminated", where), _flag(truncated, "truncated", where), info

    def _going_on(self, ended_B: BoolArray) -> Frame:
        """What is seen next, with the first observation of a new episode where one has ended."""
        if not ended_B.any():
            return self._now.frame
        # Before the copy is reset: from then on it draws the next episode.
        if ended_B[0] and self._filmed:
            self._last_picture = self.picture()
        self._next.copy_from(self._now)
        for b in np.flatnonzero(ended_B):
            self._start(int(b), self._next)
        return self._next.frame

    def _replay(self, b: int) -> None:
        """Play the present episode of copy b again; only its last frame is shown."""
        self._start(b, self._now)
        for t in range(int(self._log.steps[b])):
            observation, _, terminated, truncated, info = self._advance(b, self._log.actions(t))
            if terminated or truncated:
                raise SpecError(f"it ended after {t + 1} steps")
        if self._log.steps[b]:
            self._write(b, self._now, observation, info)

    def _start(self, b: int, view: _View) -> None:
        env = self._envs[b]
        observation, info = _begun(env, self._log.seed(b), f" of copy {b}")
        self._step_B[b] = 0
        spaces = _spaces_of(env)
        if any(mine is not known for mine, known in zip(spaces, self._checked[b], strict=True)):
            self._check_spaces(b, spaces)
        self._write(b, view, observation, info)

    def _check_spaces(self, b: int, spaces: tuple[Any, Any]) -> None:
        for name, mine, first in zip(("observation", "action"), spaces, self._declared, strict=True):
            if mine != first:
                raise SpecError(
                    f"its {name}_space of copy {b} after a reset is {shown(str(mine))}, and was {shown(str(first))}; "
                    "policies have one size, so spaces must be the same in all episodes and copies"
                )
        self._checked[b] = spaces

    def _write(self, b: int, view: _View, observation: Any, info: Any, *, over: bool = False) -> None:
        """Write what copy b observes, and its mask; in an episode that is `over`, none may be legal."""
        try:
            write_observation(view.obs_BO[b], self._codec.encode(observation))
            if view.mask_BA is not None:
                mask = self._codec.mask(observation, info or {})
                view.mask_BA[b] = True if mask is None else mask
                if not view.mask_BA[b].any():
                    view.mask_BA[b, 0] = True  # policies need a legal action
                    if not over:
                        self.without_choice.add(AGENT)
            elif self._unmasked and info and MASK in info:
                raise SpecError(LATE_MASK)
        except SpecError as error:
            where = where_of(b, int(self._step_B[b]))
            raise SpecError(f"the environment is broken: {where} {error}") from None


def _begun(env: Env, seed: int, where: str) -> tuple[Any, Mapping[str, Any]]:
    """Reset a copy; returns observation and info. Raises SpecError for another answer."""
    answer = reset_answer(env, seed, where)
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Mapping | None):
        raise SpecError(f"its reset(){where} answers {kind(answer)}; expected are two: (observation, info)")
    return answer[0], answer[1] or {}


def _spaces_of(env: Env) -> tuple[Any, Any]:
    try:
        return env.observation_space, env.action_space
    except AttributeError as error:
        raise SpecError(f"does not declare its spaces: it has no {error.name or 'observation_space'}") from None


def _flag(value: Any, name: str, where: str) -> bool:
    """A flag of an episode's end; raises SpecError for what is none."""
    if isinstance(value, bool):
        return value
    found = np.asarray(value)
    if found.size != 1 or found.dtype.kind not in "biu":
        raise SpecError(f"its step() of {where} answers {shown(value)} as {name}; expected is true or false")
    return bool(found.reshape(()))
