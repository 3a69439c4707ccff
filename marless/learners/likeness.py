"""How alike the agents of a class behave, measured beside an update, in a thread of its own.

It begins as soon as the round's samples are there, and its result is taken when training is done. Shapes as in
`marless.learners.table` and `marless.sharing.similarity`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marless.algos.base import FunctionRun, RoundInput, SimilarityConfig
from marless.envs.base import AgentClass, Discrete
from marless.learners.table import Table
from marless.nets.acting import Acting, ActingPolicies
from marless.sharing.similarity import (
    LEAST_SAMPLES,
    Behaviour,
    BoolArray,
    Choices,
    FloatArray,
    Normals,
    make_similarity,
)

_STREAM = 2
"""Keeps these draws apart from others of the same round."""


@dataclass(frozen=True)
class Pending:
    """A measurement under way, or none."""

    _future: Future[tuple[NDArray[np.float64] | None, float, float, float]] | None
    _class: str

    def result(self) -> tuple[Mapping[str, NDArray[np.float64]], tuple[FunctionRun, ...]]:
        """The distances [N, N] by class, and the function that took them; waits for it. Nothing if not asked for.

        Also none where an agent has too few samples. Its vCPU-seconds are its thread's own: it waits for others.
        """
        if self._future is None:
            return {}, ()
        distances, start_s, end_s, vcpu_s = self._future.result()
        found = {} if distances is None else {self._class: distances}
        return found, (FunctionRun("similarity", self._class, start_s, end_s, vcpu_s),)


def begin(inputs: RoundInput, agent_class: AgentClass, table: Table, state: Callable[[str], Acting]) -> Pending:
    """Start to measure, if the round asks for it, before any policy is trained: `state` gives copies of those that
    groups start from.
    """
    config = inputs.measure.similarity
    if config is None:
        return Pending(None, agent_class.name)
    owners = {agent: group.start for group in inputs.groups for agent in group.agents}
    states = {policy: state(policy) for policy in owners.values()}
    acting = {agent: states[policy] for agent, policy in owners.items()}
    pool = ThreadPoolExecutor(1, "similarity")
    future = pool.submit(_measure, inputs, config, agent_class, table, acting)
    pool.shutdown(wait=False)
    return Pending(future, agent_class.name)


def _measure(
    inputs: RoundInput,
    config: SimilarityConfig,
    agent_class: AgentClass,
    table: Table,
    acting: Mapping[str, Acting],
) -> tuple[NDArray[np.float64] | None, float, float, float]:
    start_s, before_s = time.time(), time.thread_time()
    rng = np.random.default_rng([inputs.seed, inputs.round, _STREAM])
    seen = behaviour(table, agent_class, acting, config.samples, rng)
    distances = make_similarity(config).distances(seen, rng) if seen else None
    return distances, start_s, time.time(), time.thread_time() - before_s


def behaviour(
    table: Table, agent_class: AgentClass, acting: Mapping[str, Acting], samples: int, rng: np.random.Generator
) -> Behaviour | None:
    """At most `samples` samples of each agent while it was alive, equally many of all; None if they are too few."""
    agents, _, count = table.obs.shape
    living = [np.arange(count) if table.alive is None else np.flatnonzero(table.alive[i, 0]) for i in range(agents)]
    drawn = min(samples, *map(len, living))
    if drawn < LEAST_SAMPLES:
        return None
    index_NS = np.stack([rng.choice(each, drawn, replace=False) for each in living])
    action_NSA = _columns(table.action, index_NS)
    if isinstance(agent_class.action, Discrete):
        action_NSA = np.eye(agent_class.action.n, dtype=np.float32)[action_NSA[..., 0].astype(np.intp)]
    legal = None if table.legal is None else _columns(table.legal, index_NS) > 0
    policies = ActingPolicies.from_states(agent_class, [acting[agent] for agent in agent_class.agents])

    def act(obs_MO: FloatArray, legal_MA: BoolArray | None) -> Choices | Normals:
        return _distributions(policies, agents, obs_MO, legal_MA)

    return Behaviour(_columns(table.obs, index_NS)[..., :-1], action_NSA, legal, act)


def _columns(rows_NRS: FloatArray, index_NS: NDArray[np.intp]) -> FloatArray:
    """[N, S, R] of the samples chosen."""
    taken_NRS = np.take_along_axis(rows_NRS, index_NS[:, None], axis=2)
    return np.ascontiguousarray(taken_NRS.transpose(0, 2, 1))


def _distributions(
    policies: ActingPolicies, agents: int, obs_MO: FloatArray, legal_MA: BoolArray | None
) -> Choices | Normals:
    obs_NMO = np.broadcast_to(obs_MO, (agents, *obs_MO.shape))
    legal_NMA = None if legal_MA is None else np.broadcast_to(legal_MA, (agents, *legal_MA.shape))
    output_NMA, log_std_NA = policies.outputs(obs_NMO, legal_NMA)
    if log_std_NA is not None:
        return Normals(output_NMA, np.exp(np.broadcast_to(log_std_NA, (agents, log_std_NA.shape[1]))))
    weight_NMA = np.exp(output_NMA - output_NMA.max(axis=2, keepdims=True))
    return Choices(weight_NMA / weight_NMA.sum(axis=2, keepdims=True))
