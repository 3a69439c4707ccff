"""Calls to environments with the interfaces of Gymnasium and PettingZoo, whose answers are checked.

They are third-party code, which may raise and answer anything. An error names the call and, by `where`, copy and step.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import SpecError, shown, told
from marless.learning.envs.base import ObsArray

# Any stands for environments and their answers, because third-party ones need not subclass anything.
ThirdParty = Any
_LARGEST = float(np.finfo(np.float32).max)
"""The largest number of float32, in which rewards are kept."""


def where_of(b: int, step: int) -> str:
    """A copy and the step of its episode, in a message; step 0 is the reset."""
    return f"copy {b} {f'at step {step} of its episode' if step else 'after a reset'}"


def reset_answer(env: ThirdParty, seed: int, where: str) -> Any:
    """Reset a copy; returns its answer. Raises SpecError for whatever it raises."""
    try:
        return env.reset(seed=seed)
    except Exception as error:
        # A TypeError may also come from within the call, so the signature decides whether the seed is the reason.
        if isinstance(error, TypeError) and not _takes_seed(env):
            raise SpecError(
                "its reset() takes no seed, as in an old API; expected is reset(seed=None, options=None), after which "
                "all randomness follows from the seed"
            ) from None
        raise SpecError(f"its reset(){where} raises {told(error)}") from error


def step_answer(env: ThirdParty, action: Any, where: str) -> Any:
    """Step a copy; returns its answer. Raises SpecError for whatever it raises."""
    try:
        return env.step(action)
    except Exception as error:
        raise SpecError(f"the environment is broken: its step() {where} raises {told(error)}") from error


def reward_number(value: Any, who: str) -> float:
    """The reward of `who`; raises SpecError unless it is one real number that float32 can hold."""
    if isinstance(value, float) and -_LARGEST <= value <= _LARGEST:
        return value
    number = np.asarray(value)
    if number.size != 1 or number.dtype.kind not in "biuf":
        raise SpecError(f"the environment is broken: {who} has reward {shown(value)}; expected is one number")
    reward = float(number.reshape(()))
    if not -_LARGEST <= reward <= _LARGEST:
        beyond = ", beyond ±3.4e38, the largest of float32" if math.isfinite(reward) else ""
        raise SpecError(f"the environment is broken: {who} has reward {reward}{beyond}")
    return reward


def write_observation(row_O: ObsArray, numbers: NDArray[np.generic]) -> None:
    """Write a flat observation as float32 numbers, or an image as bytes; raises SpecError for numbers that are none."""
    if row_O.dtype == np.uint8:
        row_O[...] = numbers
        return
    if numbers.dtype == np.float32:
        row_O[...] = numbers
    else:
        with np.errstate(over="ignore"):
            row_O[...] = numbers
    if not np.isfinite(row_O).all():
        huge = np.isfinite(numbers.astype(np.float64)).all()
        raise SpecError(
            "observes numbers beyond ±3.4e38, the largest of float32" if huge else "observes NaN or infinite values"
        )


def pixels(env: ThirdParty) -> NDArray[np.uint8]:
    """The picture that a copy draws of itself, [height, width, 3], if it was made with `render_mode: rgb_array`."""
    try:
        found = env.render()
    except Exception as error:
        raise SpecError(
            f"cannot draw itself: {told(error)}. Where no display is the reason, SDL_VIDEODRIVER=dummy or, for MuJoCo, "
            "MUJOCO_GL=egl may help"
        ) from error
    if not isinstance(found, np.ndarray) or found.ndim != 3:
        raise SpecError("does not draw itself: its render() answers no pixels")
    return found.astype(np.uint8)


def close_all(envs: list[ThirdParty]) -> None:
    """Close every copy and empty the list; then raises SpecError if the close() of one has raised."""
    failed: Exception | None = None
    # Emptied on the way, so that a second close finds nothing, and one that raised is not called again.
    while envs:
        try:
            envs.pop().close()
        except Exception as error:  # noqa: BLE001  # third-party code may raise anything; the others must close, too
            failed = error
    if failed:
        raise SpecError(f"its close() raises {told(failed)}; correct it, or give the class a close() that does nothing")


def kind(answer: Any) -> str:
    """What a call answered, in a message."""
    if isinstance(answer, tuple):
        return f"{len(answer)} values"
    return "one dictionary" if isinstance(answer, dict) else shown(answer)


def _takes_seed(env: ThirdParty) -> bool:
    inner: ThirdParty = getattr(env, "unwrapped", env)  # wrappers hand on what they get
    try:
        parameters = inspect.signature(inner.reset).parameters.values()
    except (TypeError, ValueError):  # as of a method written in C
        return True
    return any(each.name == "seed" or each.kind is each.VAR_KEYWORD for each in parameters)
