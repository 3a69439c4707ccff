"""The environment that `marless new` makes; tests/docs runs its page."""

import importlib

import numpy as np

from marless.learning.data.rollout import play

KIND = "environment"


def test_its_environment_keeps_its_rules(package):
    env = importlib.import_module("meeting.environment").make({"cells": 3}, 64)
    frame = env.reset(0)
    towards = np.sign(frame.obs[0][..., 1] - frame.obs[0][..., 0]).astype(np.int32) + 1
    next_to_each_other = np.abs(frame.obs[0][0] @ [1, -1]) < 0.4
    apart = np.abs(frame.obs[0][0] @ [1, -1]) > 0.4
    step = env.step((towards,))
    assert apart.any()
    assert step.ended[apart].all()  # from the two ends they meet in the middle
    assert not step.ended[next_to_each_other & (towards[0] != 1)].any()  # neighbours swap places
    assert play(env, None, episodes=100, seed=0).return_sum["walker_1"] < -100
