"""Options of the games, each with its default."""

from __future__ import annotations

from dataclasses import dataclass

from marless.core.errors import SpecError, shown


@dataclass(frozen=True, kw_only=True)
class AtariOptions:
    """DeepMind's preprocessing (Mnih et al. 2015), with the choices of Machado et al. 2018 but for `sticky`.

    Rewards are those of the game. To clip them in training only, set `algorithm.reward_clip`.
    """

    sticky: float = 0.0
    """Probability, in each frame, that the game goes on with the action of the frame before: 0 as in Gymnasium's
    `…NoFrameskip-v4`, 0.25 as in `ALE/…-v5` and in Machado et al. 2018."""
    frame_skip: int = 4
    """Frames of the game in an env step, which have the same action. The last two are observed as one, whose pixels are
    the brighter of both: games draw some objects in every second frame only."""
    noop_max: int = 30
    """A game begins with 1 to this many frames without an action, a number drawn uniformly; 0: with none."""
    fire_reset: bool = False
    """True: FIRE is pressed in the first frame of each episode, for games that wait for it (as Breakout)."""
    episodic_life: bool = False
    """True: the loss of a life terminates an episode, and the next one goes on in the same game. Returns, those of
    evaluations included, are always those of whole games."""
    full_actions: bool = False
    """True: all 18 actions of the joystick; False: those that have an effect in this game."""
    max_frames: int = 108_000
    """A game is truncated after this many frames, half an hour; those before its first observation do not count."""
    screen: int = 84
    """Height and width of what is observed, in pixels."""
    grayscale: bool = True
    """True: observations have one channel, the brightness; False: three, red, green and blue."""
    mode: int | None = None
    """The variant of the game, one of those that it has; None: its default."""
    difficulty: int | None = None
    """The position of the console's difficulty switches, one of those that the game has; None: its default."""

    def __post_init__(self) -> None:
        if isinstance(self.sticky, bool) or not isinstance(self.sticky, int | float) or not 0 <= self.sticky < 1:
            raise SpecError(f"sticky must be a probability, at least 0 and below 1, got {shown(self.sticky)}")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name in ("mode", "difficulty"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise SpecError(f"{name} must be a whole number from {least:,} to {most:,}, got {shown(value)}")
        for name in ("fire_reset", "episodic_life", "full_actions", "grayscale"):
            if not isinstance(getattr(self, name), bool):
                raise SpecError(f"{name} must be true or false, got {shown(getattr(self, name))}")


_RANGES = {
    "frame_skip": (1, 100),
    "noop_max": (0, 10_000),
    "max_frames": (1, 10**9),
    # OpenCV, whose sums are the reference, adds up differently where both sides are divided by a whole number: by 10.
    "screen": (17, 160),
    "mode": (0, 255),
    "difficulty": (0, 255),
}
