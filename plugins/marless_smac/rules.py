"""Rules of the embedded engine that no file of the game states; docs/environments/smac.md says how much each matters.

Everything else (units, maps, weapons) is in `marless_smac.kinds` and `marless_smac.maps`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Inferred rules, with the values that the engine uses."""

    scan: float = 5.0
    """An enemy without a target attacks allies up to this centre distance plus its radius, or up to its weapon's range
    if that is longer."""
    chase: float = 8.0
    """An enemy keeps a target that it cannot reach up to this centre distance."""
    switch: bool = False
    """An enemy that chases a target takes another one that it can reach."""
    arrive: float = 1.0
    """Enemies stand when they are this close to where they were sent."""
    scatter: float = 0.5
    """Units are created up to this far from their team's point in x and y, then pushed apart."""
    crowding: float = 1.0
    """Factor of the inner radii, by which units collide."""
    planted: bool = False
    """A unit that stands and attacks is not pushed by others."""
    steer: bool = True
    """A unit that is blocked by another goes round it."""
    jitter: tuple[float, float] = (-1.0, 2.0)
    """Loops that are added to each cooldown: whole numbers between these, all equally likely."""
    holds_fire: bool = True
    """A unit keeps its shot if its target is killed by others in the same loop, unless its weapon sends missiles."""
    least_harm: float = 0.5
    """Damage to health of each hit, whatever the armour."""
    splash_across: float = 1.4
    """A colossus burns enemies up to this far to both sides of its target."""
    splash_along: float = 0.15
    """And up to this far, plus their radius, before and behind it."""
    burst: float = 2.2
    """A baneling hurts all enemies whose centres are this close when it attacks or dies."""
    heal: float = 9.0
    """Health per second that a medivac heals."""
    heal_per_energy: float = 3.0
