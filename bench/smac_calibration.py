"""Win rates of scripted policies on the embedded StarCraft engine, beside those published for the real game.

    python -m bench.smac_calibration                  # all calibration maps
    python -m bench.smac_calibration --sensitivity    # how much each inferred rule matters
    python -m bench.smac_calibration --starts --maps 2s3z    # wins by the kind of the first target

`heuristic` is `heuristic_ai` of SMAC's class: every ally attacks the nearest living enemy, at any distance, until it is
dead (marauders leave medivacs out); a medivac heals the nearest hurt ally until it is whole. `waiting` keeps to legal
actions: every ally stands, and attacks the nearest enemy that it may attack.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from marless.learning.envs.base import BoolArray
from marless_smac.engine import EmbeddedBattles
from marless_smac.kinds import Kind
from marless_smac.maps import FIXED_ACTIONS, SmacMap, find
from marless_smac.observing import NO_OP, SHOOT, STOP
from marless_smac.options import SmacOptions
from marless_smac.rewards import Scorer
from marless_smac.rules import Rules
from marless_smac.units import IntArray, UnitTeam

PUBLISHED: Mapping[str, float | None] = {
    "2s3z": 0.90,
    "3s5z": 0.42,
    "1c3s5z": 0.81,
    "10m_vs_11m": 0.12,
    "5m_vs_6m": 0.0,
    "3s_vs_5z": 0.0,
    "8m": None,
    "3m": None,
}
"""Win rates of the policy in the real game, as quoted in a public table; None: none is quoted."""
NOBODY = -1
Acts = Callable[[], IntArray]
"""The next actions of all allies in all battles."""


class Heuristic:
    """The scripted policy for all battles of an engine; keeps each ally's target."""

    def __init__(self, battles: EmbeddedBattles) -> None:
        self._battles = battles
        self._target_NB = np.full(battles.units.allies.x.shape, NOBODY, np.int32)

    def acts(self) -> IntArray:
        """The next actions; they need not be in the masks."""
        allies, enemies = self._battles.units.allies, self._battles.units.enemies
        heals_NB = allies.kind == Kind.MEDIVAC
        fit_NEB = np.broadcast_to(enemies.alive, (*allies.x.shape[:1], *enemies.x.shape))
        fit_NEB = fit_NEB & ~((allies.kind == Kind.MARAUDER)[:, None] & (enemies.kind == Kind.MEDIVAC))
        hurt_NB = allies.alive & (allies.health < allies.health_max) & ~heals_NB
        attacked = self._kept(enemies, fit_NEB)
        healed = self._kept(allies, np.broadcast_to(hurt_NB, (len(hurt_NB), *hurt_NB.shape)))
        self._target_NB = np.where(heals_NB, healed, attacked)
        acts = np.where(self._target_NB >= 0, self._target_NB + FIXED_ACTIONS, STOP)
        return np.where(allies.alive, acts, NO_OP).astype(np.int32)

    def _kept(self, team: UnitTeam, fit_NTB: BoolArray) -> IntArray:
        """The old targets where they are still fit, otherwise the nearest ones."""
        allies, old = self._battles.units.allies, np.clip(self._target_NB, 0, len(team.x) - 1)
        keeps = (self._target_NB >= 0) & np.take_along_axis(fit_NTB, old[:, None], axis=1)[:, 0]
        dist = np.hypot(team.x - allies.x[:, None], team.y - allies.y[:, None])
        nearest = np.where(fit_NTB, dist, np.inf).argmin(axis=1)
        kept: IntArray = np.where(keeps, old, np.where(fit_NTB.any(axis=1), nearest, NOBODY)).astype(np.int32)
        return kept


def waiting(battles: EmbeddedBattles) -> Acts:
    """The policy that stands and attacks."""

    def acts() -> IntArray:
        allies, enemies = battles.units.allies, battles.units.enemies
        dist = np.hypot(enemies.x - allies.x[:, None], enemies.y - allies.y[:, None])
        legal = (dist <= SHOOT) & enemies.alive & (allies.kind != Kind.MEDIVAC)[:, None]
        nearest = np.where(legal, dist, np.inf).argmin(axis=1)
        chosen = np.where(legal.any(axis=1), nearest + FIXED_ACTIONS, STOP)
        return np.where(allies.alive, chosen, NO_OP).astype(np.int32)

    return acts


POLICIES: Mapping[str, Callable[[EmbeddedBattles], Acts]] = {
    "heuristic": lambda battles: Heuristic(battles).acts,
    "waiting": waiting,
}


def win_rate(
    smac_map: SmacMap,
    battles: int,
    rules: Rules,
    policy: str = "heuristic",
    seed: int = 0,
    place: Callable[[EmbeddedBattles], None] = lambda _: None,
) -> tuple[float, float, float]:
    """The fractions of battles that were won and cut by the time limit, and the mean length of battles.

    `place` may move the units before the first step.
    """
    engine = EmbeddedBattles(smac_map, battles, rules)
    scorer, acts = Scorer(smac_map, SmacOptions(), battles), POLICIES[policy](engine)
    engine.reset(seed)
    place(engine)
    won, over, steps = np.zeros(battles, bool), np.zeros(battles, bool), np.zeros(battles)
    for _ in range(smac_map.limit):
        scorer.remember(engine.units)
        engine.advance(acts())
        outcome = scorer.score(engine.units)
        won |= outcome.won & ~over
        steps += ~over
        over |= outcome.over
        if over.all():
            break
    return float(won.mean()), float((~over).mean()), float(steps.mean())


def by_first_target(name: str, battles: int, seed: int = 0) -> None:
    """Print what `heuristic` wins, by the kind that most allies attack first, and how far units go north and south."""
    smac_map = find(name)
    engine = EmbeddedBattles(smac_map, battles, Rules())
    scorer, policy = Scorer(smac_map, SmacOptions(), battles), Heuristic(engine)
    engine.reset(seed)
    actions, won, over = policy.acts(), np.zeros(battles, bool), np.zeros(battles, bool)
    kinds_EB = np.array(smac_map.enemy_kinds)[actions - FIXED_ACTIONS]
    first = [Kind(int(np.bincount(kinds_E).argmax())) for kinds_E in kinds_EB.T]
    low, high = np.inf, -np.inf
    for _ in range(smac_map.limit):
        scorer.remember(engine.units)
        engine.advance(actions)
        outcome, actions = scorer.score(engine.units), policy.acts()
        won |= outcome.won & ~over
        over |= outcome.over
        for team in (engine.units.allies, engine.units.enemies):
            y = team.y[team.alive & ~over]
            low, high = min(low, y.min(initial=np.inf)), max(high, y.max(initial=-np.inf))
    for kind in sorted(set(first)):
        which = np.array([each == kind for each in first])
        print(f"| {name} | {kind.name.lower()} | {which.sum()} | {100 * won[which].mean():.0f} |", flush=True)
    print(f"{name}: units stay between y {low:.1f} and {high:.1f}", flush=True)


def interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a probability by Wilson (1927)."""
    z = 1.96
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def changes() -> dict[str, Rules]:
    """Each inferred rule, changed alone."""
    rules = Rules()
    return {
        "as used": rules,
        "scan 3": replace(rules, scan=3.0),
        "scan 8": replace(rules, scan=8.0),
        "no chase": replace(rules, chase=0.0),
        "switches targets": replace(rules, switch=not rules.switch),
        "scatter 0.1": replace(rules, scatter=0.1),
        "scatter 2": replace(rules, scatter=2.0),
        "crowding 0.8": replace(rules, crowding=0.8),
        "crowding 1.25": replace(rules, crowding=1.25),
        "attackers are not pushed": replace(rules, planted=not rules.planted),
        "nobody goes round others": replace(rules, steer=not rules.steer),
        "shots are wasted": replace(rules, holds_fire=not rules.holds_fire),
        "no jitter": replace(rules, jitter=(0.0, 0.0)),
        "jitter −4 … 4": replace(rules, jitter=(-4.0, 4.0)),
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--battles", type=int, default=400, help="battles per cell")
    parser.add_argument("--maps", nargs="+", default=list(PUBLISHED))
    parser.add_argument("--sensitivity", action="store_true", help="change each inferred rule alone")
    parser.add_argument("--starts", action="store_true", help="show wins by the kind of the first target")
    args = parser.parse_args()
    if args.starts:
        print("| map | most allies attack first a | battles | won, % |\n|---|---|---|---|")
        for name in args.maps:
            by_first_target(name, args.battles)
        return
    if args.sensitivity:
        print("| won, % | " + " | ".join(args.maps) + " |\n|---|" + "---|" * len(args.maps))
        for what, rules in changes().items():
            cells = [f"{100 * win_rate(find(name), args.battles, rules)[0]:.0f}" for name in args.maps]
            print(f"| {what} | " + " | ".join(cells) + " |", flush=True)
        # Walls are looked up by name, and this map has none.
        bare = [replace(find(name), name="3s_vs_3z") for name in args.maps]
        cells = [f"{100 * win_rate(each, args.battles, Rules())[0]:.0f}" for each in bare]
        print("| no walls | " + " | ".join(cells) + " |", flush=True)
        return
    print("| map | policy | won, % | 95 % interval | at the limit, % | steps | published, % |\n|" + 7 * "---|")
    for name in args.maps:
        for policy in POLICIES:
            share, late, steps = win_rate(find(name), args.battles, Rules(), policy)
            low, high = interval(share, args.battles)
            known = PUBLISHED.get(name) if policy == "heuristic" else None
            row = (f"{100 * share:.0f}", f"{100 * low:.0f}–{100 * high:.0f}", f"{100 * late:.0f}", f"{steps:.0f}")
            told = "" if known is None else f"{100 * known:.0f}"
            print(f"| {name} | {policy} | " + " | ".join(row) + f" | {told} |", flush=True)


if __name__ == "__main__":
    main()
