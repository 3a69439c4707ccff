"""B copies of a game behind the batched protocol. Suffixes: B copies, C channels, H height, W width."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from marless.core.errors import SpecError
from marless.learning.envs.base import (
    ActionArray,
    AgentClass,
    BoolArray,
    Discrete,
    EnvSpaces,
    Frame,
    Transition,
)
from marless.learning.envs.replayed import EpisodeLog, SavedByLog
from marless.learning.envs.shrinking import Pixels
from marless_atari.console import Console
from marless_atari.options import AtariOptions


class Atari(SavedByLog):
    """A team of one agent that sees the screen; copies are played one after another, as ALE keeps Python's lock.

    A save holds the seeds and actions of the present games, and a load plays them again.
    """

    def __init__(self, rom: Path, options: AtariOptions, batch: int) -> None:
        self.batch = batch
        self._consoles = [Console(rom, options) for _ in range(batch)]
        self._most_steps = -(-options.max_frames // options.frame_skip)
        first = self._consoles[0]
        image = (first.channels, options.screen, options.screen)
        actions = Discrete(len(first.actions))
        self.spaces = EnvSpaces(
            classes=(AgentClass("agent", ("agent_0",), int(np.prod(image)), actions, image),),
            state_size=0,
            max_steps=None if options.episodic_life else self._most_steps,
            rewards="cooperative",
        )
        self._log = EpisodeLog(self.spaces.classes, batch)
        self._cut_B = np.zeros(batch, np.bool_)
        self._seen_BCHW: Pixels = np.zeros((batch, *image), np.uint8)
        self._last_picture: Pixels | None = None

    def reset(self, seed: int) -> Frame:
        """Begin a game in every copy, each with a seed of its own."""
        self._log.begin(seed)
        self._cut_B[:] = False
        for b in range(self.batch):
            self._begin(b)
        return self._current_frame()

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """Play an env step of every copy; where a game ends, the next one begins."""
        chosen_B = actions[0][0]
        reward_B = np.array([console.step(chosen_B[b]) for b, console in enumerate(self._consoles)], np.float64)
        for b in range(self.batch):
            self._seen_BCHW[b] = self._consoles[b].observe()
        lost_B = np.array([console.lost_life for console in self._consoles])
        over_B = np.array([console.over for console in self._consoles])
        # A game is not cut in the step that costs a life, because its return would count as that of a whole one.
        done_B = over_B | (self._log.steps + 1 >= self._most_steps) | (self._cut_B & ~lost_B)
        ended_B = done_B | lost_B
        self._cut_B[:] = False
        self._log.add(actions, done_B)
        final = self._current_frame()
        return Transition(
            frame=self._begun_anew(ended_B, done_B) if ended_B.any() else final,
            final=final,
            rewards=(reward_B[None],),
            terminated=((over_B | lost_B)[None],),
            truncated=done_B & ~over_B & ~lost_B,
            ended=ended_B,
            unfinished=ended_B & ~done_B,
        )

    def picture(self, *, ended: bool = False) -> Pixels:
        """The screen of copy 0 in colour."""
        return self._last_picture if ended and self._last_picture is not None else self._consoles[0].picture()

    def _current_frame(self) -> Frame:
        return Frame(obs=(self._seen_BCHW.reshape(1, self.batch, -1),))

    def _begun_anew(self, ended_B: BoolArray, done_B: BoolArray) -> Frame:
        """The next frame, in which an episode begins in some copies; those before stay as they are."""
        self._seen_BCHW = self._seen_BCHW.copy()
        if ended_B[0]:
            self._last_picture = self._consoles[0].picture()
        for b in np.flatnonzero(ended_B):
            if done_B[b]:
                self._begin(int(b))
            else:
                self._consoles[b].begin_life()
                self._seen_BCHW[b] = self._consoles[b].observe()
        return self._current_frame()

    def _begin(self, b: int) -> None:
        self._consoles[b].begin(self._log.seed(b))
        self._seen_BCHW[b] = self._consoles[b].observe()

    def _replay(self, b: int) -> None:
        console = self._consoles[b]
        console.begin(self._log.seed(b))
        for t in range(int(self._log.steps[b])):
            console.step(int(self._log.actions(t)[0][0, b]))
            if console.over:
                raise SpecError(f"it ended after {t + 1} steps")
            if console.lost_life:
                console.begin_life()
        self._seen_BCHW[b] = console.observe()
