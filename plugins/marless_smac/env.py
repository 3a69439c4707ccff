"""SMAC's battles as a batched environment, over the embedded engine or any other backend.

All agents form one class. An agent that died stays: it observes zeros, its only legal action is the no-op, and it goes
on to get the team's reward, as in SMAC. Every agent's reward is the team's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marless.core.errors import SpecError
from marless.learning.envs.base import ActionArray, AgentClass, BoolArray, Discrete, EnvSpaces, Frame, Transition
from marless_smac.maps import FIXED_ACTIONS, SmacMap
from marless_smac.observing import NO_ACTION, NO_OP, Observer
from marless_smac.options import SmacOptions
from marless_smac.rewards import BattleOutcome, Scorer
from marless_smac.units import Battles

_NAMES = ("no-op", "stop", "north", "south", "east", "west")


@dataclass
class BattleCounts:
    """Battles since the environment was made, in all copies."""

    ended: int = 0
    won: int = 0
    timeouts: int = 0
    """Ended by their time limit."""
    restarts: int = 0
    """Ended by a fault of the game."""

    def stats(self) -> dict[str, float]:
        """SMAC's `get_stats`; the win rate is 0 before the first battle has ended."""
        return {
            "battles_won": self.won,
            "battles_game": self.ended,
            "battles_draw": self.timeouts,
            "win_rate": self.won / self.ended if self.ended else 0.0,
            "timeouts": self.timeouts,
            "restarts": self.restarts,
        }


class SmacEnv:
    """B battles on one map; see `marless.learning.envs.base.BatchedEnv`.

    `dead_allies` and `dead_enemies`, int64 [B], count the dead after the last step, before ended battles began anew.
    """

    fresh_only: str = "battles of StarCraft II cannot be saved"
    """Why battles cannot go on in another round, unless the backend can save them."""

    def __init__(self, smac_map: SmacMap, options: SmacOptions, battles: Battles) -> None:
        self.map, self.batch, self.counts = smac_map, battles.batch, BattleCounts()
        self._battles, self._observer = battles, Observer(smac_map, options)
        self._continuing = options.continuing_episode
        self._scorer = Scorer(smac_map, options, battles.batch)
        names = tuple(f"agent_{i}" for i in range(self._observer.agents))
        self.spaces = EnvSpaces(
            (
                AgentClass(
                    "agent",
                    names,
                    self._observer.obs_size,
                    Discrete(self._observer.n_actions),
                    entities=self._observer.entities,
                ),
            ),
            state_size=self._observer.state_size,
            max_steps=smac_map.limit,
            masks=True,
            rewards="cooperative",
            wins=True,
            team_reward=True,
            fresh_only=self.fresh_only,
        )
        self._rows, self._last_rows = self._observer.rows(self.batch), self._observer.rows(self.batch)
        self._frame, self._last_frame = self._rows.frame(), self._last_rows.frame()
        self._steps_B = np.zeros(self.batch, np.int64)
        self._last_action_NB = np.full((len(names), self.batch), NO_ACTION, np.int32)
        self._cut_B = np.zeros(self.batch, np.bool_)
        self.dead_allies, self.dead_enemies = np.zeros((2, self.batch), np.int64)

    def reset(self, seed: int) -> Frame:
        self._battles.reset(seed)
        self._begun(np.ones(self.batch, np.bool_))
        return self._frame

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """See `BatchedEnv`; raises SpecError for an action that is not available."""
        action_NB = actions[0].astype(np.int32)
        self._check(action_NB)
        self._scorer.remember(self._battles.units)
        broken_B = self._battles.advance(action_NB)
        self._steps_B += 1
        self._last_action_NB[...] = action_NB
        units = self._battles.units
        outcome = self._scorer.score(units)
        self.dead_allies[...] = np.count_nonzero(~units.allies.alive, axis=0)
        self.dead_enemies[...] = np.count_nonzero(~units.enemies.alive, axis=0)
        return self._transition(outcome, broken_B)

    def restart(self, chosen_B: BoolArray) -> Frame:
        """Give up the battles of these copies and begin new ones."""
        self._battles.start(chosen_B)
        self._begun(chosen_B)
        return self._frame

    def truncate(self, chosen_B: BoolArray) -> None:
        self._cut_B[...] = chosen_B

    def close(self) -> None:
        self._battles.close()

    def _transition(self, outcome: BattleOutcome, broken_B: BoolArray) -> Transition:
        timeout_B = (self._steps_B == self.map.limit) & ~outcome.over & ~broken_B
        over_B = outcome.over & ~broken_B
        # As SMAC reports it: a battle that runs out of time is over, and what follows is worth nothing.
        if not self._continuing:
            over_B |= timeout_B
        truncated_B = (timeout_B | self._cut_B) & ~over_B | broken_B
        ended_B, final = over_B | truncated_B, self._frame
        self._count(outcome, timeout_B, broken_B)
        self._cut_B[:] = False
        self._write()
        if ended_B.any():
            self._rows.copy_to(self._last_rows)
            final = self._last_frame
            self._ending(ended_B)
            self.restart(ended_B)
        reward_B = np.where(broken_B, np.float32(0), outcome.reward)
        shape = self._last_action_NB.shape
        return Transition(
            frame=self._frame,
            final=final,
            rewards=(np.broadcast_to(reward_B, shape).copy(),),
            terminated=(np.broadcast_to(over_B, shape).copy(),),
            truncated=truncated_B,
            ended=ended_B,
            won=outcome.won & ended_B & ~broken_B,
            team_reward=reward_B,
            broken=broken_B,
        )

    def _ending(self, ended_B: BoolArray) -> None:
        """Called when battles have ended, while their units are still as they were."""

    def _count(self, outcome: BattleOutcome, timeout_B: BoolArray, broken_B: BoolArray) -> None:
        """Count the battles that have ended; those cut short for training count as nothing."""
        self.counts.ended += int(((outcome.over & ~broken_B) | timeout_B).sum())
        self.counts.won += int((outcome.won & ~broken_B).sum())
        self.counts.timeouts += int(timeout_B.sum())
        self.counts.restarts += int(broken_B.sum())

    def _begun(self, fresh_B: BoolArray) -> None:
        self._steps_B[fresh_B] = 0
        self._last_action_NB[:, fresh_B] = NO_ACTION
        self._cut_B[fresh_B] = False
        self._write()

    def _write(self) -> None:
        battles = self._battles
        self._observer.write(self._rows, battles.units, battles.walkable, self._last_action_NB, self._steps_B)

    def _check(self, action_NB: ActionArray) -> None:
        """Raise SpecError for the first action that is not available."""
        in_range_NB = (action_NB >= 0) & (action_NB < self._observer.n_actions)
        clipped_NB = np.where(in_range_NB, action_NB, NO_OP)
        legal_NB = np.take_along_axis(self._rows.mask, clipped_NB[:, None], axis=1)[:, 0] & in_range_NB
        if not legal_NB.all():
            agent, copy = np.argwhere(~legal_NB)[0]
            legal = [self._named(a) for a in np.flatnonzero(self._rows.mask[agent, :, copy]).tolist()]
            raise SpecError(
                f"map {self.map.name}: action {self._named(int(action_NB[agent, copy]))} is not available to"
                f" agent_{agent} in copy {copy}; available: {', '.join(legal)}"
            )

    def _named(self, action: int) -> str:
        if not 0 <= action < self._observer.n_actions:
            return str(action)
        return f"{action} ({_NAMES[action] if action < FIXED_ACTIONS else f'target {action - FIXED_ACTIONS}'})"
