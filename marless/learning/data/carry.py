"""Carries: what a lane of environment copies takes from one round to the next, as named arrays and as bytes.

| name           | dtype, shape       | meaning |
|----------------|--------------------|---------|
| `env/…`        | the environment's  | `marless.learning.envs.base.Saved.save`: state, random generators |
| `frame/check`  | uint32 [1]         | checksum of the present observations, which a load must show again |
| `memory/k/…`   | the policies'      | memory of the policies of agent class k, only if they have one |
| `meter/return` | float64 [agents, B] | undiscounted returns of the running episodes so far |
| `meter/steps`  | int64 [B]          | env steps of the running episodes so far |
| `stagger/limit`| int64 [B]          | where episodes are cut once, see `marless.learning.data.stagger` |

Bytes: 4 bytes that name the format, a CRC-32 of the rest, and a safetensors file. Equal carries give equal bytes.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from marless.core.errors import CorruptError, SpecError, told
from marless.core.limits import MAX_CARRY_BYTES

_FORMAT = b"MLC2"
_HEAD = len(_FORMAT) + 4


@dataclass(frozen=True)
class Carry:
    """The state of a lane between two rounds; see the module's table."""

    arrays: Mapping[str, NDArray[np.generic]]

    def part(self, prefix: str) -> dict[str, NDArray[np.generic]]:
        """The arrays whose names start with `prefix` and a slash, by the rest of their names."""
        start = f"{prefix}/"
        return {name.removeprefix(start): array for name, array in self.arrays.items() if name.startswith(start)}


def encode(carry: Carry) -> bytes:
    """Serialise a carry; raises SpecError if it is larger than `MAX_CARRY_BYTES`."""
    body = safetensors.save({name: np.ascontiguousarray(array) for name, array in carry.arrays.items()})
    if _HEAD + len(body) > MAX_CARRY_BYTES:
        raise SpecError(
            f"the state of a lane's episodes takes {len(body) / 2**20:,.0f} MiB, and {MAX_CARRY_BYTES // 2**20:,} are "
            "possible; lower actors.envs and raise actors.count, or set actors.episodes: fresh"
        )
    return _FORMAT + zlib.crc32(body).to_bytes(4, "little") + body


def decode(data: bytes) -> Carry:
    """The inverse of `encode`; raises CorruptError for bytes that it has not written."""
    if len(data) > MAX_CARRY_BYTES:
        raise CorruptError(f"carry: {len(data):,} bytes, and {MAX_CARRY_BYTES:,} are possible")
    if data[: len(_FORMAT)] != _FORMAT:
        raise CorruptError("carry: the bytes are no carry of this version")
    # The checksum is compared before the library reads anything of the bytes.
    body = data[_HEAD:]
    if zlib.crc32(body).to_bytes(4, "little") != data[len(_FORMAT) : _HEAD]:
        raise CorruptError("carry: the bytes do not match their checksum")
    try:
        return Carry(safetensors.load(body))
    except (SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptError(f"carry: not a safetensors file ({told(error)})") from None


def digest(data: bytes) -> str:
    """SHA-256 of an encoded carry, by which tasks and records name it; lowercase hexadecimal."""
    return hashlib.sha256(data).hexdigest()
