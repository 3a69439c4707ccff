"""What to do about a group of machines, from what it is and what its hosts do: decisions only, no calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from marless_ec2.settings import Ec2Settings

FLEET, ROLE = "marless:fleet", "marless:role"
"""Tags of groups, and of the instances that they launch."""
IN_SERVICE, WAITS_TO_END = "InService", "Terminating:Wait"
"""States of the life cycle of instances, as AWS names them."""


@dataclass(frozen=True)
class GroupInstance:
    """One machine of a group, as AWS sees it."""

    id: str
    state: str
    is_protected: bool = False

    @property
    def serves(self) -> bool:
        """True for one that runs, or is about to, and is not being ended."""
        return self.state == IN_SERVICE or self.state.startswith("Pending")


@dataclass(frozen=True)
class ScalingGroup:
    """An Auto Scaling group, as AWS sees it."""

    name: str
    least: int
    most: int
    desired: int
    instances: Sequence[GroupInstance] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def serving(self) -> list[GroupInstance]:
        """The machines that run, or are about to."""
        return [each for each in self.instances if each.serves]


@dataclass(frozen=True)
class Load:
    """What the host program of a machine does."""

    workers: int
    idle_s: float = 0.0
    """Seconds since its last worker; 0 while it has one."""
    leaving: str = ""
    """Why its machine ends soon; "" if it does not."""
    is_due: bool = False
    """True once it ends whether it has workers or not."""

    @property
    def is_free(self) -> bool:
        """True if nothing is lost with it."""
        return not self.workers or self.is_due


@dataclass(frozen=True)
class MachineDemand:
    """What the pool needs in addition."""

    waiting: int
    """Workers for which there is no room."""
    slots: int
    """Workers of one machine; 0: not known yet."""

    @property
    def machines(self) -> int:
        """Further machines that it takes. Of an unknown kind it takes one, which tells how many it has room for."""
        return math.ceil(self.waiting / self.slots) if self.slots else min(1, self.waiting)


@dataclass(frozen=True)
class Plan:
    """Calls to make, in this order."""

    desired: int | None = None
    """The desired capacity to set before machines are ended, which lowers it by one each."""
    protect: Sequence[str] = ()
    unprotect: Sequence[str] = ()
    end: Mapping[str, str] = field(default_factory=dict)
    """Machines to end, and why."""
    complete: Sequence[str] = ()
    """Machines that wait to be ended, and may."""


def plan(
    group: ScalingGroup,
    loads: Mapping[str, Load],
    silent_s: Mapping[str, float],
    demand: MachineDemand,
    settings: Ec2Settings,
) -> Plan:
    """What to do now; `silent_s` has the seconds for which machines without a host have been known to have none."""
    end = _left(group, loads) | _lost(group, silent_s, settings)
    desired = _desired(group, loads, end, demand)
    # Otherwise what waits is about to use the machines that are idle.
    if not demand.waiting:
        end |= _idle(group, loads, settings)
    return Plan(
        desired,
        protect=tuple(each.id for each in group.instances if _needs_protection(each, loads, end)),
        unprotect=tuple(each.id for each in group.instances if each.id in end and _can_change(each, protected=True)),
        end=end,
        complete=tuple(each.id for each in group.instances if each.state == WAITS_TO_END and _is_free(each, loads)),
    )


def _left(group: ScalingGroup, loads: Mapping[str, Load]) -> dict[str, str]:
    known = {each.id: loads[each.id] for each in group.serving if each.id in loads}
    return {name: load.leaving for name, load in known.items() if load.leaving and load.is_free}


def _lost(group: ScalingGroup, silent_s: Mapping[str, float], settings: Ec2Settings) -> dict[str, str]:
    late = [each.id for each in group.serving if silent_s.get(each.id, 0.0) > settings.boot_s]
    return dict.fromkeys(late, f"its host program has not dialled in for {settings.boot_s:g} s; see its console output")


def _idle(group: ScalingGroup, loads: Mapping[str, Load], settings: Ec2Settings) -> dict[str, str]:
    known = [(each.id, loads[each.id]) for each in group.serving if each.id in loads]
    idle = [(name, load) for name, load in known if not load.workers and load.idle_s >= settings.idle_s]
    oldest_first = sorted(idle, key=lambda each: -each[1].idle_s)
    return {name: load.leaving or f"idle for {load.idle_s:.0f} s" for name, load in oldest_first}


def _desired(
    group: ScalingGroup, loads: Mapping[str, Load], end: Mapping[str, str], demand: MachineDemand
) -> int | None:
    """The capacity to ask for; None to leave it. Machines that are leaving count until they have left."""
    serving = group.serving
    if not demand.waiting:
        # What never came is not needed. What runs after a lease has run out is wanted until it is ended: that lowers
        # the desired capacity by one, and AWS refuses it where that is at its least already.
        runs = min(len(serving), group.most)
        return runs if runs >= group.least and runs != group.desired else None
    # Machines that are booting count towards what is wanted; otherwise each look would ask for them again.
    booting = [each for each in serving if each.id not in loads and each.id not in end]
    wanted = len(serving) - len(booting) + max(demand.machines, 0)
    # Never below what runs: machines are ended by name, or the group would choose which.
    wanted = min(max(wanted, len(serving)), group.most)
    return wanted if wanted > group.desired else None


def _needs_protection(instance: GroupInstance, loads: Mapping[str, Load], end: Mapping[str, str]) -> bool:
    """Machines with work, and those whose work is not known because their host is not connected."""
    has_work = instance.id not in loads or loads[instance.id].workers > 0
    return has_work and instance.id not in end and _can_change(instance, protected=False)


def _can_change(instance: GroupInstance, *, protected: bool) -> bool:
    """True if AWS takes a change of its protection, and it is protected or not, as given."""
    return instance.state == IN_SERVICE and instance.is_protected == protected


def _is_free(instance: GroupInstance, loads: Mapping[str, Load]) -> bool:
    return instance.id not in loads or loads[instance.id].is_free
