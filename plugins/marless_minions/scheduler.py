"""A trained scheduler: inference in NumPy, and its file format (JSON and safetensors)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from marless.core import regular_files
from marless.core.errors import CorruptError, NotFoundError, SpecError, UnavailableError
from marless.core.limits import MAX_SPEC_BYTES
from marless_minions.features import FEATURES, Observation
from marless_minions.kind import PackedScheduler

Checkpoint = Literal["best", "cheapest"]
"""best: the highest objective; cheapest: the lowest cost among those of which most runs reach the target return."""

FORMAT = "marless-scheduler/1"
MANIFEST = "scheduler.json"
LAYERS = 3
_PIECE_CHARACTERS = 8000
_CLIP = 5.0
"""Standardised features are clipped to ± this, as real runs may have values far outside the simulated range."""


@dataclass(frozen=True, kw_only=True)
class SchedulerTask:
    """The kind of job that a scheduler is trained for (MinionsRL: K, I_max, J, B, β)."""

    rounds: int
    """K, rounds of a run."""
    max_actors: int
    """I_max: the scheduler chooses from 1 to this."""
    target: float
    """J, the mean return per agent that a run must reach in its last round."""
    budget_usd: float | None
    """B, the budget of a run in USD; None: no limit."""
    usd_per_gb_s: float
    """c, the price of a GB-second of a function in USD."""
    beta: float = 0.1
    """β, the penalty of a second, in units of return (0.1 in MinionsRL's code; not given in the paper)."""


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """A policy over the numbers of actors 1 … max_actors, given the features of a round."""

    task: SchedulerTask
    center: NDArray[np.float64]
    """[8], mean of the features in training, which is subtracted."""
    scale: NDArray[np.float64]
    """[8], their standard deviation, by which they are divided."""
    weights: Mapping[str, NDArray[np.float64]]
    """"policy.{0,1,2}.weight" [in, out], "policy.{0,1,2}.bias" [out], and the same of "critic", unused by decisions."""

    def probabilities(self, raw_B8: NDArray[np.float64]) -> NDArray[np.float64]:
        """[B, max_actors], probabilities of 1, 2, … actors, given raw features [B, 8] (nan: not measured)."""
        logits_BA = forward(self.weights, "policy", self.normalised(raw_B8))
        exp_BA = np.exp(logits_BA - logits_BA.max(axis=1, keepdims=True))
        result: NDArray[np.float64] = exp_BA / exp_BA.sum(axis=1, keepdims=True)
        return result

    def normalised(self, raw_B8: NDArray[np.float64]) -> NDArray[np.float64]:
        """[B, 8], the inputs of the nets: standardised, clipped, 0 for features that were not measured."""
        scaled = np.clip((raw_B8 - self.center) / self.scale, -_CLIP, _CLIP)
        return np.where(np.isnan(scaled), 0.0, scaled)

    def choose(self, observation: Observation) -> tuple[int, float]:
        """The most probable number of actors, and its probability."""
        values = [observation[name] for name in FEATURES]
        raw = np.array([[np.nan if value is None else value for value in values]])
        chances = self.probabilities(raw)[0]
        return int(chances.argmax()) + 1, float(chances.max())


def forward(weights: Mapping[str, NDArray[np.float64]], net: str, x_BI: NDArray[np.float64]) -> NDArray[np.float64]:
    """Evaluate the multi-layer perceptron `net` with tanh between its layers."""
    for layer in range(LAYERS):
        x_BI = x_BI @ weights[f"{net}.{layer}.weight"] + weights[f"{net}.{layer}.bias"]
        if layer < LAYERS - 1:
            x_BI = np.tanh(x_BI)
    return x_BI


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A loaded scheduler."""

    scheduler: Scheduler
    sha256: str
    """SHA-256 of the file of its weights."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The content of a scheduler's folder: several checkpoints with the same task and scales."""

    checkpoints: Mapping[str, Scheduler]
    report: Mapping[str, Any] = field(default_factory=dict)  # Any: what JSON can hold
    """Data about the training, for people."""


def save(directory: Path, saving: Saving) -> None:
    """Write scheduler.json and one safetensors file per checkpoint, the manifest last; raises OSError."""
    from safetensors.numpy import save as encode

    directory.mkdir(parents=True, exist_ok=True)
    (directory / MANIFEST).unlink(missing_ok=True)  # without a manifest, an incomplete folder is not loaded
    digests = {}
    for name, scheduler in saving.checkpoints.items():
        blob = encode({key: np.ascontiguousarray(value) for key, value in sorted(scheduler.weights.items())})
        (directory / f"{name}.safetensors").write_bytes(blob)
        digests[name] = hashlib.sha256(blob).hexdigest()
    some = next(iter(saving.checkpoints.values()))
    manifest = {
        "format": FORMAT,
        "task": {name: getattr(some.task, name) for name in SchedulerTask.__dataclass_fields__},
        "features": {
            name: {"center": float(center), "scale": float(scale)}
            for name, center, scale in zip(FEATURES, some.center, some.scale, strict=True)
        },
        "sha256": digests,
        "report": saving.report,
    }
    partial = directory / f".{MANIFEST}.partial"
    partial.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    partial.replace(directory / MANIFEST)


def load(directory: Path, checkpoint: Checkpoint) -> Loaded:
    """Load a folder that `save` wrote; raises SpecError with advice for anything else."""
    return unpack(pack(directory, checkpoint), str(directory / MANIFEST))


def pack(directory: Path, checkpoint: Checkpoint) -> PackedScheduler:
    """Read a folder that `save` wrote, in the form of a job's spec; raises SpecError with advice for anything else."""
    path = directory / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(regular_files.read(path, MAX_SPEC_BYTES))  # Any: JSON
    except NotFoundError:
        raise SpecError(
            f"there is no scheduler in {directory.absolute()} ({MANIFEST} is missing): train one with "
            f"`marless scheduler train --out {directory}`"
        ) from None
    except (CorruptError, UnavailableError) as error:
        raise SpecError(f"{error}; train the scheduler again") from None
    except (ValueError, RecursionError):
        raise _foreign(str(path)) from None
    blob = _weights_of(directory, checkpoint)
    try:
        packed = PackedScheduler(
            **{name: manifest[name] for name in ("format", "task", "features")},
            sha256=manifest["sha256"][checkpoint],
            weights=_pieces(base64.b64encode(blob).decode()),
        )
    except (KeyError, TypeError, ValidationError):
        raise _foreign(str(path)) from None
    # For its checks alone: what cannot be loaded is refused where the folder is, not by a coordinator.
    unpack(packed, str(path))
    return packed


def unpack(packed: PackedScheduler, source: str) -> Loaded:
    """Load a packed scheduler; raises SpecError, naming `source`, if it is damaged or inconsistent."""
    try:
        blob = base64.b64decode("".join(packed.weights), validate=True)
        features = [packed.features[name] for name in FEATURES]
    except (ValueError, KeyError):
        raise _foreign(source) from None
    digest = hashlib.sha256(blob).hexdigest()
    if digest != packed.sha256:
        raise SpecError(f"{source}: its weights were changed (sha256 differs): train the scheduler again")
    scheduler = Scheduler(
        task=SchedulerTask(**packed.task.model_dump()),
        center=np.array([each.center for each in features]),
        scale=np.array([each.scale for each in features]),
        weights=_weights(blob, source),
    )
    if not _fits(scheduler):
        raise _foreign(source)
    return Loaded(scheduler=scheduler, sha256=digest)


def _pieces(text: str) -> tuple[str, ...]:
    """Split a text, because texts in a job's spec are limited in length."""
    return tuple(text[at : at + _PIECE_CHARACTERS] for at in range(0, len(text), _PIECE_CHARACTERS))


def _fits(scheduler: Scheduler) -> bool:
    """True if the policy's layers fit the features and the number of actors, and all weights are finite."""
    size = len(FEATURES)
    for layer in range(LAYERS):
        weight = scheduler.weights.get(f"policy.{layer}.weight")
        bias = scheduler.weights.get(f"policy.{layer}.bias")
        if weight is None or bias is None or bias.ndim != 1 or weight.shape != (size, bias.size):
            return False
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            return False
        size = bias.size
    return size == scheduler.task.max_actors


def _weights_of(directory: Path, checkpoint: Checkpoint) -> bytes:
    path = directory / f"{checkpoint}.safetensors"
    try:
        return regular_files.read(path, MAX_SPEC_BYTES)
    except (NotFoundError, CorruptError, UnavailableError) as error:
        raise SpecError(f"the weights cannot be read: {error}; train the scheduler again") from None


def _weights(blob: bytes, source: str) -> dict[str, NDArray[np.float64]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as decode

    try:
        return {name: array.astype(np.float64) for name, array in decode(blob).items()}
    except (SafetensorError, KeyError, ValueError, TypeError):
        raise _foreign(source) from None


def _foreign(source: str) -> SpecError:
    return SpecError(
        f"{source}: not a file of `marless scheduler train`, or one of another version; train the scheduler again"
    )
