"""The agents of a PettingZoo environment, and the calls to it, whose answers are checked.

Rows follow from the agents' names alone, with numbers in them compared as numbers: agent_2 comes before agent_10. The
order in which an environment lists its agents may be that of a set, which differs between processes, while
trajectories, episode logs and replays have no names. An error names the call, the agent and the step.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from marless.core.errors import SpecError, shown
from marless.learning.envs.base import AgentClass, Discrete
from marless.learning.envs.gymnasium.calls import kind, reset_answer, reward_number, step_answer
from marless.learning.envs.gymnasium.images import WHOLE, ImageLook
from marless.learning.envs.gymnasium.masks import MASK, MaskChoice
from marless.learning.envs.gymnasium.spaces import SpaceCodec, check_found, codec, with_mask_of_infos

# Any stands for PettingZoo's objects, because third-party ones need not subclass anything.
ParallelEnv = Any
Answer = Mapping[Any, Any]
"""By agent."""


class Seats:
    """Maps each agent to its class and its row there, and each class to its codec."""

    def __init__(
        self,
        env: ParallelEnv,
        observations: Mapping[Any, Any],
        infos: Mapping[Any, Any],
        choice: MaskChoice,
        look: ImageLook = WHOLE,
    ) -> None:
        """Read the spaces of all possible agents, after a reset with these answers. Raises SpecError."""
        if not hasattr(env, "possible_agents"):
            raise SpecError("does not declare possible_agents, so its agents cannot be known in advance")
        self.codecs: list[SpaceCodec] = []
        self.notes: list[str] = []
        """What a user should know of how masks were found."""
        self._members: list[list[Any]] = []
        self._actions: dict[Any, Any] = {}
        """The action space of each agent."""
        for agent in sorted(env.possible_agents, key=lambda agent: _in_order(_name(agent))):
            mine, notes = _codec(env, agent, observations, choice)
            self._actions[agent] = mine.action
            mine = replace(mine, look=look)
            if mine not in self.codecs:
                self.codecs.append(mine)
                self._members.append([])
                self.notes += notes
            self._members[self.codecs.index(mine)].append(agent)
        self._seat = {a: (k, i) for k, agents in enumerate(self._members) for i, a in enumerate(agents)}
        self._find_masks(infos, choice)
        self.unmasked = choice.auto and not self.masked
        """True if masks were looked for, and none was found."""
        self.classes = self._classes()
        self.discrete = tuple(isinstance(each.action, Discrete) for each in self.classes)
        """Whether the actions of each class are discrete, so that masks apply to them."""

    @property
    def masked(self) -> str:
        """Where masks are, class by class; "" if there are none."""
        sources = {str(each.mask_source): None for each in self.codecs if each.mask_source}
        return "; ".join(sources)

    def _find_masks(self, infos: Mapping[Any, Any], choice: MaskChoice) -> None:
        """Look in the infos after a reset for the masks of classes that observe none."""
        for k, (mine, members) in enumerate(zip(self.codecs, self._members, strict=True)):
            told = [info for info in map(infos.get, members) if info]
            self.codecs[k], notes = with_mask_of_infos(mine, told, choice)
            self.notes += notes
        # Infos may tell of more than agents, so that only a mask shows that the name of an agent was meant.
        masks = {name: info for name, info in infos.items() if isinstance(info, Mapping) and MASK in info}
        self.check_names([(f"{MASK!r} in the infos", masks)], self._seat, "reset()")
        check_found(self.codecs, choice)

    def __contains__(self, agent: Any) -> bool:
        return agent in self._seat

    def __getitem__(self, agent: Any) -> tuple[int, int]:
        """Class and row of an agent; raises SpecError for one that the environment did not declare."""
        if agent not in self._seat:
            raise SpecError(f"agent {agent!r} takes part, which is not among its possible_agents")
        return self._seat[agent]

    def check_actions(self, env: ParallelEnv, where: str) -> None:
        """Raise SpecError if an agent that takes part has another action space than first: policies know that one."""
        for agent in env.agents:
            known = self._actions.get(agent)
            try:
                with warnings.catch_warnings():  # of spaces that are declared by attributes alone
                    warnings.simplefilter("ignore")
                    now = env.action_space(agent)
            except Exception:  # noqa: BLE001  # some environments answer for some agents only, or just once
                continue
            if now is not known and known is not None and now != known:
                raise SpecError(
                    f"agent {agent!r} {where} has action space {now}, at first it was {known}; it may not change: "
                    "declare all actions, and forbid some by a mask"
                )

    def check_names(self, answers: Iterable[tuple[str, Answer]], agents: Iterable[Any], call: str) -> None:
        """Raise SpecError for an answer that has a name of nobody and lacks one of `agents`.

        What is said under that name would be lost, as by a misspelling. A name of nobody beside those of all agents
        is no fault: RLlib's environments have "__all__".
        """
        for what, answer in answers:
            strange = [name for name in answer if name not in self._seat]
            missing = [agent for agent in agents if agent not in answer] if strange else []
            if missing:
                raise SpecError(
                    f"its {call} answers {what} for {strange[0]!r}, which is not among its possible_agents, and none "
                    f"for {missing[0]!r}; expected are the names of agents"
                )

    def _classes(self) -> tuple[AgentClass, ...]:
        """The agent classes, named after their first agent without its number."""
        classes: list[AgentClass] = []
        for mine, members in zip(self.codecs, self._members, strict=True):
            agents = tuple(_name(agent) for agent in members)
            name = re.sub(r"_?\d+$", "", agents[0]) or "agent"
            if name in [c.name for c in classes]:
                name = f"{name}_{len(classes)}"
            classes.append(AgentClass(name, agents, mine.obs_size, mine.action_space, mine.image))
        return tuple(classes)


def _name(agent: Any) -> str:
    return agent if isinstance(agent, str) else f"agent_{agent}"


def _in_order(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names with the numbers in them as numbers."""
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def _codec(
    env: ParallelEnv, agent: Any, observations: Mapping[Any, Any], choice: MaskChoice
) -> tuple[SpaceCodec, list[str]]:
    try:
        with warnings.catch_warnings():  # without spaces, PettingZoo warns before it raises
            warnings.simplefilter("ignore")
            space, action = env.observation_space(agent), env.action_space(agent)
    except AttributeError:
        if agent not in observations or not hasattr(env, "action_spaces"):
            raise SpecError(f"does not declare the spaces of agent {agent!r}") from None
        shape = np.shape(observations[agent])
        space, action = spaces.Box(-np.inf, np.inf, shape), env.action_space(agent)
    try:
        return codec(space, action, choice)
    except SpecError as error:
        raise SpecError(f"agent {agent!r}: {error}") from None


STEP = ("observations", "rewards", "terminations", "truncations", "infos")
"""What a step answers."""


def call_reset(env: ParallelEnv, seed: int, where: str) -> tuple[Answer, Answer]:
    """Reset a copy; returns observations and infos by agent. Infos may be left out by None.

    `where` names the copy in messages. Raises SpecError for another answer, and for whatever the environment raises.
    """
    answer = reset_answer(env, seed, where)
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Mapping):
        raise SpecError(
            f"its reset(){where} answers {kind(answer)}; expected are two dictionaries: (observations, infos) by agent"
        )
    return answer[0], _infos(answer[1], f"reset(){where}")


def call_step(env: ParallelEnv, actions: Answer, where: str) -> tuple[Answer, Answer, Answer, Answer, Answer]:
    """Step a copy; returns observations, rewards, terminations, truncations and infos by agent.

    `where` names copy and step in messages. Raises SpecError as `call_reset` does.
    """
    answer = step_answer(env, actions, where)
    if not isinstance(answer, tuple) or len(answer) != len(STEP):
        raise SpecError(
            f"its step() {where} answers {kind(answer)}; expected are five dictionaries by agent: {', '.join(STEP)}"
        )
    for name, part in zip(STEP[:-1], answer, strict=False):
        if not isinstance(part, Mapping):
            raise SpecError(f"its step() {where} answers {shown(part)} as {name}; expected is a dictionary by agent")
    return (*answer[:4], _infos(answer[4], f"step() {where}"))


def reward_of(agent: Any, rewards: Answer, where: str) -> float:
    """The reward of an agent, 0 if it is given none; raises SpecError unless it is one finite real number."""
    return reward_number(rewards.get(agent, 0.0), f"agent {agent!r} {where}")


def _infos(infos: Any, call: str) -> Answer:  # Any: whatever the environment answers
    if infos is None:  # it has nothing to tell
        return {}
    if not isinstance(infos, Mapping):
        raise SpecError(f"its {call} answers {shown(infos)} as infos; expected is a dictionary by agent")
    return infos
