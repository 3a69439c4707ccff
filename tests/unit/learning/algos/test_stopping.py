"""Updates end early, between two steps of their work, once nobody wants them any more."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from marless.core.group import Group
from marless.core.interruption import StoppedError
from marless.core.settings import CurvatureSpec, Measure
from marless.learning.similarity.measures import Behaviour, Choices, KdeConfig, similarity
from tests.unit.learning.algos import rounds

STEPS = 6
"""Gradient steps of an update."""
OFF_POLICY = {"warmup": 0, "batch": 8, "updates": STEPS}
TEAM = (Group("s", ("s",)), *rounds.INDEPENDENT)
KINDS = {
    "ippo": (rounds.DISCRETE, {"epochs": 3, "minibatches": 2}),
    "mappo": (rounds.DISCRETE, {"epochs": 3, "minibatches": 2}),
    "iql": (rounds.DISCRETE, OFF_POLICY),
    "vdn": (rounds.DISCRETE, OFF_POLICY),
    "pqn": (rounds.DISCRETE, {"epochs": 3, "minibatches": 2}),
    "pqn_vdn": (rounds.DISCRETE, {"epochs": 3, "minibatches": 2}),
    "iddpg": (rounds.CONTINUOUS, OFF_POLICY),
    "maddpg": (rounds.CONTINUOUS, OFF_POLICY),
    "sac": (rounds.CONTINUOUS, OFF_POLICY),
}


def update(name, stopped, measure=None):
    spaces, settings = KINDS[name]
    groups = TEAM if name in ("vdn", "pqn_vdn") else rounds.INDEPENDENT
    learner = rounds.learner(name, spaces, groups, **settings)
    given = rounds.inputs(groups, [rounds.trajectory(spaces, seed) for seed in (1, 2)])
    return learner.update(replace(given, stopped=stopped, measure=measure or Measure()))


@pytest.mark.parametrize("name", KINDS)
def test_an_update_can_be_stopped_before_each_gradient_step(name):
    asked = count()
    update(name, lambda: next(asked) < 0)
    times = next(asked)
    assert times >= STEPS
    for stop in (0, 1, times // 2, times - 1):
        asked = count()
        with pytest.raises(StoppedError):
            update(name, lambda asked=asked, stop=stop: next(asked) >= stop)


@pytest.mark.parametrize("name", ["ippo", "iql", "pqn", "maddpg"])
def test_measurements_can_be_stopped_between_their_products(name):
    curvature = CurvatureSpec.model_validate({"samples": 32, "steps": 5, "probes": 3})
    for measure, least in ((Measure(curvature=curvature), 15), (Measure(noise=True), 2)):
        plain, measured = count(), count()
        update(name, lambda plain=plain: next(plain) < 0)
        update(name, lambda measured=measured: next(measured) < 0, measure)
        assert next(measured) >= next(plain) + least


@pytest.mark.parametrize(("name", "settings"), [("kde", {"dimensions": 2}), ("policy_distance", {})])
def test_similarities_can_be_stopped_from_agent_to_agent(name, settings):
    kind = similarity(name)
    rng, asked = np.random.default_rng(0), count()
    acting = Choices(np.full((5, 5 * 16, 2), 0.5, np.float32))
    seen = Behaviour(
        rng.normal(size=(5, 16, 3)).astype(np.float32),
        np.eye(2, dtype=np.float32)[rng.integers(2, size=(5, 16))],
        None,
        lambda obs, legal: acting,
        lambda: next(asked) >= 3,
    )
    with pytest.raises(StoppedError):
        kind.make(kind.config_type(**settings)).distances(seen, rng)
    assert next(asked) == 4


def test_an_update_that_is_stopped_leaves_no_thread_at_work():
    threads = set(threading.enumerate())
    asked = count()
    with pytest.raises(StoppedError):
        update("ippo", lambda: next(asked) >= 2, Measure(similarity=KdeConfig(samples=8)))
    for left in set(threading.enumerate()) - threads:
        left.join(timeout=5.0)
        assert not left.is_alive()
