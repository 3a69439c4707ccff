"""Copies of replay files, for workers on other hosts than the pool, which has the files.

The learner reads and writes its copy as it does a file of the pool. Before an update, the worker fetches the rounds
that the state names and the copy lacks; before it publishes the new state, it writes the new round into the pool's
file. So the pool's file holds all that published states name, and outlives the worker and its host.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from marless.core import private_files
from marless.learning.data.frame_file import allocate
from marless.learning.data.frames import ReplaySchema
from marless.learning.data.replay_buffer import byte_ranges
from marless.rpc.concurrency import gather
from marless.rpc.refs import Borrowed, Ref

Arrays = Mapping[str, NDArray[np.generic]]


class Mirror:
    """A copy of one replay file. `place` is a directory of this host; raises UnavailableError if it has no room."""

    def __init__(self, borrowed: Borrowed, place: Path, schema: ReplaySchema, capacity: int) -> None:
        self._borrowed = borrowed
        self._schema = schema
        self._capacity = capacity
        self._missing: Arrays | None = None
        """A published state whose rounds the copy may lack."""
        self.path = place / secrets.token_hex(8)
        allocate(self.path, schema.file_bytes(capacity))

    def expect(self, state: Arrays) -> None:
        """Note that the learner goes on from this published state, which other workers may have written."""
        self._missing = state

    async def pull(self, ref: Ref) -> None:
        """Fetch what the expected state names; raises CorruptError for a state of another replay, UnreachableError."""
        if self._missing is None:
            return
        ranges = byte_ranges(self._schema, self._capacity, self._missing)
        content = self._mapped()
        await gather(self._borrowed.read(ref, [each], content[each]) for each in ranges)
        # Only now: if a piece could not be fetched, the next update fetches all of them again.
        self._missing = None

    async def push(self, ref: Ref, state: Arrays, round_: int) -> None:
        """Write a round of the learner's state into the pool's file; raises UnreachableError, UnavailableError."""
        ranges, content = byte_ranges(self._schema, self._capacity, state, round_), self._mapped()
        await self._borrowed.write(ref, ranges, memoryview(b"".join(content[each] for each in ranges)))

    def remove(self) -> None:
        """Remove the copy; idempotent."""
        self.path.unlink(missing_ok=True)

    def _mapped(self) -> memoryview:
        descriptor = private_files.open_own(self.path, os.O_RDWR)
        try:
            return memoryview(mmap.mmap(descriptor, 0))
        finally:
            os.close(descriptor)
