"""One copy of a game: ALE's emulator, with the frames and the random numbers of Gymnasium's preprocessing.

`AtariPreprocessing` around `AtariEnv` is the reference: equal seeds and actions give equal frames, bit by bit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ale_py import Action, ALEInterface

from marless.core.errors import SpecError, some_of
from marless.learning.envs.shrinking import Pixels, Shrinking
from marless_atari.options import AtariOptions

_NOTHING, _FIRE = Action.NOOP.value, Action.FIRE.value


class Console:
    """Plays one copy of a game, each time anew: what is seen follows from the seed of `begin` and the actions since.

    ALE's own states are no saves of it: they lack what the emulator keeps of how sprites are drawn, and what is seen
    after a restore differs from what was seen without. A reset right after a restore draws everything anew.
    """

    over: bool
    """True once the game is over."""
    lost_life: bool
    """True if the last step has cost a life, and the option `episodic_life` is set."""

    _lives: int

    def __init__(self, rom: Path, options: AtariOptions) -> None:
        self._options = options
        self._ale = ALEInterface()
        # Its own random numbers are not used: it takes their seed with the ROM only, which takes a tenth of a second.
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("random_seed", 0)
        self._ale.loadROM(rom)
        self._choose_variant()
        chosen = self._ale.getLegalActionSet() if options.full_actions else self._ale.getMinimalActionSet()
        self.actions = [each.value for each in chosen]
        """ALE's numbers of the actions."""
        self._begun = self._ale.cloneState(include_rng=True)
        height, width = self._ale.getScreenDims()
        self.channels = 1 if options.grayscale else 3
        self._shrinking = Shrinking((height, width), (options.screen, options.screen))
        self._screens = np.zeros((2, height, width) if options.grayscale else (2, height, width, 3), np.uint8)
        """The last frame and the one before."""
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Begin a new game."""
        first, self._sticky_seed = (int(each) for each in np.random.SeedSequence(seed).generate_state(2))
        most = self._options.noop_max
        waits = int(np.random.default_rng(first).integers(1, most + 1)) if most else 0
        self._restart()
        for _ in range(waits):
            self._act(_NOTHING)
            if self._ale.game_over():
                self._restart()
        self._look()

    def begin_life(self) -> None:
        """Begin an episode in a game that goes on after the loss of a life."""
        self._fire()
        self._look()

    def step(self, action: int) -> int:
        """Play the frames of one env step with an action, given by its position in `actions`; returns its reward."""
        skip, reward = self._options.frame_skip, 0
        for t in range(skip):
            reward += self._act(self.actions[action])
            lives = self._ale.lives()
            self.over = self._ale.game_over()
            self.lost_life, self._lives = self._options.episodic_life and lives < self._lives, lives
            if self.over or self.lost_life:
                break
            if t >= skip - 2:
                self._read(self._screens[skip - 1 - t])
        if skip > 1:
            np.maximum(self._screens[0], self._screens[1], out=self._screens[0])
        return reward

    def observe(self) -> Pixels:
        """What the agent sees now, uint8 [channels, size, size]."""
        seen = self._screens[0]
        return self._shrinking(seen[None] if self.channels == 1 else np.moveaxis(seen, -1, 0))

    def picture(self) -> Pixels:
        """The game's whole screen in colour, uint8 [height, width, 3]."""
        pixels: Pixels = self._ale.getScreenRGB()
        return pixels

    def _choose_variant(self) -> None:
        chosen = (("mode", self._ale.getAvailableModes), ("difficulty", self._ale.getAvailableDifficulties))
        for name, known in chosen:
            value = getattr(self._options, name)
            if value is not None and value not in known():
                raise SpecError(f"has no {name} {value}; known: {some_of([str(each) for each in known()])}")
        if self._options.mode is not None:
            self._ale.setMode(self._options.mode)
        if self._options.difficulty is not None:
            self._ale.setDifficulty(self._options.difficulty)

    def _restart(self) -> None:
        # Without the restore, eleven games begin in another way after other games.
        self._ale.restoreState(self._begun)
        self._ale.reset_game()
        self._held = _NOTHING
        self._random = np.random.RandomState(self._sticky_seed)
        self._fire()

    def _fire(self) -> None:
        if self._options.fire_reset and _FIRE in self.actions:
            self._act(_FIRE)

    def _act(self, action: int) -> int:
        """Play one frame with an action or, if it sticks, with the one before; returns the reward."""
        if self._options.sticky:
            # ALE draws for two players: numbers of 32 bits of a Mersenne Twister.
            drawn, _ = self._random.randint(0, 2**32, 2, dtype=np.uint32)
            if drawn / 2.0**32 < np.float32(self._options.sticky):
                action = self._held
        self._held = action
        reward: int = self._ale.act(action)
        return reward

    def _look(self) -> None:
        """Begin an episode with the present screen."""
        self.over = self.lost_life = False
        self._lives = self._ale.lives()
        self._read(self._screens[0])
        self._screens[1] = 0

    def _read(self, screen: Pixels) -> None:
        if self.channels == 1:
            self._ale.getScreenGrayscale(screen)
        else:
            self._ale.getScreenRGB(screen)
