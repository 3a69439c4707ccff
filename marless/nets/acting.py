"""NumPy inference: all agents of one class act in all environment copies, in one batched product per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from marless.envs.base import ActionArray, AgentClass, BoolArray, Discrete, FloatArray
from marless.errors import CorruptError
from marless.nets import actions
from marless.nets.layout import checked

Arrays = Mapping[str, NDArray[np.generic]]
HALF_LOG_2PI = np.float32(0.9189385332046727)


class Acting(Protocol):
    """The part of a PolicyState that an actor needs."""

    @property
    def acting(self) -> Arrays:
        """Named weights."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """How to read them."""
        ...


@dataclass(frozen=True)
class ActingState:
    """What an actor pulls of a policy: its weights, and how to read them."""

    acting: Arrays
    metadata: Mapping[str, str]


class ActingPolicies:
    """The policies of one agent class, one per agent, acting together.

    Shapes: N agents of the class, B environment copies, O observation size, A actions or action components.
    Not safe to share between threads: buffers are reused from call to call. What is returned is the caller's own.
    """

    def __init__(
        self, agent_class: AgentClass, layers: Sequence[FloatArray], log_std_NA: FloatArray | None, activation: str
    ) -> None:
        self.agent_class = agent_class
        self._layers = layers
        self._log_std_NA = log_std_NA
        self._activate = np.tanh if activation == "tanh" else _relu
        self._buffers: list[FloatArray] = []
        self._offset_NB = np.empty((0, 0), np.intp)

    @classmethod
    def from_states(cls, agent_class: AgentClass, states: Sequence[Acting]) -> ActingPolicies:
        """Stack the weights of `states`, one per agent in class order; raises CorruptError if one does not fit.

        Pass the same object for agents that share a policy: if all do, the weights are kept once.
        """
        if len(states) != len(agent_class.agents):
            raise CorruptError(f"class {agent_class.name}: {len(states)} policies for {len(agent_class.agents)} agents")
        kinds = {(s.metadata.get("activation"), s.metadata.get("action")) for s in states}
        expected = actions.describe(agent_class.action)
        if len(kinds) != 1 or (kind := kinds.pop())[0] not in ("tanh", "relu") or kind[1] != expected:
            raise CorruptError(f"class {agent_class.name}: policies do not act in one way, with actions {expected}")
        owners = states[:1] if all(s is states[0] for s in states) else states
        layers = _stack_layers(agent_class, [s.acting for s in owners])
        log_std = None
        if not isinstance(agent_class.action, Discrete):
            log_std = np.stack([checked(s.acting, "policy.free", (agent_class.action.n,)) for s in owners])
        return cls(agent_class, layers, log_std, str(kind[0]))

    def sample(
        self, obs_NBO: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        """Draw actions, int32 [N, B] or (normalised, unclipped) float32 [N, B, A], and log-probabilities [N, B]."""
        output_NAB = self._output(obs_NBO, mask_NBA)
        if self._log_std_NA is not None:
            return _sample_gaussian(output_NAB, self._log_std_NA[:, :, None], rng)
        return self._sample_categorical(output_NAB, rng)

    def greedy(self, obs_NBO: FloatArray, mask_NBA: BoolArray | None) -> ActionArray:
        """The most probable actions, int32 [N, B] or (normalised) float32 [N, B, A]."""
        output_NAB = self._output(obs_NBO, mask_NBA)
        if self._log_std_NA is not None:
            return np.ascontiguousarray(output_NAB.transpose(0, 2, 1))
        best_NB: NDArray[np.int32] = output_NAB.argmax(axis=1).astype(np.int32)
        return best_NB

    def outputs(
        self, obs_NBO: FloatArray, mask_NBA: BoolArray | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Logits [N, B, A]; or the (normalised) means, and the log standard deviations [N or 1, A]."""
        return self._output(obs_NBO, mask_NBA).transpose(0, 2, 1), self._log_std_NA

    def to_env(self, action: ActionArray) -> ActionArray:
        """What the environment is given for actions of `sample` or `greedy`."""
        return actions.to_env(self.agent_class.action, action)

    def _output(self, obs_NBO: FloatArray, mask_NBA: BoolArray | None) -> FloatArray:
        if not self._buffers or self._buffers[0].shape[2] != obs_NBO.shape[1]:
            self._allocate(*obs_NBO.shape)
        self._buffers[0][:, :-1] = obs_NBO.transpose(0, 2, 1)
        for layer, source, target in zip(self._layers[:-1], self._buffers, self._buffers[1:], strict=False):
            hidden = target[:, :-1]
            np.matmul(layer, source, out=hidden)
            self._activate(hidden, out=hidden)
        output_NAB: FloatArray = np.matmul(self._layers[-1], self._buffers[-1])
        if mask_NBA is not None:
            output_NAB[~mask_NBA.transpose(0, 2, 1)] = actions.ILLEGAL_LOGIT
        return output_NAB

    def _allocate(self, agents: int, batch: int, _: int) -> None:
        # The last row of each buffer stays 1: it carries the bias (see `Layout`).
        self._buffers = [np.ones((agents, layer.shape[2], batch), np.float32) for layer in self._layers]
        outputs = self._layers[-1].shape[1]
        self._offset_NB = np.arange(agents)[:, None] * (outputs * batch) + np.arange(batch)

    def _sample_categorical(self, logits_NAB: FloatArray, rng: np.random.Generator) -> tuple[ActionArray, FloatArray]:
        logits_NAB -= logits_NAB.max(axis=1, keepdims=True)
        cumulative_NAB = np.exp(logits_NAB).cumsum(axis=1)
        total_NB = cumulative_NAB[:, -1]
        # Inverse transform with a threshold in (0, total]: an action of probability 0 cannot be drawn.
        threshold_NB = rng.random(total_NB.shape, np.float32)
        np.subtract(1, threshold_NB, out=threshold_NB)
        threshold_NB *= total_NB
        action_NB = (cumulative_NAB < threshold_NB[:, None]).sum(axis=1, dtype=np.int32)
        index_NB = action_NB * np.intp(total_NB.shape[1]) + self._offset_NB
        log_prob_NB = logits_NAB.take(index_NB)
        log_prob_NB -= np.log(total_NB)
        return action_NB, log_prob_NB


def _sample_gaussian(
    mean_NAB: FloatArray, log_std_NA1: FloatArray, rng: np.random.Generator
) -> tuple[ActionArray, FloatArray]:
    noise_NAB = rng.standard_normal(mean_NAB.shape, dtype=np.float32)
    log_prob_NB: FloatArray = np.square(noise_NAB).sum(axis=1)
    log_prob_NB *= -0.5
    log_prob_NB -= (log_std_NA1 + HALF_LOG_2PI).sum(axis=1)
    noise_NAB *= np.exp(log_std_NA1)
    action_NAB = np.add(mean_NAB, noise_NAB, out=noise_NAB)
    return np.ascontiguousarray(action_NAB.transpose(0, 2, 1)), log_prob_NB


def _stack_layers(agent_class: AgentClass, owners: Sequence[Arrays]) -> list[FloatArray]:
    depth = sum(name.endswith(".weight") for name in owners[0])
    layers, inputs = [], agent_class.obs_size
    for i in range(depth):
        name = f"policy.{i}.weight"
        last = i == depth - 1
        outputs = agent_class.action.n if last else owners[0][name].shape[0] if name in owners[0] else 0
        stacked = np.empty((len(owners), outputs, inputs + 1), np.float32)
        for row, arrays in zip(stacked, owners, strict=True):
            row[:, :-1] = checked(arrays, name, (outputs, inputs))
            row[:, -1] = checked(arrays, f"policy.{i}.bias", (outputs,))
        layers.append(stacked)
        inputs = outputs
    if not layers:
        raise CorruptError(f"class {agent_class.name}: the policy state holds no weights to act with")
    return layers


def _relu(x: FloatArray, out: FloatArray) -> FloatArray:
    return np.maximum(x, 0, out=out)
