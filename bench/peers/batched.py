"""marless's batched games as an environment of torchrl, so that BenchMARL steps all copies at once.

Particle games equal mpe2 step for step (tests/unit/learning/envs), but a step of 16 copies takes a fraction of the
time. Tensors have the names and shapes that torchrl gives to mpe2's games, after a leading dimension of copies.
"""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from bench.peers.greedy import GroupsAct
from bench.task import Game
from marless.learning.envs import registry
from marless.learning.envs.base import AgentClass, Discrete, Frame


class BatchedGame(EnvBase):
    """`copies` copies of a game, whose agents all leave together."""

    def __init__(self, game: Game, copies: int, seed: int | None, *, continuous: bool) -> None:
        super().__init__(device="cpu", batch_size=torch.Size([copies]))
        self._env = registry.make(game.ours, game.options(continuous=continuous), copies)
        self._seed = seed or 0
        self._frame: Frame | None = None
        spaces = self._env.spaces
        self.group_map = {each.name: list(each.agents) for each in spaces.classes}
        self.action_spec = _by_group(copies, {each.name: {"action": _action(each, copies)} for each in spaces.classes})
        seen = {
            each.name: {"observation": Unbounded((copies, len(each.agents), each.obs_size))} for each in spaces.classes
        }
        self.observation_spec = _by_group(copies, seen)
        self.observation_spec["state"] = Unbounded((copies, spaces.state_size))
        paid = {each.name: {"reward": Unbounded((copies, len(each.agents), 1))} for each in spaces.classes}
        self.reward_spec = _by_group(copies, paid)
        flag = Categorical(2, shape=torch.Size((copies, 1)), dtype=torch.bool)
        ends = ("done", "terminated", "truncated")
        self.done_spec = Composite({end: flag.clone() for end in ends}, shape=(copies,))

    def _reset(self, tensordict: TensorDictBase | None = None, **_: object) -> TensorDictBase:
        """The first call starts all episodes. Later ones come when some have ended; new ones have begun there."""
        if self._frame is None:
            self._frame = self._env.reset(self._seed)
        return self._seen(self._frame)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = []
        for each in self._env.spaces.classes:
            action_BNx = tensordict[each.name, "action"].numpy().swapaxes(0, 1)
            kind = np.int32 if isinstance(each.action, Discrete) else np.float32
            actions.append(np.ascontiguousarray(action_BNx, kind))
        moved = self._env.step(tuple(actions))
        self._frame = moved.frame
        found = self._seen(moved.final)
        for each, reward_NB in zip(self._env.spaces.classes, moved.rewards, strict=True):
            reward_BN = np.array(reward_NB.T, np.float32)
            found[each.name, "reward"] = torch.from_numpy(reward_BN).unsqueeze(-1)
        ends = {"done": moved.ended, "truncated": moved.truncated, "terminated": moved.ended & ~moved.truncated}
        found.update({name: torch.from_numpy(end_B.copy()).unsqueeze(-1) for name, end_B in ends.items()})
        return found

    def _set_seed(self, seed: int | None) -> None:
        self._seed, self._frame = seed or 0, None

    def _seen(self, frame: Frame) -> TensorDict:
        found = TensorDict({}, self.batch_size)
        for each, obs_NBO in zip(self._env.spaces.classes, frame.obs, strict=True):
            obs_BNO = torch.from_numpy(obs_NBO.swapaxes(0, 1).copy())
            found[each.name] = TensorDict({"observation": obs_BNO}, obs_BNO.shape[:2])
        assert frame.state is not None  # these games have one
        found["state"] = torch.from_numpy(frame.state.copy())
        return found


def _action(agents: AgentClass, copies: int) -> Categorical | Bounded:
    shape = torch.Size((copies, len(agents.agents)))
    if isinstance(agents.action, Discrete):
        return Categorical(agents.action.n, shape=shape)
    return Bounded(0.0, 1.0, shape=torch.Size((*shape, agents.action.n)))


def _by_group(copies: int, leaves: dict[str, dict[str, Unbounded | Categorical | Bounded]]) -> Composite:
    found = {}
    for group, specs in leaves.items():
        [agents] = {spec.shape[1] for spec in specs.values()}
        found[group] = Composite(specs, shape=(copies, agents))
    return Composite(found, shape=(copies,))


class BatchedEvaluation:
    """Plays whole episodes of a game, one in each of `episodes` copies."""

    def __init__(self, game: Game, episodes: int) -> None:
        self._game = game
        self._env = registry.make(game.ours, game.options(continuous=False), episodes)

    def __call__(self, act: GroupsAct, seed: int) -> dict[str, float]:
        """Undiscounted return per agent of each class, mean over episodes."""
        frame = self._env.reset(seed)
        total, over_B = dict.fromkeys(self._game.groups, 0.0), np.zeros(self._env.batch, np.bool_)
        while not over_B.all():
            actions = act(dict(zip(self._game.groups, frame.obs, strict=True)))
            moved = self._env.step(tuple(actions[group].astype(np.int32) for group in self._game.groups))
            for group, reward_NB in zip(self._game.groups, moved.rewards, strict=True):
                total[group] += float(reward_NB[:, ~over_B].sum())
            over_B |= moved.ended
            frame = moved.frame
        played = self._env.batch
        return {group: found / (self._game.groups[group] * played) for group, found in total.items()}
