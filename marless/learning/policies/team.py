"""Trained policies: as single safetensors files, and as a team, which acts on single observations or batches.

A file holds the acting part of a checkpoint; its metadata also has the agents, the origin, and a SHA-256 over metadata
and tensors, because safetensors itself does not detect damaged weights.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from marless.core import documents, regular_files
from marless.core.errors import CorruptError, SpecError, unknown_name
from marless.core.limits import MAX_AGENTS, MAX_PUBLISH_BYTES
from marless.learning.envs.base import ActionArray, AgentClass, BoolArray, Box, Discrete, EnvSpaces, FloatArray
from marless.learning.nets import acting_heads, serial
from marless.learning.nets.acting import Acting, ActingPolicies, ActingState, Arrays
from marless.learning.nets.inputs import Inputs

MOST_BYTES = 2**32
"""Maximum total size of the weights of all agents."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The job and checkpoint that policies come from; fields are empty if unknown."""

    job: str = ""
    round: int = 0
    """Rounds done when they were saved."""
    algorithm: str = ""
    env: str = ""
    env_options: Mapping[str, object] = field(default_factory=dict)
    run_dir: Path | None = None
    """The run folder, if they were loaded from one."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One policy at one version, and the agents that use it."""

    name: str
    agents: tuple[str, ...]
    version: int
    state: Acting

    @property
    def obs_size(self) -> int:
        """O, the observation size of its agents; raises CorruptError if it does not follow from the weights."""
        weight = self.state.acting.get("policy.0.weight")
        if weight is None or weight.ndim != 2:
            raise CorruptError(f"policy {self.name}: its state holds no weights to act with")
        size = int(weight.shape[1]) - Inputs.parse(self.state.metadata).extra(self.action)
        if size < 0:
            raise CorruptError(f"policy {self.name}: its weights are too small for its inputs")
        return size

    @property
    def action(self) -> Discrete | Box:
        """The action space of its agents; raises CorruptError if its metadata lack it."""
        try:
            return acting_heads.parse_action(self.state.metadata.get("action", ""))
        except ValueError as error:
            raise CorruptError(f"policy {self.name}: {error}") from None


class Team:
    """Trained policies by agent. Not thread-safe: buffers are reused between calls.

    The memory of recurrent policies covers the time since `begin`, or since the team was loaded.
    """

    def __init__(self, policies: Sequence[Policy], players: Mapping[str, ActingPolicies], origin: Origin) -> None:
        self.policies = {policy.name: policy for policy in policies}
        self.origin = origin
        self._players = players
        self._rng = np.random.default_rng()
        self._begun: dict[str, int] = {}
        """Number of copies in mid-episode, by agent with memory."""

    @classmethod
    def of(cls, policies: Sequence[Policy], origin: Origin) -> Team:
        """Prepare policies for acting; raises CorruptError if their weights are inconsistent or too large."""
        _check_size(policies)
        players: dict[str, ActingPolicies] = {}
        for policy in policies:
            for agent in policy.agents:  # one by one: each may have its own memory and id
                alone = AgentClass(policy.name, (agent,), policy.obs_size, policy.action)
                players[agent] = ActingPolicies.from_states(alone, [policy.state])
        return cls(policies, players, origin)

    @property
    def agents(self) -> tuple[str, ...]:
        """All agents that have a policy."""
        return tuple(self._players)

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

        An observation is [O], or [B, O] for B copies; its mask, True or 1 where an action is legal, is [A] or [B, A]. A
        discrete action is an int, or int32 [B]; a continuous one float32 [A] or [B, A], within its box. If a mask
        allows no action, the action is 0. `seed` seeds the team's random generator, which starts unseeded.

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
        """Write one policy atomically to a file that `load_policy` reads.

        Raises SpecError for an unknown policy, OSError.
        """
        if policy not in self.policies:
            raise SpecError(unknown_name("policy", policy, self.policies))
        write_policy(Path(path), self.policies[policy], self.origin)

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
        obs = _observation(agent, observation, player.agent_class.obs_size)
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


def _observation(agent: str, observation: ArrayLike, size: int) -> FloatArray:
    try:
        with np.errstate(over="ignore"):  # what is infinite in float32 is refused below
            obs = np.asarray(observation, np.float32)
    except (TypeError, ValueError):
        raise SpecError(f"the observation of {agent} is not an array of numbers: {observation!r:.100}") from None
    if obs.ndim not in (1, 2) or obs.shape[-1] != size:
        raise SpecError(f"{agent} observes [{size}] or [batch, {size}] numbers, got shape {list(obs.shape)}")
    if not np.isfinite(obs).all():
        raise SpecError(f"the observation of {agent} holds NaN or infinite numbers: {observation!r:.100}")
    return obs


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


def write_policy(path: Path, policy: Policy, origin: Origin) -> None:
    """Write a policy to a file atomically; raises OSError."""
    metadata = {
        **policy.state.metadata,
        "policy": policy.name,
        "agents": json.dumps(policy.agents),
        "version": str(policy.version),
        "job": origin.job,
        "round": str(origin.round),
        "algorithm": origin.algorithm,
        "env": origin.env,
        "env_options": json.dumps(origin.env_options),
        "marless_version": importlib.metadata.version("marless"),
    }
    metadata["sha256"] = _digest(metadata, policy.state.acting)
    # In the same directory, because only within one file system a file takes a name at once.
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(serial.encode_acting(ActingState(policy.state.acting, metadata)))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_policy(path: Path) -> tuple[Policy, Origin]:
    """Read a file of `write_policy`; raises SpecError for a file of another kind, and what `regular_files` lists."""
    data = regular_files.read(path, MAX_PUBLISH_BYTES)
    try:
        part = serial.decode_acting(data)
    except CorruptError as error:
        raise CorruptError(f"{path} is not a policy, or it is damaged: {error}") from None
    if "sha256" not in part.metadata:
        raise SpecError(f"{path} holds no exported policy; give a checkpoint's directory or a file of marless export")
    metadata = dict(part.metadata)
    if metadata.pop("sha256") != _digest(metadata, part.acting):
        raise CorruptError(f"{path} was changed after the export: its sha256 differs; export the policy again")
    metadata.pop("marless_version", None)  # it is for people
    try:
        agents = documents.from_json(metadata.pop("agents"), "agents")
        players = tuple(map(text_of, agents if isinstance(agents, list) else ()))
        name, version = text_of(metadata.pop("policy")), int(metadata.pop("version"))
        origin = Origin(
            job=text_of(metadata.pop("job")),
            round=int(metadata.pop("round")),
            algorithm=text_of(metadata.pop("algorithm")),
            env=text_of(metadata.pop("env")),
            env_options=options_of(documents.from_json(metadata.pop("env_options"), "env_options")),
        )
    except (SpecError, KeyError, TypeError, ValueError):
        raise CorruptError(
            f"{path} is not a policy, or it is damaged: its header lacks something of marless export"
        ) from None
    return Policy(name=name, agents=players, version=version, state=ActingState(part.acting, metadata)), origin


def text_of(value: object) -> str:
    """Return untrusted `value` if it is printable text; raises TypeError for anything else."""
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(value)
    return value


def options_of(value: object) -> Mapping[str, object]:
    """Return untrusted `value` if it is a mapping with text keys; raises TypeError for anything else."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError(value)
    return value


def _digest(metadata: Mapping[str, str], arrays: Arrays) -> str:
    # Shapes and types count, because equal bytes may be another matrix.
    shapes = {name: (array.dtype.name, array.shape) for name, array in arrays.items()}
    digest = hashlib.sha256(json.dumps([dict(metadata), shapes], sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()
