"""A trained policy with its origin, and their format as a single safetensors file.

The file holds the acting part of a checkpoint; its metadata also has the agents, the origin, and a SHA-256 over
metadata and tensors, because safetensors itself does not detect damaged weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from marless.core import documents, regular_files
from marless.core.errors import CorruptError, SpecError
from marless.core.limits import MAX_PUBLISH_BYTES
from marless.learning.envs.base import Box, Discrete
from marless.learning.nets import actions, serial
from marless.learning.nets.acting import Acting, ActingState, Arrays
from marless.learning.nets.inputs import Inputs


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The job and checkpoint that policies come from; fields are empty if unknown."""

    job: str = ""
    round: int = 0
    """Rounds done when they were saved."""
    algorithm: str = ""
    env: str = ""
    env_options: Mapping[str, object] = field(default_factory=dict)
    run_dir: Path | None = None
    """The run folder, if they were loaded from one."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One policy at one version, and the agents that use it."""

    name: str
    agents: tuple[str, ...]
    version: int
    state: Acting

    @property
    def obs_size(self) -> int:
        """O, the observation size of its agents; raises CorruptError if it does not follow from the weights."""
        weight = self.state.acting.get("policy.0.weight")
        if weight is None or weight.ndim != 2:
            raise CorruptError(f"policy {self.name}: its state holds no weights to act with")
        size = int(weight.shape[1]) - Inputs.parse(self.state.metadata).extra(self.action)
        if size < 0:
            raise CorruptError(f"policy {self.name}: its weights are too small for its inputs")
        return size

    @property
    def action(self) -> Discrete | Box:
        """The action space of its agents; raises CorruptError if its metadata lack it."""
        try:
            return actions.parse(self.state.metadata.get("action", ""))
        except ValueError as error:
            raise CorruptError(f"policy {self.name}: {error}") from None


def write(path: Path, policy: Policy, origin: Origin) -> None:
    """Write a policy to a file atomically; raises OSError."""
    metadata = {
        **policy.state.metadata,
        "policy": policy.name,
        "agents": json.dumps(policy.agents),
        "version": str(policy.version),
        "job": origin.job,
        "round": str(origin.round),
        "algorithm": origin.algorithm,
        "env": origin.env,
        "env_options": json.dumps(origin.env_options),
    }
    metadata["sha256"] = _digest(metadata, policy.state.acting)
    # In the same directory, because only within one file system a file takes a name at once.
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(serial.encode_acting(ActingState(policy.state.acting, metadata)))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path) -> tuple[Policy, Origin]:
    """Read a file of `write`; raises SpecError for a file of another kind, and what `regular_files` lists."""
    data = regular_files.read(path, MAX_PUBLISH_BYTES)
    try:
        part = serial.decode_acting(data)
    except CorruptError as error:
        raise CorruptError(f"{path} is not a policy, or it is damaged: {error}") from None
    if "sha256" not in part.metadata:
        raise SpecError(f"{path} holds no exported policy; give a checkpoint's directory or a file of marless export")
    metadata = dict(part.metadata)
    if metadata.pop("sha256") != _digest(metadata, part.acting):
        raise CorruptError(f"{path} was changed after the export: its sha256 differs; export the policy again")
    try:
        agents = documents.from_json(metadata.pop("agents"), "agents")
        players = tuple(map(text, agents if isinstance(agents, list) else ()))
        name, version = text(metadata.pop("policy")), int(metadata.pop("version"))
        origin = Origin(
            job=text(metadata.pop("job")),
            round=int(metadata.pop("round")),
            algorithm=text(metadata.pop("algorithm")),
            env=text(metadata.pop("env")),
            env_options=options(documents.from_json(metadata.pop("env_options"), "env_options")),
        )
    except (SpecError, KeyError, TypeError, ValueError):
        raise CorruptError(
            f"{path} is not a policy, or it is damaged: its header lacks something of marless export"
        ) from None
    return Policy(name=name, agents=players, version=version, state=ActingState(part.acting, metadata)), origin


def text(value: object) -> str:
    """Return untrusted `value` if it is printable text; raises TypeError for anything else."""
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(value)
    return value


def options(value: object) -> Mapping[str, object]:
    """Return untrusted `value` if it is a mapping with text keys; raises TypeError for anything else."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError(value)
    return value


def _digest(metadata: Mapping[str, str], arrays: Arrays) -> str:
    # Shapes and types count, because equal bytes may be another matrix.
    shapes = {name: (array.dtype.name, array.shape) for name, array in arrays.items()}
    digest = hashlib.sha256(json.dumps([dict(metadata), shapes], sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()
