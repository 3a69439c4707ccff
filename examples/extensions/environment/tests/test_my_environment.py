import numpy as np
import pytest
from marless.core.errors import SpecError
from marless.learning.envs.contract import check_env

from my_environment.environment import make


def test_it_keeps_the_contract() -> None:
    check_env(lambda batch: make({}, batch))


def test_walkers_that_meet_end_the_episode() -> None:
    # On three cells, one walker at each end: both step towards the other, and meet in the middle.
    env = make({"cells": 3}, 1)
    env.reset(0)
    env.load({**env.save(), "place": np.array([[0], [2]])})
    step = env.step((np.array([[2], [0]], np.int32),))
    assert step.ended.all() and step.terminated[0].all() and not step.truncated.any()
    assert (step.rewards[0] == -1).all()
    assert (step.final.obs[0] == np.float32(1 / 3)).all()


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(SpecError, match="known: cells"):
        make({"cell": 3}, 1)
