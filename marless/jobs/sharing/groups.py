"""The first groups of a job, and the validation of groups."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from marless.core.errors import SpecError, unknown_name
from marless.core.group import Group
from marless.learning.envs.base import EnvSpaces

_POLICY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def initial_groups(asked: str | Mapping[str, Sequence[str]], spaces: EnvSpaces) -> tuple[Group, ...]:
    """The groups of `sharing.groups`: "independent", "shared" (one per agent class), or policy name → agents.

    Raises SpecError for an invalid policy name, an unknown agent, an agent in several groups or in none, and a group of
    agents of several classes.
    """
    if asked == "independent":
        groups = tuple(Group(agent, (agent,)) for agent in spaces.agents)
    elif asked == "shared":
        groups = tuple(Group(agents.name, agents.agents) for agents in spaces.classes)
    elif isinstance(asked, str):
        raise SpecError(f"sharing.groups: {asked!r}; allowed: independent, shared, or policy name → agents")
    else:
        groups = tuple(Group(policy, tuple(agents)) for policy, agents in asked.items())
    _check(groups, spaces)
    return groups


def _check(groups: Sequence[Group], spaces: EnvSpaces) -> None:
    for group in groups:
        if not _POLICY_NAME.fullmatch(group.policy):
            raise SpecError(
                f"sharing.groups: {group.policy!r} cannot be the name of a policy, which is also a file name; give a "
                "mapping policy name → agents with names of letters, digits, '_', '.' and '-'"
            )
        if not group.agents:
            raise SpecError(f"sharing.groups: {group.policy} holds no agent; leave it out or give it one")
    times = Counter(agent for group in groups for agent in group.agents)
    for agent, count in times.items():
        if agent not in spaces.agents:
            raise SpecError(f"sharing.groups: {unknown_name('agent', agent, spaces.agents)}")
        if count > 1:
            raise SpecError(f"sharing.groups: {agent} is in {count} groups; an agent has one policy at a time")
    missing = [agent for agent in spaces.agents if agent not in times]
    if missing:
        raise SpecError(f"sharing.groups: no group holds {', '.join(missing)}; every agent needs a policy")
    for group in groups:
        classes = sorted({spaces.class_of(agent).name for agent in group.agents})
        if len(classes) != 1:
            raise SpecError(
                f"sharing.groups: {group.policy} mixes agents with different spaces "
                f"(classes {', '.join(classes)}); only agents of one class can share a policy"
            )
