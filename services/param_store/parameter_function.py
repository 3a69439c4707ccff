"""What the parameter function computes: the next versions of policies, from their present ones and from gradients.

Bytes to bytes, in NumPy. The store loads this module with its first aggregation, because it needs NumPy for nothing
else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from marless.core.errors import CorruptError, SpecError
from marless.core.state import Arrays, NetStep, PolicyState
from marless.learning.aggregation import gradient_file
from marless.learning.aggregation.applying import applied, check
from marless.learning.nets import serial
from marless.services.param_store.blobs import BlobPart

ACTING, LEARNING = "acting", "learning"


@dataclass(frozen=True)
class Blobs:
    """The parts of one version with their bytes."""

    parts: tuple[BlobPart, ...]
    blobs: tuple[memoryview, ...]


def next_versions(
    heads: Mapping[str, Sequence[bytes]],
    gradients: Sequence[Mapping[str, bytes]],
    weights: Sequence[float],
    steps: Mapping[str, NetStep],
    separate: bool,
) -> tuple[dict[str, Blobs], float]:
    """The next version of each policy, and the CPU seconds of this thread that they took.

    Args:
        heads: The parts `acting` and `learning` of each policy.
        gradients: The bytes of each gradient's files, by their names in the store; see `gradient_file`.
        weights: One for each gradient.
        steps: See `applied`.
        separate: See `applied`.

    Raises SpecError for a gradient that is of other policies or does not fit one, and for a result that is not finite;
    CorruptError for a policy that is no state.
    """
    start_s = time.thread_time()
    arrays = [_arrays(files, heads.keys()) for files in gradients]
    names = [" and ".join(files) for files in gradients]
    made = {}
    for policy, parts in heads.items():
        try:
            state = serial.decode(*parts)
        except CorruptError as error:
            raise CorruptError(f"policy {policy!r}: {error}") from None
        made[policy] = _next(policy, state, [each[policy] for each in arrays], names, weights, steps, separate)
    return made, time.thread_time() - start_s


def _arrays(files: Mapping[str, bytes], policies: Set[str]) -> dict[str, Arrays]:
    """The arrays of one gradient by policy."""
    found: dict[str, Arrays] = {}
    for name, data in files.items():
        try:
            part = gradient_file.decode(data)
        except CorruptError as error:
            raise SpecError(f"{name!r} is no gradient: {error}") from None
        if twice := found.keys() & part.keys():
            raise SpecError(f"{' and '.join(files)} both have a gradient of {min(twice)!r}")
        found |= part
    if found.keys() != policies:
        of, to = (", ".join(sorted(names)) for names in (found, policies))
        raise SpecError(f"{' and '.join(files)} is of {of}, and is to be applied to {to}")
    return found


def _next(
    policy: str,
    state: PolicyState,
    gradients: Sequence[Arrays],
    names: Sequence[str],
    weights: Sequence[float],
    steps: Mapping[str, NetStep],
    separate: bool,
) -> Blobs:
    """The next version of one policy; `names` are those of its gradients."""
    try:
        with np.errstate(all="ignore"):  # what is not finite is refused below
            made = applied(state, gradients, weights, steps, separate=separate)
    except CorruptError:
        # They were applied together; which one is to blame is looked for only now, because the sentence must name it.
        for name, gradient in zip(names, gradients, strict=True):
            try:
                check(state, [gradient], steps)
            except CorruptError as error:
                raise SpecError(f"{name} does not fit policy {policy!r}: {error}") from None
        raise
    serial.check_update(policy, made)
    blobs = serial.encode(made)
    parts = (
        BlobPart(name, len(data), sha256(data).digest()) for name, data in zip((ACTING, LEARNING), blobs, strict=True)
    )
    return Blobs(tuple(parts), tuple(map(memoryview, blobs)))
