"""Independent PPO (de Witt et al. 2020), whole, in one file: `python examples/one_file/ippo.py`.

Three agents of `mpe/simple_spread` learn to cover three landmarks. Each has a policy and a critic of its own, and takes
the others for a part of its environment. In each round, actors play with the present policies; then policies and
critics are trained on what was sampled, by PPO (Schulman et al. 2017).

The weights equal, bit for bit, those that marless's services publish for the same seed and round, by
`MARLESS_KERNELS=numpy marless train examples/one_file/ippo.yaml`. A comment that begins with "Same bits" marks an order
of random draws or of float operations that matters for nothing but this equality.

Names of arrays end with their axes: T time steps, N agents, B copies of the environment, O numbers of an observation,
I inputs of a net, K its outputs, A actions, D parameters, M samples. Nets read features first, [N, I, M].
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # arrays are too small for more. Same bits: threads change the order of sums

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor

from marless.learning.envs import registry

ENV = "mpe/simple_spread"
ACTORS, COPIES, STEPS = 2, 20, 25  # actors, their copies of the environment, and steps per round: a whole episode
HIDDEN = (64, 64)
GAMMA, GAE_LAMBDA = 0.99, 0.95
EPOCHS, MINIBATCHES = 4, 4
CLIP, ENTROPY = 0.2, 0.01
LEARNING_RATE, ADAM_EPS, MAX_GRAD_NORM = 5e-4, 1e-5, 0.5
BETA1, BETA2 = 0.9, 0.999
EVALUATE_EVERY, EVALUATION_EPISODES = 20, 100

FloatArray = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]  # Any: float32, but for actions


# Nets ----------------------------------------------------------------------------------------------------------------
def generator(seed: int, name: str) -> np.random.Generator:
    """The generator of the initial weights of the nets of this name."""
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest, "<u4").tolist()])


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    """A random matrix with orthogonal rows or columns (Saxe et al. 2014)."""
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q *= np.sign(np.diag(r))  # without it, the distribution is not uniform (Mezzadri 2007)
    return q if rows >= columns else q.T


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Batched matrix product. Same bits: by NumPy, as in marless's learners; torch adds up in another order."""
    return torch.from_numpy(np.matmul(a.numpy(), b.numpy()))


class Net:
    """N perceptrons, one per agent, with one batched product per layer; gradients are written by hand.

    A layer is [N, outputs, inputs + 1]: inputs have a last row of ones, so that the last column is the bias.
    """

    def __init__(self, generators: Sequence[np.random.Generator], sizes: Sequence[int], output_gain: float) -> None:
        """Draw the weights of each net from a generator of its own; biases are 0."""
        shapes = [(outputs, inputs + 1) for inputs, outputs in pairwise(sizes)]
        self.flat_ND = torch.zeros(len(generators), sum(rows * columns for rows, columns in shapes))
        parts = torch.split(self.flat_ND, [rows * columns for rows, columns in shapes], dim=1)
        self.layers = [part.view(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]
        for i, (layer, (rows, columns)) in enumerate(zip(self.layers, shapes, strict=True)):
            gain = output_gain if i == len(shapes) - 1 else float(np.sqrt(2.0))
            for n, rng in enumerate(generators):
                layer[n, :, :-1] = torch.from_numpy(gain * orthogonal(rng, rows, columns - 1))

    def forward(self, x_NIM: Tensor) -> Tensor:
        """Outputs [N, K, M]; the inputs of all layers are kept for `backward`."""
        self._inputs = [x_NIM]
        for layer in self.layers[:-1]:
            hidden = torch.from_numpy(np.tanh(matmul(layer, self._inputs[-1]).numpy()))  # Same bits: NumPy's tanh
            self._inputs.append(torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1))
        return matmul(self.layers[-1], self._inputs[-1])

    def backward(self, d_output_NKM: Tensor) -> Tensor:
        """The loss's gradient at the parameters [N, D], given that at the last outputs."""
        gradients: list[Tensor] = []
        for i in reversed(range(len(self.layers))):
            x = self._inputs[i]
            gradients.insert(0, matmul(d_output_NKM, x.transpose(1, 2)).flatten(1))
            if i > 0:
                d_hidden = matmul(self.layers[i][:, :, :-1].transpose(1, 2), d_output_NKM)
                d_output_NKM = torch.ops.aten.tanh_backward(d_hidden, x[:, :-1])  # d · (1 − tanh²)
        return torch.cat(gradients, dim=1)

    def arrays(self, prefix: str, n: int) -> dict[str, FloatArray]:
        """The weights and biases of agent n's net by name, as in marless's checkpoints."""
        found = {}
        for i, layer in enumerate(self.layers):
            found[f"{prefix}.{i}.weight"] = layer[n, :, :-1].numpy().copy()
            found[f"{prefix}.{i}.bias"] = layer[n, :, -1].numpy().copy()
        return found


class Adam:
    """Adam (Kingma & Ba 2015) for N nets, each with a limit of its gradient's norm."""

    def __init__(self, net: Net) -> None:
        self._flat_ND, self._count = net.flat_ND, 0
        self._first_ND, self._second_ND = torch.zeros_like(net.flat_ND), torch.zeros_like(net.flat_ND)

    def step(self, gradient_ND: Tensor) -> None:
        """Take one step against the gradient."""
        norm_N1 = torch.linalg.vector_norm(gradient_ND, dim=1, keepdim=True)
        gradient_ND = gradient_ND * (MAX_GRAD_NORM / norm_N1.clamp_min(1e-6)).clamp(max=1.0)
        self._first_ND.lerp_(gradient_ND, 1 - BETA1)
        self._second_ND.mul_(BETA2).addcmul_(gradient_ND, gradient_ND, value=1 - BETA2)
        self._count += 1
        correction1, correction2 = (1 - beta ** torch.tensor([[self._count]]).double() for beta in (BETA1, BETA2))
        # Same bits: (m / c₁) / (√(v / c₂) + ε) is computed as m / (a·√v + b) with a = c₁ / √c₂ and b = c₁·ε.
        a, b = (correction1 / correction2.sqrt()).float(), (correction1 * ADAM_EPS).float()
        self._flat_ND.addcdiv_(self._first_ND, torch.addcmul(b, self._second_ND.sqrt(), a), value=-LEARNING_RATE)


# Acting --------------------------------------------------------------------------------------------------------------
def features(x_MNO: FloatArray) -> Tensor:
    """Inputs of nets, [N, O + 1, M], with a last row of ones."""
    samples, agents, size = x_MNO.shape
    x_NIM = np.ones((agents, size + 1, samples), np.float32)
    x_NIM[:, :-1] = x_MNO.transpose(1, 2, 0)
    return torch.from_numpy(x_NIM)


def sample(logit_NAB: FloatArray, rng: np.random.Generator) -> tuple[NDArray[np.int32], FloatArray]:
    """Draw actions [N, B] from softmax(logits) by inverse transform sampling; also returns their log-probabilities."""
    logit_NAB = logit_NAB - logit_NAB.max(axis=1, keepdims=True)
    cumulative_NAB = np.exp(logit_NAB).cumsum(axis=1)
    total_NB = cumulative_NAB[:, -1]
    threshold_NB = (1 - rng.random(total_NB.shape, np.float32)) * total_NB  # never 0, so no impossible action is drawn
    action_NB = (cumulative_NAB < threshold_NB[:, None]).sum(axis=1, dtype=np.int32)
    log_prob_NB = np.take_along_axis(logit_NAB, action_NB[:, None], axis=1)[:, 0] - np.log(total_NB)
    return action_NB, log_prob_NB


class Actor:
    """Copies of the environment, in which the present policies play."""

    def __init__(self, seed: int, index: int) -> None:
        self._seed, self._index = seed, index
        self._env = registry.make(ENV, {}, COPIES, with_state=False)
        self._frame = self._env.reset(self._seeds(round_=0)[0])  # once: an episode that ends is followed by the next

    def play(self, policy: Net, round_: int) -> Arrays:
        """Sample STEPS time steps in every copy; returns arrays [T, B, N, …] by name."""
        rng, sampled = self._seeds(round_)[1], []
        for _ in range(STEPS):
            obs_BNO = self._frame.obs[0].swapaxes(0, 1).copy()
            action_NB, log_prob_NB = sample(policy.forward(features(obs_BNO)).numpy(), rng)
            transition = self._env.step((action_NB,))
            self._frame = transition.frame  # where an episode has ended, of the next one; `final` is of that episode
            reward_BN = transition.rewards[0].T.astype(np.float32)
            sampled.append({"obs": obs_BNO, "action": action_NB.T, "log_prob": log_prob_NB.T, "reward": reward_BN})
        last = {"last_obs": transition.final.obs[0].swapaxes(0, 1)[None].copy()}
        return last | {name: np.stack([each[name] for each in sampled]) for name in sampled[0]}

    def _seeds(self, round_: int) -> tuple[int, np.random.Generator]:
        """Independent random numbers for the environment and for the actions of this actor in this round."""
        training = 1  # Same bits: its number among marless's kinds of play, which has others for evaluations
        low, high = np.random.SeedSequence((self._seed, training, round_, self._index)).generate_state(2)
        env, actions = np.random.SeedSequence(int(high) << 32 | int(low)).spawn(2)
        return int(env.generate_state(1)[0]), np.random.Generator(np.random.PCG64(actions))


def greedy_return(policy: Net, seed: int) -> float:
    """The mean return of an agent over new episodes in which all agents take their most probable actions."""
    env = registry.make(ENV, {}, EVALUATION_EPISODES, with_state=False)
    frame, total = env.reset(seed), 0.0
    for _ in range(STEPS):
        logit_NAB = policy.forward(features(frame.obs[0].swapaxes(0, 1))).numpy()
        transition = env.step((logit_NAB.argmax(axis=1).astype(np.int32),))
        frame, total = transition.frame, total + float(transition.rewards[0].mean())
    return total


# Learning ------------------------------------------------------------------------------------------------------------
def advantages(reward_NTB: Tensor, value_NTB: Tensor, last_value_NB: Tensor) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016): A_t = δ_t + γλ A_{t+1}, for one episode per copy.

    Nothing terminates in this game: a time limit cuts the episodes, so their last observation has a value, too.
    """
    after_NTB = torch.cat([value_NTB[:, 1:], last_value_NB[:, None]], dim=1)
    advantage_NTB = reward_NTB + GAMMA * after_NTB - value_NTB
    decay_NB = torch.full_like(last_value_NB, GAMMA * GAE_LAMBDA)
    for t in range(STEPS - 2, -1, -1):
        advantage_NTB[:, t].addcmul_(decay_NB, advantage_NTB[:, t + 1])
    return advantage_NTB


def equal_weights(x_NM: Tensor) -> Tensor:
    """The weight of each sample in a mean."""
    return torch.full_like(x_NM, 1 / x_NM.shape[1])


def shares(x_NM: Tensor) -> Tensor:
    """Equal weights in float64, for means and deviations. Same bits: made from weights that are rounded to float32."""
    weight_NM = equal_weights(x_NM).double()
    return weight_NM / weight_NM.sum(dim=1, keepdim=True)


def standardised(x_NM: Tensor) -> Tensor:
    """Each agent's numbers, shifted and scaled to mean 0 and standard deviation 1."""
    x, share = x_NM.double(), shares(x_NM)
    centred = x - (x * share).sum(dim=1, keepdim=True)
    return (centred / (centred.square() * share).sum(dim=1, keepdim=True).sqrt()).float()


class Learner:
    """Policies and critics, one of each per agent."""

    def __init__(self, seed: int, agents: Sequence[str], obs_size: int, actions: int) -> None:
        # Same bits: an agent's generator draws the weights of its policy, then those of its critic.
        generators = [generator(seed, agent) for agent in agents]
        self.policy = Net(generators, (obs_size, *HIDDEN, actions), output_gain=0.01)  # begins almost uniform
        self.critic = Net(generators, (obs_size, *HIDDEN, 1), output_gain=1.0)
        self._adam_policy, self._adam_critic = Adam(self.policy), Adam(self.critic)
        self._mean_N1, self._std_N1 = torch.zeros(len(agents), 1), torch.ones(len(agents), 1)

    def update(self, sampled: Arrays, rng: np.random.Generator) -> None:
        """Train on the samples of a round, arrays [T, B, N, …] by name, in epochs of minibatches."""
        flat = {name: x.reshape(-1, *x.shape[2:]) for name, x in sampled.items()}
        obs_NIM, action_N1M = features(flat["obs"]), torch.from_numpy(flat["action"].T).long()[:, None]
        old_NM, value_NM = torch.from_numpy(flat["log_prob"].T), self._values(obs_NIM)
        reward_NTB = torch.from_numpy(np.moveaxis(sampled["reward"], 2, 0))
        last_value_NB = self._values(features(flat["last_obs"]))
        advantage_NM = advantages(reward_NTB, value_NM.view_as(reward_NTB), last_value_NB).flatten(1)
        target_NM = self._normalised(value_NM + advantage_NM)
        advantage_NM = standardised(advantage_NM)
        for _ in range(EPOCHS):
            order_M = torch.from_numpy(rng.permutation(value_NM.shape[1]))  # one for all policies and critics
            for m in order_M.chunk(MINIBATCHES):
                x_NIM, a_N1M = obs_NIM[:, :, m], action_N1M[:, :, m]
                self._adam_policy.step(self._policy_gradient(x_NIM, a_N1M, old_NM[:, m], advantage_NM[:, m]))
                self._adam_critic.step(self._critic_gradient(x_NIM, target_NM[:, m]))

    def _values(self, x_NIM: Tensor) -> Tensor:
        """The critics' values [N, M], in units of the reward."""
        return self.critic.forward(x_NIM).squeeze(1) * self._std_N1 + self._mean_N1

    def _normalised(self, return_NM: Tensor) -> Tensor:
        """The returns in the units of critics, in which those of a round have mean 0 and standard deviation 1."""
        x, share = return_NM.double(), shares(return_NM)
        total, first, second = (each.sum(dim=1, keepdim=True) for each in (share, share * x, share * x * x))
        mean = first / total
        self._mean_N1, self._std_N1 = mean.float(), (second / total - mean.square()).sqrt().float()
        return (return_NM - self._mean_N1) / self._std_N1

    def _critic_gradient(self, x_NIM: Tensor, target_NM: Tensor) -> Tensor:
        """The gradient of the mean of (V − target)² / 2."""
        error_NM = self.critic.forward(x_NIM).squeeze(1) - target_NM
        return self.critic.backward((error_NM * equal_weights(error_NM)).unsqueeze(1))

    def _policy_gradient(self, x_NIM: Tensor, action_N1M: Tensor, old_NM: Tensor, advantage_NM: Tensor) -> Tensor:
        """The gradient of the mean of −min(ρA, clip(ρ) A) − c·H, with ρ = π / π_old (Schulman et al. 2017, eq. 7)."""
        log_pi_NAM = torch.log_softmax(self.policy.forward(x_NIM), dim=1)
        pi_NAM, log_prob_NM = log_pi_NAM.exp(), log_pi_NAM.gather(1, action_N1M).squeeze(1)
        entropy_N1M = -(pi_NAM * log_pi_NAM).sum(dim=1, keepdim=True)
        ratio_NM, weight_NM = (log_prob_NM - old_NM).exp(), equal_weights(old_NM)
        # Where the second term is the minimum, the loss is constant.
        constant_NM = (ratio_NM - ratio_NM.clamp(1 - CLIP, 1 + CLIP)) * advantage_NM > 0
        d_log_prob_N1M = -(ratio_NM * advantage_NM * weight_NM).masked_fill(constant_NM, 0.0).unsqueeze(1)
        d_entropy_N1M = (weight_NM * -ENTROPY).unsqueeze(1)
        # At the logits z: ∂ log π(a) / ∂z = 1[a] − π, and ∂H / ∂z = −π (log π + H).
        d_logit_NAM = -(((log_pi_NAM + entropy_N1M) * d_entropy_N1M + d_log_prob_N1M) * pi_NAM)
        return self.policy.backward(d_logit_NAM.scatter_add(1, action_N1M, d_log_prob_N1M))


def main() -> None:
    """Train, and print returns."""
    parser = argparse.ArgumentParser(description="Independent PPO in mpe/simple_spread")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="folder for the weights, as safetensors files")
    given = parser.parse_args()

    (agents,) = registry.spaces(ENV, {}).classes  # all observe and do the same kind of thing, so there is one class
    learner = Learner(given.seed, agents.agents, agents.obs_size, agents.action.n)
    actors, started_s = [Actor(given.seed, index) for index in range(ACTORS)], time.monotonic()
    for round_ in range(given.rounds):
        rollouts = [actor.play(learner.policy, round_) for actor in actors]
        together = {name: np.concatenate([each[name] for each in rollouts], axis=1) for name in rollouts[0]}
        learner.update(together, np.random.default_rng([given.seed, round_]))
        if (round_ + 1) % EVALUATE_EVERY == 0 or round_ + 1 == given.rounds:
            steps, seconds = (round_ + 1) * ACTORS * COPIES * STEPS, time.monotonic() - started_s
            found = greedy_return(learner.policy, given.seed)
            print(f"{steps:9,} env steps  {seconds:6.1f} s  return per agent {found:7.2f}")
    if given.save:
        given.save.mkdir(parents=True, exist_ok=True)
        for n, agent in enumerate(agents.agents):
            arrays = learner.policy.arrays("policy", n) | learner.critic.arrays("critic", n)
            save_file(arrays, given.save / f"{agent}.safetensors")


if __name__ == "__main__":
    main()
