"""Files of trained policies, each a safetensors file: a single policy, or a whole team with its card.

A file holds the acting parts of a checkpoint; its metadata also has the agents, the origin, and a SHA-256 over metadata
and tensors, because safetensors itself does not detect damaged weights. In a file of a team, the names of the arrays
and metadata of each policy begin with its place in the list `policies`: "0/policy.0.weight".
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marless.core import documents, regular_files
from marless.core.errors import CorruptError, SpecError
from marless.core.limits import MAX_AGENTS, MAX_PUBLISH_BYTES
from marless.learning.nets import serial
from marless.learning.nets.acting import ActingState, Arrays
from marless.learning.policies.policy import Origin, Policy


@dataclass(frozen=True, kw_only=True)
class SavedTeam:
    """The content of a file of policies."""

    policies: Sequence[Policy]
    origin: Origin
    card: Mapping[str, Any] = field(default_factory=dict)  # Any: JSON
    """How a team was trained; empty for a single policy."""


def write_policy(path: Path, policy: Policy, origin: Origin) -> None:
    """Write a policy to a file atomically; raises OSError, and SpecError for a path that is no file's."""
    about = {"policy": policy.name, "agents": json.dumps(policy.agents), "version": str(policy.version)}
    metadata, arrays = {**policy.state.metadata, **about, **_texts(origin)}, policy.state.acting
    write_file(path, serial.encode_acting(ActingState(arrays, signed(metadata, arrays))))


def write_team(path: Path, saved: SavedTeam) -> None:
    """Write all policies of a team to one file atomically; raises OSError, and SpecError if it is too large."""
    metadata, arrays = contents(saved)
    write_file(path, serial.encode_acting(ActingState(arrays, signed(metadata, arrays))))


def contents(saved: SavedTeam) -> tuple[dict[str, str], dict[str, NDArray[np.generic]]]:
    """The metadata and arrays by which `made_of` makes a team again; raises SpecError for a card that is too large."""
    listed = [{"name": each.name, "agents": each.agents, "version": each.version} for each in saved.policies]
    metadata = {"policies": json.dumps(listed), "card": json.dumps(saved.card), **_texts(saved.origin)}
    documents.from_json(metadata["card"], "the card")  # what exceeds its limits could not be read again
    arrays: dict[str, NDArray[np.generic]] = {}
    for place, policy in enumerate(saved.policies):
        metadata |= {f"{place}/{name}": text for name, text in policy.state.metadata.items()}
        arrays |= {f"{place}/{name}": array for name, array in policy.state.acting.items()}
    return metadata, arrays


def read_policies(path: Path) -> SavedTeam:
    """Read a file of `write_policy` or `write_team`.

    Raises SpecError for a file of another kind, CorruptError for a damaged one, and what `regular_files` lists.
    """
    data = regular_files.read(path, MAX_PUBLISH_BYTES)
    try:
        part = serial.decode_acting(data)
    except CorruptError as error:
        raise CorruptError(f"{path} is not a policy, or it is damaged: {error}") from None
    return made_of(part.metadata, part.acting, path)


def made_of(texts: Mapping[str, str], arrays: Arrays, path: Path) -> SavedTeam:
    """The team of the metadata and arrays of a file; raises SpecError for those of another kind, CorruptError for
    damaged ones.
    """
    if "sha256" not in texts:
        raise SpecError(f"{path} holds no exported policy; give a checkpoint's directory or a file of marless export")
    metadata = dict(texts)
    if metadata.pop("sha256") != digest(metadata, arrays):
        raise CorruptError(f"{path} was changed after the export: its sha256 differs; export the policy again")
    try:
        return (_team if "policies" in metadata else _single)(metadata, arrays)
    except (SpecError, KeyError, TypeError, ValueError):
        raise CorruptError(
            f"{path} is not a policy, or it is damaged: its header lacks something of marless export"
        ) from None


def _single(metadata: dict[str, str], arrays: Arrays) -> SavedTeam:
    """Raises SpecError, KeyError, TypeError or ValueError for metadata that are none of `write_policy`."""
    agents = documents.from_json(metadata.pop("agents"), "agents")
    players = tuple(map(text_of, agents if isinstance(agents, list) else ()))
    name, version = text_of(metadata.pop("policy")), int(metadata.pop("version"))
    origin = _origin(metadata)
    policy = Policy(name=name, agents=players, version=version, state=ActingState(arrays, metadata))
    return SavedTeam(policies=(policy,), origin=origin)


def _team(metadata: dict[str, str], arrays: Arrays) -> SavedTeam:
    """Raises SpecError, KeyError, TypeError or ValueError for metadata that are none of `write_team`."""
    listed = documents.from_json(metadata.pop("policies"), "policies")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_AGENTS:
        raise TypeError(listed)
    card = options_of(documents.from_json(metadata.pop("card"), "card"))
    origin = _origin(metadata)
    texts, weights = _by_place(metadata, len(listed)), _by_place(arrays, len(listed))
    policies = []
    for place, about in enumerate(listed):
        agents, version = about["agents"], about["version"]
        if not isinstance(agents, list) or type(version) is not int:
            raise TypeError(about)
        state = ActingState(weights[place], texts[place])
        players = tuple(map(text_of, agents))
        policies.append(Policy(name=text_of(about["name"]), agents=players, version=version, state=state))
    everybody = [agent for policy in policies for agent in policy.agents]
    if len(set(everybody)) < len(everybody) or len({policy.name for policy in policies}) < len(policies):
        raise ValueError("an agent has two policies, or two policies have one name")
    return SavedTeam(policies=policies, origin=origin, card=card)


def _by_place(held: Mapping[str, Any], places: int) -> list[dict[str, Any]]:  # Any: texts, or arrays
    """What belongs to each policy, by its name without the place; raises ValueError for a name without one."""
    found: list[dict[str, Any]] = [{} for _ in range(places)]
    of_place = {str(place): each for place, each in enumerate(found)}
    for key, value in held.items():
        place, _, name = key.partition("/")
        if place not in of_place:
            raise ValueError(key)
        of_place[place][name] = value
    return found


def signed(metadata: Mapping[str, str], arrays: Arrays) -> dict[str, str]:
    """The metadata with the digest by which damage is detected."""
    return {**metadata, "sha256": digest(metadata, arrays)}


def write_file(path: Path, data: bytes) -> None:
    """Write an exported file atomically; raises OSError, and SpecError if it is too large or the path is no file's."""
    if not path.name or (path.exists() and not path.is_file()):
        raise SpecError(f"{path} is no file, but a directory or a device; name a file, such as team.safetensors")
    if len(data) > MAX_PUBLISH_BYTES:
        raise SpecError(
            f"{path}: the file would have {len(data):,} bytes, and one is read up to {MAX_PUBLISH_BYTES:,}; export "
            "policies one by one, with --policy"
        )
    # In the same directory, because only within one file system a file takes a name at once. Unique, because another
    # thread or process may be writing this file, too.
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:  # it would name the other file, or none
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(OSError):  # it is there only if something has failed
            partial.unlink()


def _texts(origin: Origin) -> dict[str, str]:
    return {
        "job": origin.job,
        "round": str(origin.round),
        "algorithm": origin.algorithm,
        "env": origin.env,
        "env_options": json.dumps(origin.env_options),
        "marless_version": importlib.metadata.version("marless"),
    }


def _origin(metadata: dict[str, str]) -> Origin:
    """Take the origin out of the metadata; raises SpecError, KeyError, TypeError or ValueError."""
    metadata.pop("marless_version", None)  # it is for people
    return Origin(
        job=text_of(metadata.pop("job")),
        round=int(metadata.pop("round")),
        algorithm=text_of(metadata.pop("algorithm")),
        env=text_of(metadata.pop("env")),
        env_options=options_of(documents.from_json(metadata.pop("env_options"), "env_options")),
    )


def text_of(value: object) -> str:
    """Return untrusted `value` if it is printable text; raises TypeError for anything else."""
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(value)
    return value


def options_of(value: object) -> Mapping[str, object]:
    """Return untrusted `value` if it is a mapping with text keys; raises TypeError for anything else."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError(value)
    return value


def digest(metadata: Mapping[str, str], arrays: Arrays) -> str:
    """SHA-256 of metadata and arrays."""
    # Shapes and types count, because equal bytes may be another matrix.
    shapes = {name: (array.dtype.name, array.shape) for name, array in arrays.items()}
    found = hashlib.sha256(json.dumps([dict(metadata), shapes], sort_keys=True).encode())
    for name in sorted(arrays):
        found.update(np.ascontiguousarray(arrays[name]).data)
    return found.hexdigest()
