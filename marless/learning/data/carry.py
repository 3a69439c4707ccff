"""Carries: what a lane of environment copies takes from one round to the next, as named arrays and as bytes.

| name           | dtype, shape       | meaning |
|----------------|--------------------|---------|
| `env/…`        | the environment's  | `marless.learning.envs.base.Saved.save`: state, random generators |
| `frame/check`  | uint32 [1]         | checksum of the present observations, which a load must show again |
| `memory/k/…`   | the policies'      | memory of the policies of agent class k, only if they have one |
| `meter/return` | float64 [agents, B] | undiscounted returns of the running episodes so far |
| `meter/steps`  | int64 [B]          | env steps of the running episodes so far |
| `stagger/limit`| int64 [B]          | where episodes are cut once, see `Stagger` |

Bytes: 4 bytes that name the format, a CRC-32 of the rest, and a safetensors file. Equal carries give equal bytes.

Shape suffix: B copies of the lane.
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
from marless.learning.envs.base import Arrays, BoolArray, saved

_FORMAT = b"MLC2"
_HEAD = len(_FORMAT) + 4
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ divided by the golden ratio."""
_OPEN = -1
"""The limit of all copies while it is unknown how long episodes last."""
_HALF = np.uint64(32)


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


class Stagger:
    """The lengths at which a lane's copies each cut one early episode short, so that copies fall out of step.

    Copies that begin together and whose episodes last equally long would otherwise stay in step for ever: each round
    that is shorter than an episode would show one part of it only, and most rounds no reward if that comes at the end.

    If the environment says how long an episode lasts, this is the first episode of each copy. If not, copies that ended
    an episode in the same step have shown it: once at least half of a lane's copies do so, their next one is cut.
    Nothing is cut if a round shows whole episodes. An episode is cut as by a time limit: its return bootstraps from the
    observation after its last step, nothing that was sampled is lost, and targets stay unbiased. It is not counted as
    an episode, because its return is that of a part.
    """

    def __init__(self, batch: int) -> None:
        self._limit_B = np.full(batch, _OPEN, np.int64)
        self._cuts = False
        self._index: int | None = None
        self._steps = 0

    def plan(self, index: int, longest: int | None, steps: int) -> None:
        """Begin a round of lane `index` in which `steps` steps are sampled; without this, nothing new is cut.

        `longest` is the length of an episode if the environment says so.
        """
        self._index, self._steps = index, steps
        if longest is not None and self._open:
            self._choose(np.ones(len(self._limit_B), np.bool_), longest)

    def due(self, steps_B: NDArray[np.int64]) -> BoolArray | None:
        """bool [B]: the episode is to be cut after its next step, given its steps so far; None if none is."""
        if not self._cuts:
            return None
        due_B: BoolArray = self._limit_B == steps_B + 1
        return due_B if due_B.any() else None

    def ended(self, ended_B: BoolArray, length_B: NDArray[np.int64]) -> None:
        """Tell that some episodes, at least one, have ended after `length_B` steps each."""
        if self._open:
            longest = int(length_B[ended_B].max())
            alike_B = ended_B & (length_B == longest)
            if 2 * np.count_nonzero(alike_B) >= len(ended_B):
                self._choose(alike_B, longest)
        elif self._cuts:
            self._limit_B[ended_B] = 0
            self._cuts = bool(self._limit_B.any())

    def save(self) -> dict[str, NDArray[np.generic]]:
        """A copy of the lengths: int64 [B], 0 where nothing is cut any more, −1 while none was chosen."""
        return {"limit": self._limit_B.copy()}

    def load(self, arrays: Arrays) -> None:
        """Continue with saved lengths; raises CorruptError."""
        limit_B = saved(arrays, "limit", "int64", self._limit_B.shape)
        if limit_B.min() < _OPEN or (limit_B.min() == _OPEN) != (limit_B.max() == _OPEN):
            raise CorruptError("carry: stagger/limit holds numbers that are no lengths of episodes")
        self._limit_B = limit_B.copy()
        self._cuts = bool((limit_B > 0).any())

    @property
    def _open(self) -> bool:
        return bool(self._limit_B[0] == _OPEN)

    def _choose(self, chosen_B: BoolArray, longest: int) -> None:
        """Choose lengths for the next episodes of these copies; that of a whole episode means no cut."""
        if self._index is None:
            return
        limit_B = lengths(self._index * len(chosen_B), len(chosen_B), longest)
        whole = self._steps % longest == 0
        self._limit_B = np.where(chosen_B & (limit_B < longest) & (not whole), limit_B, 0)
        self._cuts = bool(self._limit_B.any())


def lengths(first: int, count: int, longest: int) -> NDArray[np.int64]:
    """int64 [count], from 1 to `longest`, for the copies `first`, `first` + 1, … of a job; evenly spread.

    Copy i has the fractional part of (i + 1) / golden ratio. Any consecutive members of this sequence are spread evenly
    (Knuth 1998, §6.4, theorem S), so that copies need not know how many lanes there are.
    """
    copy = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    fraction = copy * _GOLDEN >> _HALF  # modulo 2⁶⁴
    return (fraction * np.uint64(longest) >> _HALF).astype(np.int64) + 1
