"""What the metadata of a policy state say of the form of its observations: their size, an image, entities.

States of kinds whose weights do not show it say it, and those of images, so that whoever loads a policy can make its
net, and scales what it reads as in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from marless.core.errors import CorruptError, SpecError, shown
from marless.learning.envs.base import AgentClass, Entities, check_observations

METADATA = _SIZE, _IMAGE, _ENTITIES = "observes", "image", "entities"
"""Metadata keys: "56448"; "channels,height,width"; "start,count,size" of each sort of entities, with ";" between."""
_MOST_SORTS = 64


def metadata_of(agent_class: AgentClass) -> dict[str, str]:
    """What the states of a class's policies say of its observations."""
    found = {_SIZE: str(agent_class.obs_size)}
    if agent_class.image is not None:
        found[_IMAGE] = ",".join(map(str, agent_class.image))
    if agent_class.entities:
        found[_ENTITIES] = ";".join(f"{each.start},{each.count},{each.size}" for each in agent_class.entities)
    return found


def check(metadata: Mapping[str, str], agent_class: AgentClass) -> None:
    """Raise CorruptError unless a state that says what its policy observes says what this class does.

    One that says nothing is of vectors.
    """
    said, here = _said(metadata), metadata_of(agent_class)
    if said != here and (said or agent_class.image is not None):
        raise CorruptError(
            f"class {agent_class.name}: its policies read {_told(said)}, its agents observe {_told(here)}"
        )


def described(agent_class: AgentClass, metadata: Mapping[str, str]) -> AgentClass:
    """The class with the observations that a state's metadata describe; unchanged if they describe none.

    Raises CorruptError if they contradict themselves.
    """
    said = _said(metadata)
    if not said:
        return agent_class
    try:
        image, sorts = said.get(_IMAGE), said.get(_ENTITIES)
        found = replace(
            agent_class,
            obs_size=int(said.get(_SIZE, "")),
            image=None if image is None else _three(image),
            entities=() if sorts is None else tuple(Entities(*_three(each)) for each in sorts.split(";")[:_MOST_SORTS]),
        )
        check_observations(found)
        # Compared with what `metadata_of` writes: `int` also takes signs, spaces, underscores and other digits.
        if metadata_of(found) == said:
            return found
    except (ValueError, SpecError):
        pass
    raise CorruptError(f"policy state: {_told(said)} describes no observations")


def _said(metadata: Mapping[str, str]) -> dict[str, str]:
    return {key: metadata[key] for key in METADATA if key in metadata}


def _three(text: str) -> tuple[int, int, int]:
    one, two, three = map(int, text.split(",", 3))
    return one, two, three


def _told(said: Mapping[str, str]) -> str:
    return ", ".join(f"{key}: {shown(value)}" for key, value in said.items()) or "vectors"
