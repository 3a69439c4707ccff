"""The learner: that of PPO, with a loss of its own."""

from __future__ import annotations

from marless.learning.algos.ppo.functions import PolicyFunction, Surrogate
from marless.learning.algos.ppo.learner import PPOLearner

from my_algorithm.loss import gradient, loss


class MyAlgorithmFunction(PolicyFunction):
    """Trains a stack of policies."""

    # Both functions get these settings, after the four tensors. Without `gradient`, autograd finds the gradient.
    surrogate = Surrogate(loss, gradient, settings=("clip",))


class MyAlgorithmLearner(PPOLearner):
    """Learns the policies and critics of one agent class of one job."""

    policy_function = MyAlgorithmFunction
