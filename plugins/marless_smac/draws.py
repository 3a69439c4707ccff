"""Random numbers of battles: each battle has a key of its own, so it is the same wherever it stands in a batch.

Numbers are mixed from key and index by the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import FloatArray

KeyArray = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NEXT = np.uint64(0xD1B54A32D192ED03)


def keys_of(seed: int, batch: int) -> KeyArray:
    """uint64 [B]: the keys of the first battles; that of a copy does not depend on how many there are."""
    start = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    return _mixed(start + np.arange(1, batch + 1, dtype=np.uint64) * _GOLDEN)


def next_keys(key_B: KeyArray) -> KeyArray:
    """The keys of the next draws."""
    return _mixed(key_B ^ _NEXT)


def uniform(key_B: KeyArray, count: int) -> FloatArray:
    """float32 [count, B] in [0, 1)."""
    index = np.arange(1, count + 1, dtype=np.uint64)[:, None] * _GOLDEN
    # 24 bits, as many as a float32 holds: with more, some numbers would be rounded to 1.
    return (_mixed(key_B + index) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def _mixed(number: KeyArray) -> KeyArray:
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
