"""Renders one episode of a team as an animated GIF, or as a PNG of some moments. Needs Pillow (extra `render`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marless.core.errors import SpecError, UnavailableError
from marless.learning.data.returns import return_text
from marless.learning.data.rollout import act, begin, step
from marless.learning.envs.allowed import FILM_OPTION
from marless.learning.envs.base import BatchedEnv, EnvSpaces, Picture, Pictured, RewardArray
from marless.learning.envs.registry import GYMNASIUM, PETTINGZOO
from marless.learning.policies.evaluation import environment
from marless.learning.policies.team import Team

SUFFIXES = (".gif", ".png")


@dataclass(frozen=True)
class Shot:
    """One frame of the animation."""

    picture: Picture
    caption: str


MOST_STEPS = 2000
"""Steps of a film; an episode may have no end."""


def check(path: Path) -> None:
    """Check, before the episode runs, that the file can be written.

    Raises SpecError for a name that does not end with .gif or .png or if Pillow is missing, UnavailableError if the
    directory does not exist.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise SpecError(f"{path}: a film is an animated GIF or a PNG; give it a name that ends with .gif or .png")
    if not path.parent.is_dir():
        raise UnavailableError(f"{path}: there is no directory {path.parent}; make it, or choose another")
    if importlib.util.find_spec("PIL") is None:
        raise SpecError("a film needs Pillow, which is not installed; pip install 'marless[render]'")


def film(
    team: Team,
    path: Path,
    env: str | None = None,
    options: Mapping[str, object] | None = None,
    *,
    seed: int,
    explore: bool = False,
) -> int:
    """Run one episode and write it to `path`; returns the number of frames: one per state, the last included.

    A PNG shows up to `drawing.SHEET` of them beside each other. An episode of more than MOST_STEPS steps is cut there.

    Raises the errors of `check`, SpecError if the environment cannot be rendered, and OSError.
    """
    check(path)
    from marless.learning.policies import drawing

    stage = _stage(team, env, options or {})
    try:
        shots = shoot(team, stage, seed=seed, explore=explore)
    except SpecError as error:
        raise SpecError(f"environment {env or team.origin.env}: {error}") from None
    finally:
        stage.close()
    images = drawing.draw([shot.picture for shot in shots], [shot.caption for shot in shots], stage.spaces)
    save = drawing.save if path.suffix.lower() == ".gif" else drawing.save_sheet
    save(images, path)
    return len(images)


def shoot(team: Team, stage: BatchedEnv, *, seed: int, explore: bool) -> list[Shot]:
    """Run one episode of a single copy; raises SpecError if the environment cannot be rendered."""
    if not isinstance(stage, Pictured):
        raise SpecError("cannot be filmed: it shows no pictures")
    policies, rng = team.acting(stage.spaces), np.random.default_rng(seed)
    returns = [np.zeros(len(agents.agents)) for agents in stage.spaces.classes]
    frame, ended = begin(stage, policies, seed), False
    shots = [Shot(stage.picture(), _caption(0, stage.spaces, returns))]
    while not ended and len(shots) <= MOST_STEPS:
        transition = step(stage, policies, frame, act(policies, frame, rng if explore else None))
        frame, ended = transition.frame, bool(transition.ended[0])
        for k, reward_NB in enumerate(transition.rewards):
            returns[k] += reward_NB[:, 0]
        shots.append(Shot(stage.picture(ended=ended), _caption(len(shots), stage.spaces, returns)))
    return shots


def _stage(team: Team, env: str | None, options: Mapping[str, object]) -> BatchedEnv:
    name = env or team.origin.env
    if not name.startswith((PETTINGZOO, GYMNASIUM)):
        return environment(team, env, options, batch=1)
    drawn = {FILM_OPTION: True} if name.startswith(GYMNASIUM) else {"render_mode": "rgb_array"}
    try:
        return environment(team, env, {**options, **drawn}, batch=1)
    except SpecError as error:
        raise SpecError(f"{error}; it can be filmed only if it takes render_mode: rgb_array") from None


def _caption(step: int, spaces: EnvSpaces, returns: Sequence[RewardArray]) -> str:
    means = [
        f"{agents.name} {return_text(float(total_N.mean()))}"
        for agents, total_N in zip(spaces.classes, returns, strict=True)
    ]
    return f"step {step}    return per {', '.join(means)}"
