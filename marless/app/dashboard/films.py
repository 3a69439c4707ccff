"""Films: one episode of a job's newest policies as an animated picture, played in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from contextlib import aclosing, suppress
from pathlib import Path, PurePosixPath

from marless.app.client import File
from marless.app.dashboard.sources import JobSource
from marless.core import regular_files
from marless.core.errors import NotFoundError, OverloadedError, UnavailableError
from marless.core.limits import MAX_PUBLISH_BYTES

LIMIT_S = 120.0
"""Seconds for playing and drawing an episode."""
MOST_BYTES = 64 * 2**20
"""Size of a film."""
_NEEDED = (".acting.safetensors", "manifest.json")
_LAST_WORDS = 500


class Films:
    """Makes one film at a time."""

    def __init__(self, source: JobSource) -> None:
        self._source = source
        self._busy = asyncio.Lock()

    async def film(self, job: str, seed: int) -> bytes:
        """An animated GIF. Raises OverloadedError while another one is made, NotFoundError without a checkpoint,
        UnavailableError, with the reason, if the environment cannot be drawn here.
        """
        if self._busy.locked():
            raise OverloadedError("another film is being made; try again when it is there")
        async with self._busy:
            with tempfile.TemporaryDirectory(prefix="marless-film-") as directory:
                folder = Path(directory, job)
                await self._copy(job, folder)
                target = Path(directory, "film.gif")
                await _play(folder, target, seed)
                return await asyncio.to_thread(regular_files.read, target, MOST_BYTES)

    async def _copy(self, job: str, folder: Path) -> None:
        """Copy what plays the newest checkpoint."""
        files = await self._source.files(job)
        for file in newest_checkpoint(files, job):
            await self._fetch(job, file, folder)

    async def _fetch(self, job: str, file: File, folder: Path) -> None:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or file.bytes > MAX_PUBLISH_BYTES:
            raise UnavailableError(f"{file.path!r} is no file of a checkpoint")
        target, data = folder / path, bytearray()
        async with aclosing(self._source.pieces(job, file.path)) as pieces:
            async for piece in pieces:
                data += piece
        await asyncio.to_thread(_write, target, data)


def _write(target: Path, data: bytes | bytearray) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def newest_checkpoint(files: tuple[File, ...], job: str) -> list[File]:
    """The files of the newest complete checkpoint that acting needs, and of the job; raises NotFoundError."""
    complete = sorted(each.path for each in files if each.path.startswith("checkpoints/") and "manifest" in each.path)
    if not complete:
        raise NotFoundError(f"{job} has no checkpoint yet; try again when it has")
    folder = complete[-1].rpartition("/")[0]
    return [
        each
        for each in files
        if each.path in ("spec.yaml", "job.json") or (each.path.startswith(folder) and each.path.endswith(_NEEDED))
    ]


async def _play(folder: Path, target: Path, seed: int) -> None:
    command = [sys.executable, "-P", "-m", "marless", "evaluate", str(folder), "--episodes", "1"]
    command += ["--seed", str(seed), "--render", str(target), "-o", "json"]
    # In a session of its own, so that the environment's processes end with it.
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            _, said = await process.communicate()
    except TimeoutError:
        raise UnavailableError(f"the episode was not played and drawn within {LIMIT_S:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        words = said.decode(errors="replace").strip().removeprefix("marless: ")[-_LAST_WORDS:]
        raise UnavailableError(f"the episode cannot be filmed here: {words or 'it left no message'}")
