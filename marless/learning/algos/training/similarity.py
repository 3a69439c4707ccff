"""Measures the similarity of the agents of a class, concurrently with an update, on a thread of its own.

It starts as soon as the round's samples are available, and its result is read when training is done. Also for
off-policy algorithms, it uses samples of the round, which show the present behaviour, and not those of the replay
buffer. How each kind of policy is evaluated:

- stochastic policies by their distributions: squashed ones before squashing, Beta distributions by normal ones of the
  same means and deviations;
- ε-greedy policies by their greedy actions, deterministic ones by their actions without noise, because exploration is
  the same for all agents of a class and unrelated to what they learned;
- the last action, if it is an input, counts as part of the observation, except beside images, where it is as at the
  start of an episode; the agent's id does not, because then no two agents would be similar: each policy is evaluated
  with the id of its own agent;
- recurrent policies are evaluated as at the start of an episode, because no policy has the memory of another agent.

Shapes as in `marless.learning.algos.training.table` and `marless.learning.similarity.measures`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from marless.core.group import FunctionRun
from marless.core.settings import SimilarityConfig
from marless.core.stopwatch import Stopwatch
from marless.learning.algos.learner import RoundInput
from marless.learning.algos.training.table import Table
from marless.learning.envs.base import AgentClass, Discrete
from marless.learning.nets import observed_forms
from marless.learning.nets.acting import Acting, ActingPolicies, ActingState
from marless.learning.nets.acting_heads import EPSILON_GREEDY
from marless.learning.nets.inputs import FRAMES, Inputs
from marless.learning.similarity.measures import (
    LEAST_SAMPLES,
    Behaviour,
    BoolArray,
    Choices,
    FloatArray,
    Normals,
    make_similarity,
)

_STREAM = 2
"""Number of the random stream of these draws, which must differ from other streams of the same round."""


@dataclass(frozen=True)
class PendingMeasurement:
    """A measurement that is under way, or none."""

    _future: Future[tuple[NDArray[np.float64] | None, float, float, float]] | None
    _class: str

    def result(self) -> tuple[Mapping[str, NDArray[np.float64]], tuple[FunctionRun, ...]]:
        """Wait for the distances [N, N], by class, and the function's run; both are empty if it was not asked for.

        There are no distances if an agent has too few samples. vCPU seconds are the CPU time of its thread, because it
        often waits for other threads.
        """
        if self._future is None:
            return {}, ()
        distances, start_s, end_s, vcpu_s = self._future.result()
        found = {} if distances is None else {self._class: distances}
        return found, (FunctionRun("similarity", self._class, start_s, end_s, vcpu_s, vcpu_s),)


def begin(
    inputs: RoundInput, agent_class: AgentClass, table: Callable[[], Table], state: Callable[[str], Acting]
) -> PendingMeasurement:
    """Start the measurement, if the round asks for it; called before any policy is trained.

    Args:
        table: Returns the round's samples of the class; called in the measurement's thread.
        state: Returns a copy of the state of a policy that a group of the class starts from.
    """
    config = inputs.measure.similarity
    if config is None:
        return PendingMeasurement(None, agent_class.name)
    owners = {agent: group.start for group in inputs.groups for agent in group.agents if agent in agent_class.agents}
    states = {policy: state(policy) for policy in owners.values()}
    acting: dict[str, Acting] = {agent: states[policy] for agent, policy in owners.items()}
    pool = ThreadPoolExecutor(1, "similarity")
    future = pool.submit(_measure, inputs, config, agent_class, table, acting)
    # Does not end the task that runs: the thread ends by itself after it.
    pool.shutdown(wait=False)
    return PendingMeasurement(future, agent_class.name)


def _measure(
    inputs: RoundInput,
    config: SimilarityConfig,
    agent_class: AgentClass,
    table: Callable[[], Table],
    acting: Mapping[str, Acting],
) -> tuple[NDArray[np.float64] | None, float, float, float]:
    watch, before_s = Stopwatch.start(), time.thread_time()
    rng = np.random.default_rng([inputs.seed, inputs.round, _STREAM])
    seen = behaviour(table(), agent_class, acting, config.samples, rng)
    distances = None
    if seen:
        distances = make_similarity(config).distances(replace(seen, stopped=inputs.stopped), rng)
    return distances, watch.started_s, watch.now_s, time.thread_time() - before_s


def behaviour(
    table: Table, agent_class: AgentClass, acting: Mapping[str, Acting], samples: int, rng: np.random.Generator
) -> Behaviour | None:
    """Draw samples of each agent while it was alive, at most `samples` and equally many of all; None if too few."""
    agents, _, count = table.obs.shape
    living = [np.arange(count) if table.alive is None else np.flatnonzero(table.alive[i, 0]) for i in range(agents)]
    drawn = min(samples, *map(len, living))
    if drawn < LEAST_SAMPLES:
        return None
    index_NS = np.stack([rng.choice(each, drawn, replace=False) for each in living])
    legal = None if table.legal is None else _columns(table.legal, index_NS) > 0
    obs_NSO = _columns(table.obs, index_NS)[..., :-1]
    if table.images is not None:
        obs_NSO = table.images.scaled(obs_NSO.astype(np.int64))
    states = [acting[agent] for agent in agent_class.agents]
    if table.images is not None:
        agent_class = Inputs.parse(states[0].metadata).stacked(agent_class)
        # The same policies, with all images that they read as one observation.
        states = [_with_one_image(state, agent_class) for state in states]
    elif Inputs.parse(states[0].metadata).last_action:
        obs_NSO = np.concatenate([obs_NSO, _actions_before(table, index_NS, agent_class)], axis=2)
        agent_class = replace(agent_class, obs_size=obs_NSO.shape[2])
        # The same policies, with the last action as part of the observation, which it directly follows in the inputs.
        for i, state in enumerate(states):
            inputs = Inputs.parse(state.metadata)
            kept = {key: text for key, text in state.metadata.items() if key not in inputs.metadata()}
            states[i] = ActingState(state.acting, kept | replace(inputs, last_action=False).metadata())
    policies, acts = ActingPolicies.from_states(agent_class, states), states[0].metadata.get("acts", "")
    asked = partial(_distributions, agent_class, policies, acts)
    return Behaviour(obs_NSO, _actions(table, index_NS, agent_class), legal, asked)


def _with_one_image(state: Acting, agent_class: AgentClass) -> Acting:
    kept = {key: text for key, text in state.metadata.items() if key != FRAMES}
    return ActingState(state.acting, kept | observed_forms.metadata_of(agent_class))


def _columns(rows_NRS: FloatArray, index_NS: NDArray[np.intp]) -> FloatArray:
    """[N, S, R], rows of the chosen samples."""
    taken_NRS = np.take_along_axis(rows_NRS, index_NS[:, None], axis=2)
    return np.ascontiguousarray(taken_NRS.transpose(0, 2, 1))


def _actions(table: Table, index_NS: NDArray[np.intp], agent_class: AgentClass) -> FloatArray:
    """[N, S, A], actions; discrete ones as one-hot vectors."""
    action_NSR = _columns(table.action, index_NS)
    if isinstance(agent_class.action, Discrete):
        return np.eye(agent_class.action.n, dtype=np.float32)[action_NSR[..., 0].astype(np.intp)]
    return action_NSR


def _actions_before(table: Table, index_NS: NDArray[np.intp], agent_class: AgentClass) -> FloatArray:
    """[N, S, A], actions in the step before; 0 where agents begin anew, as in `marless.learning.nets.inputs`."""
    # Samples are time-major, so the step before lies one row of all copies back.
    before_NS = index_NS - table.cut.shape[1]
    starts_NS = (before_NS < 0) | table.cut.ravel()[np.maximum(before_NS, 0)]
    if table.returned is not None:
        starts_NS |= np.take_along_axis(table.returned.reshape(len(index_NS), -1), index_NS, axis=1)
    before_NSA = _actions(table, np.maximum(before_NS, 0), agent_class)
    before_NSA[starts_NS] = 0
    return before_NSA


def _distributions(
    agent_class: AgentClass, policies: ActingPolicies, acts: str, obs_MO: FloatArray, legal_MA: BoolArray | None
) -> Choices | Normals:
    """Action distributions of every agent's policy on any observations; see `Behaviour.policies`."""
    agents = len(agent_class.agents)
    obs_NMO = np.broadcast_to(obs_MO, (agents, *obs_MO.shape))
    legal_NMA = None if legal_MA is None else np.broadcast_to(legal_MA, (agents, *legal_MA.shape))
    policies.begin(len(obs_MO))
    output_NMA, log_std = policies.outputs(obs_NMO, legal_NMA)
    if not isinstance(agent_class.action, Discrete):
        if log_std is None:
            return Normals(output_NMA, np.zeros_like(output_NMA))
        log_std_NxA = log_std if log_std.ndim == 3 else log_std[:, None]
        return Normals(output_NMA, np.broadcast_to(np.exp(log_std_NxA), output_NMA.shape))
    if acts == EPSILON_GREEDY:
        return Choices(np.eye(output_NMA.shape[2], dtype=np.float32)[output_NMA.argmax(axis=2)])
    weight_NMA = np.exp(output_NMA - output_NMA.max(axis=2, keepdims=True))
    return Choices(weight_NMA / weight_NMA.sum(axis=2, keepdims=True))
