"""A team of trained policies, which acts on single observations or batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from marless.core.errors import CorruptError, SpecError, unknown_name
from marless.core.limits import MAX_AGENTS
from marless.learning.envs.base import ActionArray, AgentClass, BoolArray, Box, Discrete, EnvSpaces, ObsArray
from marless.learning.nets.acting import ActingPolicies
from marless.learning.policies.onnx_file import SUFFIX, write_onnx
from marless.learning.policies.policy import Origin, Policy
from marless.learning.policies.policy_file import SavedTeam, write_policy, write_team

MOST_BYTES = 2**32
"""Maximum total size of the weights of all agents."""


class Team:
    """Trained policies by agent. Not thread-safe: buffers are reused between calls.

    The memory of recurrent policies covers the time since `begin`, or since the team was loaded.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        players: Mapping[str, ActingPolicies],
        origin: Origin,
        card: Mapping[str, Any],  # Any: JSON
    ) -> None:
        self.policies = {policy.name: policy for policy in policies}
        self.origin = origin
        self.card = card
        """How it was trained, as `marless export` has written it into the team's file; empty without such a file."""
        self._players = players
        self._rng = np.random.default_rng()
        self._begun: dict[str, int] = {}
        """Number of copies in mid-episode, by agent with memory."""

    @classmethod
    def of(
        cls,
        policies: Sequence[Policy],
        origin: Origin,
        card: Mapping[str, Any] | None = None,  # Any: JSON
    ) -> Team:
        """Prepare policies for acting; raises CorruptError if their weights are inconsistent or too large."""
        _check_size(policies)
        players: dict[str, ActingPolicies] = {}
        for policy in policies:
            agent_class = policy.agent_class
            for agent in policy.agents:  # one by one: each may have its own memory and id
                alone = replace(agent_class, agents=(agent,))
                players[agent] = ActingPolicies.from_states(alone, [policy.state])
        return cls(policies, players, origin, card or {})

    @property
    def agents(self) -> tuple[str, ...]:
        """All agents that have a policy."""
        return tuple(self._players)

    @property
    def remembers(self) -> bool:
        """True if actions depend on earlier steps of the episode, so that `begin` must be called for each episode."""
        return any(player.remembers for player in self._players.values())

    def begin(self, copies: ArrayLike | None = None, *, agents: Sequence[str] | None = None) -> None:
        """Start new episodes: reset the memory of policies; without effect for policies without memory.

        `copies`, bool [B], selects the copies in which an episode starts; None: all, after which the number of copies
        may change. `agents` selects those that begin anew, such as one that had left an episode and comes back; None:
        all. Raises SpecError for another number of copies than that of the observations so far.
        """
        begun = {agent: batch for agent, batch in self._begun.items() if agents is None or agent in agents}
        if copies is None:
            for agent in begun:
                del self._begun[agent]
            return
        # All are checked first, so that after an error no agent has begun anew without the others.
        anew_B = np.asarray(copies, np.bool_)
        for agent, batch in begun.items():
            if anew_B.shape != (batch,):
                raise SpecError(
                    f"copies that begin anew must be of shape [{batch}], as {agent} acts in so many, "
                    f"got {list(anew_B.shape)}"
                )
        for agent in begun:
            self._players[agent].reset_memory(anew_B[None])

    def act(
        self,
        observations: Mapping[str, ArrayLike],
        *,
        masks: Mapping[str, ArrayLike] | None = None,
        explore: bool = False,
        seed: int | None = None,
    ) -> dict[str, int | ActionArray]:
        """The actions of the agents in `observations`: greedy, or sampled with `explore`.

        An observation is [O], or [B, O] for B copies; an image may also be [C, H, W] or [B, C, H, W], of bytes, or of
        floating-point numbers that are scaled to [0, 1] already. Its mask, True or 1 where an action is legal, is [A]
        or [B, A]. A discrete action is an int, or int32 [B]; a continuous one float32 [A] or [B, A], within its box. If
        a mask allows no action, the action is 0. `seed` seeds the team's random generator, which starts unseeded.

        With memory, a call is the next step of each agent's episode: call `begin` when new ones start.

        Raises SpecError for an agent without a policy, for an observation or a mask of another shape, and for another
        number of copies in mid-episode.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        masks = masks or {}
        for agent in (*observations, *masks):
            if agent not in self._players:
                raise SpecError(unknown_name("agent", str(agent), self._players))
        return {
            agent: self._act(agent, observation, masks.get(agent), explore)
            for agent, observation in observations.items()
        }

    def export(self, policy: str, path: str | Path) -> None:
        """Write one policy atomically to a file that `load_policy` reads, by its suffix ONNX or safetensors.

        Raises SpecError for an unknown policy, and as `save` does; OSError.
        """
        if policy not in self.policies:
            raise SpecError(unknown_name("policy", policy, self.policies))
        chosen = self.policies[policy]
        if Path(path).suffix == SUFFIX:
            write_onnx(Path(path), SavedTeam(policies=(chosen,), origin=self.origin))
        else:
            write_policy(Path(path), chosen, self.origin)

    def save(self, path: str | Path, card: Mapping[str, Any] | None = None) -> None:  # Any: JSON
        """Write the whole team atomically to one file that `load_policy` reads, with its card, or another `card`.

        A path that ends with .onnx gets an ONNX graph (`marless.learning.policies.onnx_policy` lists its inputs and
        outputs). Raises SpecError for a team or card that is too large for one file, and for a net that has no ONNX
        form; OSError.
        """
        card = self.card if card is None else card
        saved = SavedTeam(policies=list(self.policies.values()), origin=self.origin, card=card)
        (write_onnx if Path(path).suffix == SUFFIX else write_team)(Path(path), saved)

    def acting(self, spaces: EnvSpaces) -> tuple[ActingPolicies, ...]:
        """The policies, stacked per agent class of an environment, for the functions of
        `marless.learning.data.rollout`.

        Raises SpecError if an agent has no policy, or one with other spaces.
        """
        states = {agent: policy.state for policy in self.policies.values() for agent in policy.agents}
        missing = [agent for agent in spaces.agents if agent not in states]
        if missing:
            raise SpecError(
                f"no policy for {', '.join(missing)} of this environment; there is one for {', '.join(self.agents)}"
            )
        try:
            return tuple(ActingPolicies.from_states(c, [states[agent] for agent in c.agents]) for c in spaces.classes)
        except CorruptError as error:
            raise SpecError(f"the policies do not fit this environment: {error}") from None

    def _act(self, agent: str, observation: ArrayLike, mask: ArrayLike | None, explore: bool) -> int | ActionArray:
        player = self._players[agent]
        obs = _observation(agent, observation, player.agent_class)
        obs_1BO = obs.reshape(1, -1, player.agent_class.obs_size)
        if player.remembers:
            self._continue(agent, player, obs_1BO.shape[1])
        mask_1BA = None if mask is None else _mask(agent, mask, obs.shape[:-1], player.agent_class.action)
        if explore:
            chosen, _ = player.sample(obs_1BO, mask_1BA, self._rng)
        else:
            chosen = player.greedy(obs_1BO, mask_1BA)
        action: ActionArray = player.to_env(chosen)[0]
        if obs.ndim == 2:
            return action
        return int(action[0]) if action.ndim == 1 else action[0]

    def _continue(self, agent: str, player: ActingPolicies, batch: int) -> None:
        begun = self._begun.get(agent)
        if begun is None:
            player.begin(batch)
            self._begun[agent] = batch
        elif begun != batch:
            raise SpecError(
                f"{agent} remembers {begun} episodes and observes {batch} copies; call begin() to start new episodes"
            )


def _check_size(policies: Sequence[Policy]) -> None:
    """Raise CorruptError for too many agents, too large or non-finite weights: each agent gets a copy of its weights,
    and a small file may declare a million agents.
    """
    agents = sum(len(policy.agents) for policy in policies)
    held = sum(len(policy.agents) * sum(each.nbytes for each in policy.state.acting.values()) for policy in policies)
    if agents > MAX_AGENTS or held > MOST_BYTES:
        raise CorruptError(
            f"{agents} agents with {held:,} bytes of weights; a team has at most {MAX_AGENTS} with {MOST_BYTES:,}"
        )
    for policy in policies:
        if not all(np.isfinite(each).all() for each in policy.state.acting.values() if each.dtype.kind == "f"):
            raise CorruptError(f"policy {policy.name}: its weights are not all finite numbers")


def _observation(agent: str, observation: ArrayLike, agent_class: AgentClass) -> ObsArray:
    if agent_class.image is not None:
        return _image(agent, observation, agent_class.image)
    size = agent_class.obs_size
    if isinstance(observation, np.ndarray) and observation.dtype == np.float32:
        obs: ObsArray = observation  # to convert what is converted takes a tenth of the time of an action
    else:
        try:
            with np.errstate(over="ignore"):  # what is infinite in float32 is refused below
                obs = np.asarray(observation, np.float32)
        except (TypeError, ValueError):
            raise SpecError(f"the observation of {agent} is not an array of numbers: {observation!r:.100}") from None
    if obs.ndim not in (1, 2) or obs.shape[-1] != size:
        raise SpecError(f"{agent} observes [{size}] or [batch, {size}] numbers, got shape {list(obs.shape)}")
    if not np.logical_and.reduce(np.isfinite(obs), axis=None):  # as `all`, whose wrapper is dearer than its work
        raise SpecError(f"the observation of {agent} holds NaN or infinite numbers: {observation!r:.100}")
    return obs


def _image(agent: str, observation: ArrayLike, image: tuple[int, int, int]) -> ObsArray:
    """The pixels [O] or [B, O] of images: bytes, or float32 in [0, 1]."""
    found, size = np.asarray(observation), prod(image)
    if found.shape[-3:] == image and found.ndim in (3, 4):
        found = found.reshape(*found.shape[:-3], size)
    if found.dtype.kind not in "uif" or found.ndim not in (1, 2) or found.shape[-1] != size:
        raise SpecError(
            f"{agent} observes images {list(image)}, [{size}] or a batch of them, got "
            f"{found.dtype.name}{list(found.shape)}"
        )
    highest = 1 if found.dtype.kind == "f" else 255
    # Not "outside of", so that NaN is refused, too.
    if not ((found >= 0) & (found <= highest)).all():
        raise SpecError(
            f"the image that {agent} observes has values outside of 0…{highest}; images are bytes, or floating-point "
            "numbers that are scaled to 0…1"
        )
    return found.astype(np.float32) if found.dtype.kind == "f" else found.astype(np.uint8)


def _mask(agent: str, mask: ArrayLike, batch: tuple[int, ...], action: Discrete | Box) -> BoolArray:
    if not isinstance(action, Discrete):
        raise SpecError(f"{agent} acts continuously: leave its mask out")
    # A copy, because a mask that allows nothing is changed below.
    legal = np.array(mask, np.bool_)
    if legal.shape != (*batch, action.n):
        raise SpecError(f"the mask of {agent} must be of shape {[*batch, action.n]}, got {list(legal.shape)}")
    legal_1BA = legal.reshape(1, -1, action.n)
    legal_1BA[~legal_1BA.any(axis=-1), 0] = True
    return legal_1BA
