"""What a coordinator knows of an asynchronous job: groups and versions by clock, which its commands are computed with;
and which of its gradients are in the store, those that wait to be applied and those that are to be removed.

Groups change between two versions. What is under way then is lost and counted, so that all commands are of the present
groups. Those of the clock at which the groups changed start from the policies that the change names.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from marless.core.group import Group, Versions
from marless.jobs.job import PreparedJob
from marless.jobs.record import RoundRecord
from marless.rpc import gradients
from marless.rpc.param_store import PolicyListing
from marless.services.coordinator.execution.planning import RoundPlan


class Clocks:
    """The clocks of one job. `follow` its records first, then `enter` the plan of each version."""

    def __init__(self, job: PreparedJob) -> None:
        self._takes_steps = job.spec.algorithm.takes_steps
        self._groups = job.sharing.decide(()).groups
        self._changed_at, self._changed = 0, self._groups
        """The clock since which there are these groups, and the groups with what they started from."""
        self._policies = {group.policy for group in self._groups}
        """Those of all groups that are known, also of earlier ones."""
        self._round = 0
        self._versions: Versions = {}

    def follow(self, records: Iterable[RoundRecord]) -> None:
        """Take note of the groups of recorded versions, in order."""
        for record in records:
            self._note(record.round, tuple(Group(each.policy, each.agents, each.source) for each in record.groups))

    def enter(self, plan: RoundPlan) -> bool:
        """Go on to the next version; returns True if it has other groups than the one before."""
        self._round, self._versions = plan.round, plan.versions
        return self._note(plan.round, plan.groups)

    def _note(self, clock: int, groups: tuple[Group, ...]) -> bool:
        """True if the groups change."""
        self._policies.update(group.policy for group in groups)
        changed = groups != self._groups
        if changed:
            self._changed_at, self._changed = clock, groups
        # Without sources: only the first version of a new group starts from another policy.
        self._groups = tuple(Group(group.policy, group.agents) for group in groups)
        return changed

    def groups(self, clock: int) -> tuple[Group, ...]:
        """The groups of a clock, with what they start from."""
        return self._changed if clock == self._changed_at else self._groups

    def versions(self, clock: int) -> Versions:
        """The versions of a clock: each version of the job is one of everything that takes steps."""
        behind = self._round - clock
        found = {name: each - behind if self._steps(name) else each for name, each in self._versions.items()}
        # A policy that is newer than this clock had no version then.
        return {name: each for name, each in found.items() if each > 0}

    def peer(self, clock: int) -> Versions:
        """The same, without policies that start from another one there."""
        copied = {group.policy for group in self.groups(clock) if group.source}
        return {name: each for name, each in self.versions(clock).items() if name not in copied}

    @property
    def heads(self) -> Versions:
        """The present versions of all that gets a next one; 0 for policies that are new."""
        new = {group.policy: 0 for group in self._groups}
        return new | {name: each for name, each in self._versions.items() if self._steps(name)}

    @property
    def sources(self) -> Mapping[str, tuple[str, int]]:
        """The policies, with their present versions, from which the next versions of others start."""
        groups = self.groups(self._round)
        return {each.policy: (each.source, self._versions[each.source]) for each in groups if each.source}

    def _steps(self, name: str) -> bool:
        """False for what gradients do not change, and for policies that no agent has."""
        unused = name in self._policies and all(group.policy != name for group in self._groups)
        return self._takes_steps(name) and not unused


Parts = Mapping[str, int]
"""Names and versions in the store, one of each scope."""


class StoredGradients:
    """The gradients of one job, by learner; `scopes` is the number of parts that each has."""

    def __init__(self, scopes: int) -> None:
        self._scopes = scopes
        self._parts: dict[int, Parts] = {}
        self._arrived_s: dict[int, float] = {}
        self.unneeded: dict[str, int] = {}
        """Names and newest versions of those that will not be applied; the next version removes them."""

    def find(
        self, policies: Mapping[str, PolicyListing], *, waiting: Collection[int], learning: Collection[int]
    ) -> bool:
        """Find what an earlier coordinator has left; returns False if a gradient that waits is not there.

        Args:
            policies: What the store has.
            waiting: The learners whose gradients wait.
            learning: The learners that are under way, whose gradients may be there.
        """
        found: defaultdict[int, dict[str, int]] = defaultdict(dict)
        for name, listed in policies.items():
            if gradients.is_gradient(name):
                found[gradients.learner_of(name)][name] = listed.head.version
        self._parts = {learner: found[learner] for learner in waiting if learner in found}
        for learner, parts in found.items():
            # The gradient of a learner under way stays: the learner is asked once more, and the store answers with what
            # it has.
            if learner not in waiting and learner not in learning:
                self.unneeded |= parts
        return len(self._parts) == len(waiting)

    def begins(self, learner: int) -> None:
        """A learner begins: what an earlier one of its number has left is followed, or found, and removed with it."""
        names = [gradients.name_of(learner, scope) for scope in range(self._scopes)]
        self.unneeded = {name: version for name, version in self.unneeded.items() if name not in names}

    def put(self, learner: int, parts: Parts) -> None:
        """A learner's gradient has arrived."""
        self._parts[learner], self._arrived_s[learner] = parts, time.monotonic()

    def keep(self, learners: Collection[int]) -> None:
        """Keep only these learners' gradients; others were refused, or are lost."""
        for learner in [each for each in self._parts if each not in learners]:
            self.unneeded |= self._parts.pop(learner)
            self._arrived_s.pop(learner, None)

    def of(self, learner: int) -> Parts:
        """Where a learner's gradient is; where it was, if an earlier coordinator had it applied."""
        return self._parts.get(learner) or {gradients.name_of(learner, scope): 1 for scope in range(self._scopes)}

    def waited_s(self, learner: int) -> float:
        """Seconds since it arrived; 0 if that was at an earlier coordinator."""
        arrived_s = self._arrived_s.get(learner)
        return 0.0 if arrived_s is None else time.monotonic() - arrived_s

    def applied(self, learners: Collection[int]) -> None:
        """Note that these are part of a version, and the store has removed them and all that were unneeded."""
        for learner in learners:
            self._parts.pop(learner, None)
            self._arrived_s.pop(learner, None)
        self.unneeded = {}
