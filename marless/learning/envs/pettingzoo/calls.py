"""Calls a PettingZoo environment and checks its answers, so that an error names the call, the agent and the step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from marless.core.errors import SpecError, shown, told
from marless.learning.envs.pettingzoo.agents import ParallelEnv

Answer = Mapping[Any, Any]
"""By agent."""
_STEP = ("observations", "rewards", "terminations", "truncations", "infos")


def call_reset(env: ParallelEnv, seed: int, where: str) -> tuple[Answer, Answer]:
    """Reset a copy; returns observations and infos by agent. Infos may be left out by None.

    `where` names the copy in messages. Raises SpecError for another answer, and for whatever the environment raises.
    """
    try:
        answer = env.reset(seed=seed)
    except Exception as error:
        # A TypeError may also come from within the call, so the signature decides whether the seed is the reason.
        if isinstance(error, TypeError) and not _takes_seed(env):
            raise SpecError(
                "its reset() takes no seed, as in an old API; expected is reset(seed=None, options=None), after which "
                "all randomness follows from the seed"
            ) from None
        raise SpecError(f"its reset(){where} raises {told(error)}") from error
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Mapping):
        raise SpecError(
            f"its reset(){where} answers {_kind(answer)}; expected are two dictionaries: (observations, infos) by agent"
        )
    return answer[0], _infos(answer[1], f"reset(){where}")


def call_step(env: ParallelEnv, actions: Answer, where: str) -> tuple[Answer, Answer, Answer, Answer, Answer]:
    """Step a copy; returns observations, rewards, terminations, truncations and infos by agent.

    `where` names copy and step in messages. Raises SpecError as `call_reset` does.
    """
    try:
        answer = env.step(actions)
    except Exception as error:
        raise SpecError(f"the environment is broken: its step() {where} raises {told(error)}") from error
    if not isinstance(answer, tuple) or len(answer) != len(_STEP):
        raise SpecError(
            f"its step() {where} answers {_kind(answer)}; expected are five dictionaries by agent: {', '.join(_STEP)}"
        )
    for name, part in zip(_STEP[:-1], answer, strict=False):
        if not isinstance(part, Mapping):
            raise SpecError(f"its step() {where} answers {shown(part)} as {name}; expected is a dictionary by agent")
    return (*answer[:4], _infos(answer[4], f"step() {where}"))


def reward_of(agent: Any, rewards: Answer, where: str) -> float:
    """The reward of an agent, 0 if it is given none; raises SpecError unless it is one finite real number."""
    value = rewards.get(agent, 0.0)
    number = np.asarray(value)
    if number.size != 1 or number.dtype.kind not in "biuf":
        raise SpecError(
            f"the environment is broken: agent {agent!r} {where} has reward {shown(value)}; expected is one number"
        )
    reward = float(number.reshape(()))
    if not math.isfinite(reward):
        raise SpecError(f"the environment is broken: agent {agent!r} {where} has reward {reward}")
    return reward


def _infos(infos: Any, call: str) -> Answer:  # Any: whatever the environment answers
    if infos is None:  # it has nothing to tell
        return {}
    if not isinstance(infos, Mapping):
        raise SpecError(f"its {call} answers {shown(infos)} as infos; expected is a dictionary by agent")
    return infos


def _takes_seed(env: ParallelEnv) -> bool:
    try:
        parameters = inspect.signature(env.reset).parameters.values()
    except (TypeError, ValueError):  # as of a method written in C
        return True
    return any(each.name == "seed" or each.kind is each.VAR_KEYWORD for each in parameters)


def _kind(answer: Any) -> str:  # Any: whatever the environment answers
    """What a call answered, in a message."""
    if isinstance(answer, tuple):
        return f"{len(answer)} values"
    return "one dictionary" if isinstance(answer, Mapping) else shown(answer)
