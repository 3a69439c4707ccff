"""Which gradients of a job are in the store: those that wait to be applied, and those that are to be removed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping

from marless.rpc import gradients
from marless.rpc.param_store import PolicyListing

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
