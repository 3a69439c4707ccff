"""Checkpoints that clients upload for jobs to start from: bounded, verified, kept until a job uses them or they expire.

Each lies in a private directory beside the run folders, named by the SHA-256 of its manifest, which holds the digests
of all its files.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from marless.core import private_files
from marless.core.errors import CorruptError, NotFoundError, OverloadedError, SpecError, UnavailableError
from marless.core.limits import MAX_MANIFEST_BYTES
from marless.rpc import chunks
from marless.rpc.admission import ByteBudget
from marless.storage.checkpoint import MANIFEST, Manifest

PREFIX = "upload:"
DIRECTORY = ".uploads"
KEEP_S = 3600.0
MOST_KEPT = 64
MOST_FILES = 2**14
WAIT_S = 10.0
"""Seconds that an upload waits for room; until then, only its first message is read, with 1 MiB of its data at most."""
_REFERENCE = re.compile(rf"{PREFIX}([0-9a-f]{{64}})")


class FileUploads:
    """The uploads of one runs directory."""

    def __init__(self, runs: Path, limit_bytes: int) -> None:
        self._directory = runs / DIRECTORY
        self._budget = ByteBudget("directory of uploaded checkpoints", "--uploads-bytes", limit_bytes)

    async def receive(self, sizes: Sequence[int], stream: chunks.Frames) -> str:
        """Receive and keep a checkpoint; returns the reference to it for `start.checkpoint`.

        Args:
            sizes: Bytes of its manifest and of each of its files.
            stream: The same bytes, concatenated, in frames.

        Raises SpecError if it is too large, CorruptError if its files do not match its manifest, OverloadedError if
        there is no room within WAIT_S, UnreachableError if the stream stalls, UnavailableError if it cannot be written.
        """
        total = sum(sizes)
        if min(sizes) < 0 or sizes[0] > MAX_MANIFEST_BYTES or len(sizes) > MOST_FILES:
            raise SpecError(
                f"start.checkpoint: no checkpoint has {len(sizes) - 1} files and a manifest of {sizes[0]} bytes"
            )
        if total > self._budget.limit_bytes:
            raise SpecError(
                f"start.checkpoint: {total} bytes; this coordinator takes {self._budget.limit_bytes} (--uploads-bytes)"
            )
        # What lies on the disk counts, too, also what an earlier coordinator has left there.
        self._budget.set_aside(await asyncio.to_thread(self._tidied))
        await self._budget.take("", total, wait_s=WAIT_S)
        try:
            data = memoryview(bytearray(total))
            await chunks.read_data(stream, data)
            return await asyncio.to_thread(self._keep, data, sizes)
        finally:
            self._budget.release("", total)

    def find(self, reference: str) -> Path:
        """The directory of an upload; raises NotFoundError if it does not exist or has expired."""
        found = _REFERENCE.fullmatch(reference)
        if not found or not (self._directory / found[1]).is_dir():
            raise NotFoundError("start.checkpoint: the upload does not exist or has expired; submit the job again")
        return self._directory / found[1]

    def discard(self, reference: str) -> None:
        """Remove an upload that a job has copied; references of other kinds are ignored."""
        if found := _REFERENCE.fullmatch(reference):
            shutil.rmtree(self._directory / found[1], ignore_errors=True)
            with suppress(OSError):  # others are there
                self._directory.rmdir()

    def _tidied(self) -> int:
        """Remove uploads older than KEEP_S, incomplete ones included; returns the total bytes of the others."""
        left = []
        for path in self._directory.glob("*"):
            with suppress(OSError):  # a job has just taken it
                if time.time() - path.stat().st_mtime > KEEP_S:
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    left.append(sum(file.stat().st_size for file in path.iterdir()))
        if len(left) >= MOST_KEPT:
            raise OverloadedError(f"{len(left)} uploaded checkpoints wait for their jobs already; try again")
        return sum(left)

    def _keep(self, data: memoryview, sizes: Sequence[int]) -> str:
        manifest_bytes, *rest = (data[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True))
        manifest = Manifest.parse(bytes(manifest_bytes), "start.checkpoint")
        if len(rest) != len(manifest.files):
            raise CorruptError(f"start.checkpoint: {len(rest)} files came; its manifest has {len(manifest.files)}")
        for file, content in zip(manifest.files, rest, strict=True):
            file.check(content, f"start.checkpoint: {file.name}")
        digest = hashlib.sha256(manifest_bytes).hexdigest()
        files = {file.name: content for file, content in zip(manifest.files, rest, strict=True)}
        try:
            self._write(digest, files | {MANIFEST: manifest_bytes})
        except OSError as error:
            raise UnavailableError(f"{self._directory}: cannot be written ({error.strerror})") from None
        return PREFIX + digest

    def _write(self, digest: str, files: dict[str, memoryview]) -> None:
        """Write an upload atomically; if it exists already, only its age starts anew."""
        partial = private_files.directory(self._directory) / f"{secrets.token_hex(8)}.partial"
        partial.mkdir(mode=0o700)
        try:
            for name, content in files.items():
                (partial / name).write_bytes(content)
            # A directory that is there already is complete, as it was renamed, too, and has the same files.
            with suppress(OSError):
                partial.rename(self._directory / digest)
            os.utime(self._directory / digest)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
