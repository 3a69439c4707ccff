"""QMIX (Rashid et al. 2018), whole, in one file: `python examples/one_file/qmix.py`.

Three agents of `mpe/simple_spread` learn to cover three landmarks. Each has a net that values its own actions (Q). A
mixer computes the team's value from these; it grows with each of them, so the best joint action consists of the best
action of each agent. In each round, actors play ε-greedily into a replay buffer, from which batches are drawn. All nets
are trained together on the squared TD error of the team's value.

The weights equal, bit for bit, those that marless's services publish for the same seed and round, by
`MARLESS_KERNELS=numpy marless train examples/one_file/qmix.yaml`. A comment that begins with "Same bits" marks an order
of random draws or of float operations that matters for nothing but this equality.

Names of arrays end with their axes: N agents, B copies of the environment, O numbers of an observation, S of the
global state, I inputs of a net, K its outputs, A actions, E units of the mixer, D parameters, M samples. Nets read
features first, [N, I, M].
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
from torch.nn import functional

from marless.learning.envs import registry

ENV = "mpe/simple_spread"
ACTORS, COPIES, STEPS = 2, 20, 25  # actors, their copies of the environment, and steps per round: a whole episode
HIDDEN, EMBED, HYPERNET = (64, 64), 32, 64  # units of Q nets, of the mixer, and of the nets that make its weights
GAMMA = 0.99
CAPACITY = 96_000  # transitions; the setting is 100,000, which counts the last observation of each episode, too
UPDATES, BATCH = ACTORS * COPIES * STEPS // 20, 512  # gradient steps per round, transitions drawn for each
TARGET_EVERY = 200  # gradient steps between copies to target nets
EPSILON_START, EPSILON_END, EPSILON_STEPS = 1.0, 0.05, 50_000
LEARNING_RATE, ADAM_EPS, MAX_GRAD_NORM = 5e-4, 1e-5, 10.0
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

    def __init__(
        self, generators: Sequence[np.random.Generator], sizes: Sequence[int], output_gain: float, *, relu: bool = False
    ) -> None:
        """Draw the weights of each net from a generator of its own; biases are 0. Activations are relu, or tanh."""
        self._relu, shapes = relu, [(outputs, inputs + 1) for inputs, outputs in pairwise(sizes)]
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
            x = matmul(layer, self._inputs[-1])
            hidden = x.relu() if self._relu else torch.from_numpy(np.tanh(x.numpy()))  # Same bits: NumPy's tanh
            self._inputs.append(torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1))
        return matmul(self.layers[-1], self._inputs[-1])

    def backward(self, d_output_NKM: Tensor) -> Tensor:
        """The loss's gradient at the parameters [N, D], given that at the last outputs."""
        gradients: list[Tensor] = []
        for i in reversed(range(len(self.layers))):
            x = self._inputs[i]
            gradients.insert(0, matmul(d_output_NKM, x.transpose(1, 2)).flatten(1))
            if i > 0:
                d_hidden, y = matmul(self.layers[i][:, :, :-1].transpose(1, 2), d_output_NKM), x[:, :-1]
                tanh_gradient = torch.ops.aten.tanh_backward  # d · (1 − y²)
                d_output_NKM = d_hidden * (y > 0) if self._relu else tanh_gradient(d_hidden, y)
        return torch.cat(gradients, dim=1)

    def arrays(self, prefix: str, n: int) -> dict[str, FloatArray]:
        """The weights and biases of agent n's net by name, as in marless's checkpoints."""
        found = {}
        for i, layer in enumerate(self.layers):
            found[f"{prefix}.{i}.weight"] = layer[n, :, :-1].numpy().copy()
            found[f"{prefix}.{i}.bias"] = layer[n, :, -1].numpy().copy()
        return found


class Mixer:
    """The team's value |w₂|ᵀ elu(|W₁| q + b₁) + b₂, given the agents' values q; as weights are ≥ 0, it grows with each.

    Four nets, the hypernetworks, compute W₁, b₁, w₂ and b₂ from the global state.
    """

    def __init__(self, rng: np.random.Generator, agents: int, state_size: int) -> None:
        sizes = {
            "weight1": (HYPERNET, agents * EMBED),
            "bias1": (EMBED,),
            "weight2": (HYPERNET, EMBED),
            "bias2": (EMBED, 1),
        }
        self.nets = {name: Net([rng], (state_size, *each), 0.3, relu=True) for name, each in sizes.items()}

    def forward(self, q_NM: Tensor, state_1SM: Tensor) -> Tensor:
        """The team's value [M]."""
        made = {name: net.forward(state_1SM)[0] for name, net in self.nets.items()}
        self._q_NM, self._raw1_NEM, self._raw2_EM = q_NM, made["weight1"].view(len(q_NM), EMBED, -1), made["weight2"]
        self._hidden_EM = functional.elu((self._raw1_NEM.abs() * q_NM.unsqueeze(1)).sum(dim=0) + made["bias1"])
        return (self._raw2_EM.abs() * self._hidden_EM).sum(dim=0) + made["bias2"][0]

    def backward(self, d_team_M: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss's gradients at the agents' values [N, M], and at the parameters of each net."""
        slope_EM = self._hidden_EM.clamp(max=0) + 1  # elu′(x) is 1 for x > 0, else eˣ = elu(x) + 1
        d_before_EM = d_team_M * self._raw2_EM.abs() * slope_EM
        d_weight1_NEM = d_before_EM * self._q_NM.unsqueeze(1) * self._raw1_NEM.sign()
        d_weight2_EM = d_team_M * self._hidden_EM * self._raw2_EM.sign()
        d_made = (d_weight1_NEM.flatten(0, 1), d_before_EM, d_weight2_EM, d_team_M[None])
        gradients = [net.backward(each[None]) for net, each in zip(self.nets.values(), d_made, strict=True)]
        return (self._raw1_NEM.abs() * d_before_EM).sum(dim=1), gradients


class Adam:
    """Adam (Kingma & Ba 2015) for some nets; the norm of an agent's gradients, over all of these nets, is limited."""

    def __init__(self, nets: Sequence[Net]) -> None:
        self._states = [(net.flat_ND, torch.zeros_like(net.flat_ND), torch.zeros_like(net.flat_ND)) for net in nets]
        self.count = 0

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take one step against the gradients."""
        norm_N1 = torch.linalg.vector_norm(torch.cat(list(gradients), dim=1), dim=1, keepdim=True)
        scale_N1 = (MAX_GRAD_NORM / norm_N1.clamp_min(1e-6)).clamp(max=1.0)
        self.count += 1
        correction1, correction2 = (1 - beta ** torch.tensor([[self.count]]).double() for beta in (BETA1, BETA2))
        # Same bits: (m / c₁) / (√(v / c₂) + ε) is computed as m / (a·√v + b) with a = c₁ / √c₂ and b = c₁·ε.
        a, b = (correction1 / correction2.sqrt()).float(), (correction1 * ADAM_EPS).float()
        for (flat_ND, first_ND, second_ND), gradient in zip(self._states, gradients, strict=True):
            gradient_ND = gradient * scale_N1
            first_ND.lerp_(gradient_ND, 1 - BETA1)
            second_ND.mul_(BETA2).addcmul_(gradient_ND, gradient_ND, value=1 - BETA2)
            flat_ND.addcdiv_(first_ND, torch.addcmul(b, second_ND.sqrt(), a), value=-LEARNING_RATE)


# Acting --------------------------------------------------------------------------------------------------------------
def features(x_MNO: FloatArray) -> Tensor:
    """Inputs of nets, [N, O + 1, M], with a last row of ones."""
    samples, agents, size = x_MNO.shape
    x_NIM = np.ones((agents, size + 1, samples), np.float32)
    x_NIM[:, :-1] = x_MNO.transpose(1, 2, 0)
    return torch.from_numpy(x_NIM)


def best(q: Net, obs_BNO: FloatArray) -> NDArray[np.int32]:
    """The action that each agent values highest, [N, B]."""
    q_NAB = q.forward(features(obs_BNO)).numpy()
    action_NB: NDArray[np.int32] = q_NAB.argmax(axis=1).astype(np.int32)
    return action_NB


class Actor:
    """Copies of the environment, in which the agents play ε-greedily."""

    def __init__(self, seed: int, index: int) -> None:
        self._seed, self._index = seed, index
        self._env = registry.make(ENV, {}, COPIES)
        self._frame = self._env.reset(self._seeds(round_=0)[0])  # once: an episode that ends is followed by the next

    def play(self, q: Net, epsilon: float, round_: int) -> Arrays:
        """Sample STEPS time steps in every copy; returns the transitions by name, copy by copy."""
        rng, actions, sampled = self._seeds(round_)[1], q.layers[-1].shape[1], []
        for _ in range(STEPS):
            obs_BNO, state_BS = self._frame.obs[0].swapaxes(0, 1).copy(), np.array(self._frame.state)
            greedy_NB = best(q, obs_BNO)
            explores_NB = rng.random(greedy_NB.shape, np.float32) < np.float32(epsilon)
            random_NB = rng.integers(actions, size=greedy_NB.shape, dtype=np.int32)
            action_NB = np.where(explores_NB, random_NB, greedy_NB)
            transition = self._env.step((action_NB,))
            self._frame = transition.frame  # where an episode has ended, of the next one; `final` is of that episode
            reward_NB, final = transition.rewards[0].astype(np.float32), transition.final
            team_B = reward_NB.sum(axis=0, dtype=np.float64).astype(np.float32)
            now = {"obs": obs_BNO, "state": state_BS, "action": action_NB.T, "reward": team_B}
            after = {"next_obs": final.obs[0].swapaxes(0, 1).copy(), "next_state": np.array(final.state)}
            sampled.append(now | after)
        by_copy = {name: np.stack([each[name] for each in sampled], axis=1) for name in sampled[0]}
        return {name: x.reshape(-1, *x.shape[2:]) for name, x in by_copy.items()}

    def _seeds(self, round_: int) -> tuple[int, np.random.Generator]:
        """Independent random numbers for the environment and for the actions of this actor in this round."""
        training = 1  # Same bits: its number among marless's kinds of play, which has others for evaluations
        low, high = np.random.SeedSequence((self._seed, training, round_, self._index)).generate_state(2)
        env, actions = np.random.SeedSequence(int(high) << 32 | int(low)).spawn(2)
        return int(env.generate_state(1)[0]), np.random.Generator(np.random.PCG64(actions))


def greedy_return(q: Net, seed: int) -> float:
    """The mean return of an agent over new episodes in which all agents take their best actions."""
    env = registry.make(ENV, {}, EVALUATION_EPISODES)
    frame, total = env.reset(seed), 0.0
    for _ in range(STEPS):
        transition = env.step((best(q, frame.obs[0].swapaxes(0, 1)),))
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
        # Same bits: sums go over time, then copies.
        reward = transitions["reward"].reshape(COPIES, STEPS).T.astype(np.float64).ravel()
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


class Learner:
    """Q nets and mixer with their target nets, trained together on the TD error of the team's value."""

    def __init__(self, seed: int, agents: Sequence[str], obs_size: int, actions: int, state_size: int) -> None:
        self.q = Net([generator(seed, agent) for agent in agents], (obs_size, *HIDDEN, actions), output_gain=0.01)
        self.mixer = Mixer(generator(seed, "mixer"), len(agents), state_size)
        self._target_q, self._target_mixer = copy.deepcopy(self.q), copy.deepcopy(self.mixer)
        self._adam_q, self._adam_mixer = Adam([self.q]), Adam(list(self.mixer.nets.values()))

    def step(self, batch: Arrays) -> None:
        """Take a gradient step along the mean of (team's value − target)² / 2."""
        target_M, action_N1M = self._targets(batch), torch.from_numpy(batch["action"].T).long()[:, None]
        q_NAM = self.q.forward(features(batch["obs"]))
        team_M = self.mixer.forward(q_NAM.gather(1, action_N1M).squeeze(1), features(batch["state"][:, None]))
        d_q_NM, d_mixer = self.mixer.backward((team_M - target_M) * (1 / BATCH))
        d_q_NAM = torch.zeros_like(q_NAM).scatter_(1, action_N1M, d_q_NM.unsqueeze(1))
        self._adam_q.step([self.q.backward(d_q_NAM)])
        self._adam_mixer.step(d_mixer)
        if self._adam_q.count % TARGET_EVERY == 0:
            self._target_q, self._target_mixer = copy.deepcopy(self.q), copy.deepcopy(self.mixer)

    def _targets(self, batch: Arrays) -> Tensor:
        """r + γ V′(s′): nets choose the next actions, target nets value them (double Q, van Hasselt et al. 2016)."""
        obs_NIM = features(batch["next_obs"])
        best_N1M = self.q.forward(obs_NIM).max(dim=1, keepdim=True).indices
        value_NM = self._target_q.forward(obs_NIM).gather(1, best_N1M).squeeze(1)
        team_M = self._target_mixer.forward(value_NM, features(batch["next_state"][:, None]))
        return torch.addcmul(torch.from_numpy(batch["reward"]), torch.full_like(team_M, GAMMA), team_M)


def main() -> None:
    """Train, and print returns."""
    parser = argparse.ArgumentParser(description="QMIX in mpe/simple_spread")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="folder for the weights, as safetensors files")
    given = parser.parse_args()

    spaces = registry.spaces(ENV, {})
    (agents,) = spaces.classes  # all observe and do the same kind of thing, so there is one class
    learner = Learner(given.seed, agents.agents, agents.obs_size, agents.action.n, spaces.state_size)
    replay, actors = ReplayBuffer(), [Actor(given.seed, index) for index in range(ACTORS)]
    started_s, steps = time.monotonic(), 0
    for round_ in range(given.rounds):
        epsilon = EPSILON_START + (EPSILON_END - EPSILON_START) * min(steps / EPSILON_STEPS, 1.0)
        for actor in actors:
            replay.add(actor.play(learner.q, epsilon, round_))
        draws = np.random.default_rng([given.seed, round_, 4])  # Same bits: 4 is the number of this stream in marless
        for batch in replay.draw(draws):
            learner.step(batch)
        steps += ACTORS * COPIES * STEPS
        if (round_ + 1) % EVALUATE_EVERY == 0 or round_ + 1 == given.rounds:
            seconds, found = time.monotonic() - started_s, greedy_return(learner.q, given.seed)
            print(f"{steps:9,} env steps  {seconds:6.1f} s  return per agent {found:7.2f}")
    if given.save:
        given.save.mkdir(parents=True, exist_ok=True)
        for n, agent in enumerate(agents.agents):
            save_file(learner.q.arrays("policy", n), given.save / f"{agent}.safetensors")
        mixer = [net.arrays(f"mixer.{name}", 0) for name, net in learner.mixer.nets.items()]
        save_file({name: x for each in mixer for name, x in each.items()}, given.save / "mixer.safetensors")


if __name__ == "__main__":
    main()
