"""Multi-agent DDPG (Lowe et al. 2017), whole, in one file: `python examples/one_file/maddpg.py`.

Three agents of `mpe/simple_spread` learn to cover three landmarks. Each has a policy of its own observations and, in
training, a critic that values the actions of all, given the observations of all. In each round, actors play with the
present policies into a replay buffer, from which batches are drawn. Critics descend their squared TD error, policies
ascend their critic's value; discrete actions are relaxed for its gradient (Gumbel-softmax, Jang et al. 2017).

The weights equal, bit for bit, those that marless's services publish for the same seed and round, by
`MARLESS_KERNELS=numpy marless train examples/one_file/maddpg.yaml`. A comment that begins with "Same bits" marks an
order of random draws or of float operations that matters for nothing but this equality.

Names of arrays end with their axes: N agents, B copies of the environment, O numbers of an observation, I inputs of a
net, K its outputs, A actions, D parameters, M samples. Nets read features first, [N, I, M].
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
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
HIDDEN, GAMMA, REGULARISATION = (64, 64), 0.99, 1e-3
CAPACITY = 96_000  # transitions; the setting is 100,000, which counts the last observation of each episode, too
UPDATES, BATCH = ACTORS * COPIES * STEPS // 20, 512  # gradient steps per round, transitions drawn for each
TARGET_TAU = 0.01  # fraction by which each gradient step moves target nets
LEARNING_RATE, CRITIC_LEARNING_RATE, ADAM_EPS, MAX_GRAD_NORM = 5e-4, 1e-3, 1e-5, 10.0
BETA1, BETA2 = 0.9, 0.999
EVALUATE_EVERY, EVALUATION_EPISODES = 10, 100

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
        """Draw the weights and the hidden layers' biases of each net from a generator of its own."""
        shapes = [(outputs, inputs + 1) for inputs, outputs in pairwise(sizes)]
        self.flat_ND = torch.zeros(len(generators), sum(rows * columns for rows, columns in shapes))
        parts = torch.split(self.flat_ND, [rows * columns for rows, columns in shapes], dim=1)
        self.layers = [part.view(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]
        for i, (layer, (rows, columns)) in enumerate(zip(self.layers, shapes, strict=True)):
            gain = output_gain if i == len(shapes) - 1 else float(np.sqrt(2.0))
            for n, rng in enumerate(generators):
                layer[n, :, :-1] = torch.from_numpy(gain * orthogonal(rng, rows, columns - 1))
                if i < len(shapes) - 1:
                    layer[n, :, -1] = torch.from_numpy(rng.uniform(-1.0, 1.0, rows) / np.sqrt(columns - 1))

    def forward(self, x_NIM: Tensor) -> Tensor:
        """Outputs [N, K, M]; the inputs of all layers are kept for the gradients."""
        self._inputs = [x_NIM]
        for layer in self.layers[:-1]:
            hidden = torch.from_numpy(np.tanh(matmul(layer, self._inputs[-1]).numpy()))  # Same bits: NumPy's tanh
            self._inputs.append(torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1))
        return matmul(self.layers[-1], self._inputs[-1])

    def backward(self, d_output_NKM: Tensor) -> Tensor:
        """The loss's gradient at the parameters [N, D], given that at the last outputs."""
        gradients: list[Tensor] = []
        for i in reversed(range(len(self.layers))):
            gradients.insert(0, matmul(d_output_NKM, self._inputs[i].transpose(1, 2)).flatten(1))
            if i > 0:
                d_output_NKM = self._below(i, d_output_NKM)
        return torch.cat(gradients, dim=1)

    def input_gradient(self, d_output_NKM: Tensor, row_NR: Tensor) -> Tensor:
        """The loss's gradient at some of the last inputs [N, R, M]; each net's are those of the given rows."""
        for i in reversed(range(1, len(self.layers))):
            d_output_NKM = self._below(i, d_output_NKM)
        first_NHI = self.layers[0]
        weight_NHR = first_NHI.gather(2, row_NR.unsqueeze(1).expand(-1, first_NHI.shape[1], -1))
        return matmul(weight_NHR.transpose(1, 2), d_output_NKM)

    def _below(self, i: int, d_output_NKM: Tensor) -> Tensor:
        """The gradient at layer i − 1 before its tanh, given that at the outputs of layer i."""
        d_hidden = matmul(self.layers[i][:, :, :-1].transpose(1, 2), d_output_NKM)
        d_below: Tensor = torch.ops.aten.tanh_backward(d_hidden, self._inputs[i][:, :-1])  # d · (1 − tanh²)
        return d_below

    def arrays(self, prefix: str, n: int) -> dict[str, FloatArray]:
        """The weights and biases of agent n's net by name, as in marless's checkpoints."""
        found = {}
        for i, layer in enumerate(self.layers):
            found[f"{prefix}.{i}.weight"] = layer[n, :, :-1].numpy().copy()
            found[f"{prefix}.{i}.bias"] = layer[n, :, -1].numpy().copy()
        return found


class Adam:
    """Adam (Kingma & Ba 2015) for N nets, each with a limit of its gradient's norm."""

    def __init__(self, net: Net, lr: float) -> None:
        self._flat_ND, self._lr, self._count = net.flat_ND, lr, 0
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
        self._flat_ND.addcdiv_(self._first_ND, torch.addcmul(b, self._second_ND.sqrt(), a), value=-self._lr)


# Acting --------------------------------------------------------------------------------------------------------------
def features(x_MNO: FloatArray) -> Tensor:
    """Inputs of nets, [N, O + 1, M], with a last row of ones."""
    samples, agents, size = x_MNO.shape
    x_NIM = np.ones((agents, size + 1, samples), np.float32)
    x_NIM[:, :-1] = x_MNO.transpose(1, 2, 0)
    return torch.from_numpy(x_NIM)


def sample(logit_NAB: FloatArray, rng: np.random.Generator) -> NDArray[np.int32]:
    """Draw actions [N, B] from softmax(logits) by inverse transform sampling."""
    cumulative_NAB = np.exp(logit_NAB - logit_NAB.max(axis=1, keepdims=True)).cumsum(axis=1)
    total_NB = cumulative_NAB[:, -1]
    threshold_NB = (1 - rng.random(total_NB.shape, np.float32)) * total_NB  # never 0, so no impossible action is drawn
    action_NB: NDArray[np.int32] = (cumulative_NAB < threshold_NB[:, None]).sum(axis=1, dtype=np.int32)
    return action_NB


class Actor:
    """Copies of the environment, in which the present policies play."""

    def __init__(self, seed: int, index: int) -> None:
        self._seed, self._index = seed, index
        self._env = registry.make(ENV, {}, COPIES, with_state=False)
        self._frame = self._env.reset(self._seeds(round_=0)[0])  # once: an episode that ends is followed by the next

    def play(self, policy: Net, round_: int) -> Arrays:
        """Sample STEPS time steps in every copy; returns the transitions by name, copy by copy."""
        rng, sampled = self._seeds(round_)[1], []
        for _ in range(STEPS):
            obs_BNO = self._frame.obs[0].swapaxes(0, 1).copy()
            action_NB = sample(policy.forward(features(obs_BNO)).numpy(), rng)
            transition = self._env.step((action_NB,))
            self._frame = transition.frame  # where an episode has ended, of the next one; `final` is of that episode
            reward_BN, next_BNO = transition.rewards[0].T.astype(np.float32), transition.final.obs[0].swapaxes(0, 1)
            sampled.append({"obs": obs_BNO, "action": action_NB.T, "reward": reward_BN, "next_obs": next_BNO.copy()})
        by_copy = {name: np.stack([each[name] for each in sampled], axis=1) for name in sampled[0]}
        return {name: x.reshape(-1, *x.shape[2:]) for name, x in by_copy.items()}

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
class ReplayBuffer:
    """The newest transitions, and the moments of all rewards so far."""

    def __init__(self) -> None:
        self._arrays: Arrays = {}
        self._next = self._size = 0
        self._rewards = np.zeros(3)  # their number, sum, and sum of squares

    def add(self, transitions: Arrays) -> None:
        """Add transitions, in the place of the oldest if there is no room."""
        count = len(transitions["reward"])
        if not self._arrays:
            self._arrays = {name: np.zeros((CAPACITY, *x.shape[1:]), x.dtype) for name, x in transitions.items()}
        for name, x in transitions.items():
            self._arrays[name][(self._next + np.arange(count)) % CAPACITY] = x
        self._next, self._size = self._next + count, min(self._size + count, CAPACITY)
        # Same bits: sums go over time, agents, then copies.
        reward = transitions["reward"].reshape(COPIES, STEPS, -1).transpose(1, 2, 0).astype(np.float64).ravel()
        self._rewards += (reward.size, reward.sum(), np.square(reward).sum())

    def draw(self, rng: np.random.Generator) -> Iterator[Arrays]:
        """The batches of a round, drawn uniformly and with replacement."""
        for index in rng.integers(self._size, size=(UPDATES, BATCH)):  # 0 is the oldest transition
            row = (self._next - self._size + index) % CAPACITY
            batch = {name: x[row] for name, x in self._arrays.items()}
            yield batch | {"reward": self._standardised(batch["reward"])}

    def _standardised(self, reward: FloatArray) -> FloatArray:
        """Rewards of mean 0 and standard deviation 1, so that outputs of nets have the size of 1.

        Same bits: marless subtracts a constant c from all values, and scales them. As no episode terminates, a reward
        becomes (r + (γ − 1) c) / std, and with c = mean / (1 − γ) that is (r − mean) / std.
        """
        count, first, second = self._rewards
        lost, centre = 1 - GAMMA, float(first / ((1 - GAMMA) * count))
        squares = second + centre**2 * (lost**2 * count) - 2 * centre * (lost * first)
        scale = float(np.sqrt(count / squares))
        return reward * np.float32(scale) + (np.float32(GAMMA) - np.float32(1)) * np.float32(centre * scale)


def gumbel(rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Gumbel noise, float32: where logits with it are largest is a sample of their softmax."""
    exponential = rng.standard_exponential(shape, np.float32)
    return torch.from_numpy(-np.log(np.maximum(exponential, np.finfo(np.float32).tiny)))


def relaxed(logit_NAM: Tensor, noise_NAM: Tensor) -> Tensor:
    """A sample of the Gumbel-softmax (of temperature 1): near to a one-hot vector, with a gradient at the logits."""
    return torch.log_softmax(logit_NAM + noise_NAM, dim=1).exp()


def one_hot(x_NAM: Tensor) -> Tensor:
    """1 for the largest of the A numbers, 0 for the others."""
    return torch.zeros_like(x_NAM).scatter_(1, x_NAM.argmax(dim=1, keepdim=True), 1.0)


def joined(x_NIM: Tensor, action_NAM: Tensor) -> Tensor:
    """The inputs of all critics, [1, N·O + N·A + 1, M]: all observations, all actions, ones."""
    return torch.cat([x_NIM[:, :-1].flatten(0, 1), action_NAM.flatten(0, 1), x_NIM[0, -1:]])[None]


class Learner:
    """Policies and critics, one of each per agent, with their target nets."""

    def __init__(self, seed: int, agents: Sequence[str], obs_size: int, actions: int) -> None:
        observed, acted = len(agents) * obs_size, len(agents) * actions
        self.policy = Net([generator(seed, each) for each in agents], (obs_size, *HIDDEN, actions), output_gain=0.01)
        generators = [generator(seed, f"critic.{each}") for each in agents]
        self.critic = Net(generators, (observed + acted, *HIDDEN, 1), output_gain=1.0)
        self._target_policy, self._target_critic = copy.deepcopy(self.policy), copy.deepcopy(self.critic)
        self._adam_policy, self._adam_critic = Adam(self.policy, LEARNING_RATE), Adam(self.critic, CRITIC_LEARNING_RATE)
        self._own_NA = observed + torch.arange(acted).view(-1, actions)  # rows of an agent's action in critics' inputs

    def step(self, batch: Arrays, rng: np.random.Generator) -> None:
        """Take a gradient step with all nets; both gradients are at the parameters before the step."""
        obs_NIM, taken_N1M = features(batch["obs"]), torch.from_numpy(batch["action"].T).long()[:, None]
        action_NAM = torch.zeros(*self._own_NA.shape, BATCH).scatter_(1, taken_N1M, 1.0)
        noise_NAM, next_noise_NAM = gumbel(rng, (2, *action_NAM.shape))
        input_1IM = joined(obs_NIM, action_NAM)
        d_critic_ND = self._critic_gradient(input_1IM, batch, next_noise_NAM)
        d_policy_ND = self._policy_gradient(input_1IM, obs_NIM, noise_NAM)
        self._adam_critic.step(d_critic_ND)
        self._adam_policy.step(d_policy_ND)
        self._target_critic.flat_ND.lerp_(self.critic.flat_ND, TARGET_TAU)
        self._target_policy.flat_ND.lerp_(self.policy.flat_ND, TARGET_TAU)

    def _critic_gradient(self, input_1IM: Tensor, batch: Arrays, noise_NAM: Tensor) -> Tensor:
        """The gradient of the mean of (Q − r − γ Q′(s′, a′))² / 2, a′ being sampled from the target policies."""
        next_NIM = features(batch["next_obs"])
        action_NAM = one_hot(relaxed(self._target_policy.forward(next_NIM), noise_NAM))
        value_N1M = self._target_critic.forward(joined(next_NIM, action_NAM))
        target_N1M = torch.from_numpy(batch["reward"].T)[:, None] + GAMMA * value_N1M
        return self.critic.backward((self.critic.forward(input_1IM) - target_N1M) * (1 / BATCH))

    def _policy_gradient(self, input_1IM: Tensor, obs_NIM: Tensor, noise_NAM: Tensor) -> Tensor:
        """The gradient of the mean of −Q(s, a) + c·|z|²/A; the agent's own action is drawn by its logits z.

        The critic gets it one-hot, the logits get the gradient of the relaxed one (straight-through estimator).
        """
        logit_NAM = self.policy.forward(obs_NIM)
        relaxed_NAM, own_NAM = relaxed(logit_NAM, noise_NAM), self._own_NA[:, :, None].expand_as(logit_NAM)
        self.critic.forward(input_1IM.repeat(len(obs_NIM), 1, 1).scatter(1, own_NAM, one_hot(relaxed_NAM)))
        weight_N1M = torch.full_like(logit_NAM[:, :1], 1 / BATCH)
        d_action_NAM = self.critic.input_gradient(-weight_N1M, self._own_NA)
        d_logit_NAM = (d_action_NAM - (relaxed_NAM * d_action_NAM).sum(dim=1, keepdim=True)) * relaxed_NAM
        pull_NAM = logit_NAM * (weight_N1M * (2 * REGULARISATION / logit_NAM.shape[1]))
        return self.policy.backward(d_logit_NAM + pull_NAM)


def main() -> None:
    """Train, and print returns."""
    parser = argparse.ArgumentParser(description="MADDPG in mpe/simple_spread")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="folder for the weights, as safetensors files")
    given = parser.parse_args()

    (agents,) = registry.spaces(ENV, {}).classes  # all observe and do the same kind of thing, so there is one class
    learner = Learner(given.seed, agents.agents, agents.obs_size, agents.action.n)
    replay, actors = ReplayBuffer(), [Actor(given.seed, index) for index in range(ACTORS)]
    started_s = time.monotonic()
    for round_ in range(given.rounds):
        for actor in actors:
            replay.add(actor.play(learner.policy, round_))
        # Same bits: 4 and 5 are the numbers of these two streams in marless.
        draws, noise = (np.random.default_rng([given.seed, round_, stream]) for stream in (4, 5))
        for batch in replay.draw(draws):
            learner.step(batch, noise)
        if (round_ + 1) % EVALUATE_EVERY == 0 or round_ + 1 == given.rounds:
            steps, seconds = (round_ + 1) * ACTORS * COPIES * STEPS, time.monotonic() - started_s
            found = greedy_return(learner.policy, given.seed)
            print(f"{steps:9,} env steps  {seconds:6.1f} s  return per agent {found:7.2f}")
    if given.save:
        given.save.mkdir(parents=True, exist_ok=True)
        for n, agent in enumerate(agents.agents):
            save_file(learner.policy.arrays("policy", n), given.save / f"{agent}.safetensors")
            save_file(learner.critic.arrays("critic", n), given.save / f"critic.{agent}.safetensors")


if __name__ == "__main__":
    main()
