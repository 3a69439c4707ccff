"""Normalises what nets observe by its running mean and deviation. NumPy, used by actors and learners.

The statistics of I inputs are sums over all samples so far (Σ1, Σx, Σx²), float64 [I, 3]. Sums of parts add up to those
of the whole, so it does not matter which actor has sampled what, as long as the sums are added in one order. They are a
part of each policy's state, in its array `policy.seen`: all that act or train with one version use the same ones.
Suffixes: P nets, I inputs, N agents, M samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, shown
from marless.learning.envs.base import BoolArray, FloatArray

Sums = NDArray[np.float64]
SEEN = "seen"
"""Name of the array, after the prefix of its net."""
METADATA = "normalise"
"""The metadata key of policy states whose observations are normalised; its value is the clip, or "none"."""
_LEAST_VARIANCE = 1e-8
"""Added to variances: an input that never changes stays 0."""


def added(parts: Iterable[tuple[FloatArray, BoolArray | None]]) -> Sums:
    """The sums of samples [..., I], part by part; of those that a mask [...] selects, where there is one."""
    total: Sums | None = None
    for samples, chosen in parts:
        x_MI = samples.reshape(-1, samples.shape[-1]) if chosen is None else samples[chosen]
        first_I = x_MI.sum(axis=0, dtype=np.float64)
        second_I = np.einsum("mi,mi->i", x_MI, x_MI, dtype=np.float64)
        sums_I3 = np.stack([np.full_like(first_I, len(x_MI)), first_I, second_I], axis=1)
        total = sums_I3 if total is None else total + sums_I3
    if total is None:
        raise ValueError("there are no samples to add up")
    return total


def centre_and_scale(seen_PI3: Sums) -> tuple[FloatArray, FloatArray]:
    """What is subtracted from inputs, and the factor of the difference, float32 [..., I].

    They are mean and 1/√(variance + 1e-8); 0 and 1 before anything has been seen.
    """
    count, first, second = np.moveaxis(seen_PI3, -1, 0)
    known = count > 0
    safe = np.where(known, count, 1.0)
    mean = first / safe
    variance = np.maximum(second / safe - np.square(mean), 0.0)
    scale = np.where(known, 1 / np.sqrt(variance + _LEAST_VARIANCE), 1.0)
    return mean.astype(np.float32), scale.astype(np.float32)


def metadata(*, normalises: bool, clip: float | None) -> dict[str, str]:
    """What a policy's metadata say of it; {} if observations are taken as they are."""
    return {METADATA: "none" if clip is None else repr(clip)} if normalises else {}


def parse(metadata: Mapping[str, str]) -> tuple[bool, float | None]:
    """Whether a policy's observations are normalised, and the clip; the inverse of `metadata`. Raises CorruptError."""
    text = metadata.get(METADATA)
    if text is None or text == "none":
        return text is not None, None
    try:
        clip = float(text)
    except ValueError:
        clip = 0.0
    if not 0 < clip < math.inf:
        raise CorruptError(f"policy state: {METADATA} is {shown(text)}, expected a number above 0, or none")
    return True, clip


@dataclass(frozen=True)
class Normaliser:
    """Normalises the observations of the agents of a class, each by its policy's statistics."""

    centre: FloatArray
    """[N, I, 1], or [1, I, 1] if all agents have one policy."""
    scale: FloatArray
    clip: float | None
    """Limit of what is normalised; None: there is none."""

    @classmethod
    def of(
        cls, owners: Sequence[Mapping[str, NDArray[np.generic]]], metadata: Mapping[str, str], inputs: int
    ) -> Normaliser | None:
        """The normaliser of policy states; None if they have none. Raises CorruptError if one does not fit."""
        normalises, clip = parse(metadata)
        if not normalises:
            return None
        seen = [arrays.get(f"policy.{SEEN}") for arrays in owners]
        if not all(each is not None and each.shape == (inputs, 3) and each.dtype == np.float64 for each in seen):
            raise CorruptError(f"policy state: policy.{SEEN} is missing or not float64 [{inputs}, 3]")
        with np.errstate(over="ignore", invalid="ignore"):  # of numbers that a stranger may have written
            sums = np.stack([each for each in seen if each is not None]).astype(np.float64)
            centre_NI, scale_NI = centre_and_scale(sums)
        if (sums[..., ::2] < 0).any() or not (np.isfinite(centre_NI).all() and np.isfinite(scale_NI).all()):
            raise CorruptError(f"policy state: policy.{SEEN} holds no sums of observations")
        return cls(centre_NI[..., None], scale_NI[..., None], clip)

    def write(self, x_NIB: FloatArray, out_NIB: FloatArray) -> None:
        """Write normalised observations to `out_NIB`."""
        np.subtract(x_NIB, self.centre, out=out_NIB)
        out_NIB *= self.scale
        if self.clip is not None:
            np.clip(out_NIB, -self.clip, self.clip, out=out_NIB)
