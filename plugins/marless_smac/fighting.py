"""How the units of one team attack those of the other, in one game loop.

Arrays are [A, T, B]: attackers, targets, battles. All hits of a loop land at the same time; two units may kill each
other. Damage to one target is counted attacker by attacker, by id: shields absorb it first, and what is left of the
hit that breaks them, and each later one, is lessened by armour.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import BoolArray, FloatArray
from marless_smac.rules import Rules
from marless_smac.tables import BEYOND, Weapons

TargetArray = NDArray[np.int16]


@dataclass(frozen=True)
class TargetView:
    """Where targets are, seen from attackers."""

    dx: FloatArray
    dy: FloatArray
    dist: FloatArray

    def turned(self) -> TargetView:
        """The same for the other team."""
        return TargetView(-self.dx.swapaxes(0, 1), -self.dy.swapaxes(0, 1), self.dist.swapaxes(0, 1))


@dataclass(frozen=True)
class Aim:
    """Each attacker's relation to its own target, all [A, B]."""

    aims: BoolArray
    """Has a target."""
    dx: FloatArray
    dy: FloatArray
    dist: FloatArray
    gap: FloatArray
    """From edge to edge."""

    def joined(self, other: Aim) -> Aim:
        """The aims of both teams, [U, B]."""
        return Aim(*(np.concatenate([getattr(self, field.name), getattr(other, field.name)]) for field in fields(self)))


def aim(view: TargetView, weapons: Weapons, target: TargetArray) -> Aim:
    """The view of the chosen targets."""
    at = np.clip(target, 0, view.dist.shape[1] - 1).astype(np.intp)
    dist = _picked(view.dist, at)
    return Aim(target >= 0, _picked(view.dx, at), _picked(view.dy, at), dist, dist - _contact(weapons, at))


def choose(
    view: TargetView, weapons: Weapons, target: TargetArray, reach_A1: FloatArray, rules: Rules, far: bool
) -> None:
    """Let the units that fight on their own choose targets, in place. `far`: they see the whole map.

    A target is kept while it can be reached, or is near enough to be chased. Otherwise the best one in sight is taken:
    armed before unarmed ones, then the nearest, then the first by id.
    """
    at, aims = np.clip(target, 0, view.dist.shape[1] - 1).astype(np.intp), target >= 0
    dist = _picked(view.dist, at)
    reached = aims & (dist - _contact(weapons, at) <= reach_A1)
    chased = aims & (dist <= (BEYOND if far else rules.chase))
    rank = view.dist + weapons.unfit
    best = rank.argmin(axis=1)
    dist = _picked(view.dist, best)
    fit = _picked(rank, best) < BEYOND / 2
    seen = fit & ((dist <= np.maximum(np.float32(rules.scan), reach_A1) + weapons.radius) | far)
    takes = ~reached & ~chased & seen
    if rules.switch:
        takes |= ~reached & chased & fit & (dist - _contact(weapons, best) <= reach_A1)
    target[...] = np.where(takes, best, np.where(reached | chased, target, -1))


def strikes(
    view: TargetView, weapons: Weapons, target: TargetArray, fires: BoolArray, aimed: Aim, rules: Rules
) -> FloatArray:
    """Damage of one hit of each attacker on each target, [A, T, B], of those that fire."""
    chosen = target[:, None] == np.arange(view.dist.shape[1], dtype=np.int16)[:, None]
    chosen &= fires[:, None]
    if weapons.colossi.size:
        chosen[weapons.colossi] = _burnt(view, weapons, fires, aimed, rules)
    if weapons.banelings.size:
        chosen[weapons.banelings] = bursts(view, fires[weapons.banelings], weapons, rules)
    raw: FloatArray = chosen * weapons.damage
    return raw


def bursts(view: TargetView, goes_off: BoolArray, weapons: Weapons, rules: Rules) -> BoolArray:
    """bool [banelings, T, B]: who is near banelings that go off, bool [banelings, B]."""
    return (view.dist[weapons.banelings] <= np.float32(rules.burst)) & goes_off[:, None]


@dataclass(frozen=True)
class Harm:
    """What hits do to their targets."""

    shield: FloatArray
    """[T, B], lost."""
    health: FloatArray
    """[T, B], lost; may be more than there is."""
    late: BoolArray
    """[A, B]: hits a target that earlier attackers of this loop have killed."""


def harm(raw: FloatArray, weapons: Weapons, shield: FloatArray, health: FloatArray, least: float) -> Harm:
    """The effect of hits `raw` [A, T, B]: first those of the first attacker, then those of the second."""
    if not weapons.shields:
        each = np.maximum(raw - weapons.armour, np.float32(least)) * weapons.hits * (raw > 0)
        lost = np.zeros_like(health)
    else:
        total = raw * weapons.hits
        after = np.add.accumulate(total, axis=0)
        left = after - total - shield  # what earlier attackers have left of the shield, negated
        each = np.zeros_like(raw)
        for hit in range(1, weapons.most_hits + 1):
            through = np.minimum(left + hit * raw, raw)
            counts = (through > 0) & (hit <= weapons.hits)
            each += np.maximum(through - weapons.armour, np.float32(least)) * counts
        lost = np.minimum(after[-1], shield)
    done = np.add.accumulate(each, axis=0)
    late: BoolArray = np.any((done - each >= health) & (raw > 0), axis=1)
    return Harm(lost, done[-1], late)


def _burnt(view: TargetView, weapons: Weapons, fires: BoolArray, aimed: Aim, rules: Rules) -> BoolArray:
    """bool [colossi, T, B]: who stands in the line of fire, across the direction of the target."""
    who = weapons.colossi
    # A target at the very place of the colossus has no direction.
    dist = np.maximum(aimed.dist[who], np.float32(1e-6))
    ux, uy = (aimed.dx[who] / dist)[:, None], (aimed.dy[who] / dist)[:, None]
    dx, dy = view.dx[who] - aimed.dx[who][:, None], view.dy[who] - aimed.dy[who][:, None]
    along, across = np.abs(dx * ux + dy * uy), np.abs(dx * uy - dy * ux)
    hit = (across <= np.float32(rules.splash_across)) & (
        along <= np.float32(rules.splash_along) + weapons.target_radius
    )
    return hit & fires[who][:, None] & (weapons.damage[who] > 0)


def _picked(array: FloatArray, at: NDArray[np.intp]) -> FloatArray:
    """[A, B]: of numbers [A, T, B] those about the targets `at` [A, B]."""
    attackers, battles = at.shape
    picked: FloatArray = array[np.arange(attackers)[:, None], at, np.arange(battles)]
    return picked


def _contact(weapons: Weapons, at: NDArray[np.intp]) -> FloatArray:
    contact: FloatArray = weapons.contact[np.arange(len(at))[:, None], at, 0]
    return contact
