"""The agent classes of the policies of a learner that may serve several classes."""

from __future__ import annotations

from collections.abc import Sequence

from marless.core.errors import NotFoundError
from marless.core.group import Group
from marless.learning.algos.learner import Scope
from marless.learning.envs.base import EnvSpaces


class PolicyClasses:
    """The index of the agent class of each policy, as groups have told it so far."""

    def __init__(self, spaces: EnvSpaces, scope: Scope) -> None:
        self._spaces, self._scope = spaces, scope
        self._by_name: dict[str, int] = {}

    def learn(self, groups: Sequence[Group]) -> None:
        """Note the policies of these groups, and those that they start from."""
        for group in groups:
            k = self._spaces.classes.index(self._spaces.class_of(group.agents[0]))
            self._by_name |= {group.policy: k, group.start: k}

    def __call__(self, name: str) -> int:
        """Index of the agent class of a policy; raises NotFoundError if no group had this name.

        Before there are groups, policies have the names of their agents.
        """
        if name not in self._by_name and name in self._spaces.agents:
            return self._spaces.classes.index(self._spaces.class_of(name))
        if name not in self._by_name and len(self._scope.classes) > 1:
            raise NotFoundError(f"no group of this learner has a policy {name!r}; it knows {sorted(self._by_name)}")
        return self._by_name.get(name, self._scope.classes[0])
