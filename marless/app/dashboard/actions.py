"""The part of the API that changes something: submit, cancel, resume; and films, for which a program is started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import aclosing, suppress
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from aiohttp import web

from marless.app.client import File
from marless.app.dashboard.feeds import job_fields
from marless.app.dashboard.sources import JobSource
from marless.core import documents, regular_files
from marless.core.errors import NotFoundError, OverloadedError, SpecError, UnavailableError
from marless.core.limits import MAX_PUBLISH_BYTES

JOB = "/api/jobs/{job:[^/]+}"
"""The route of a job. By default, aiohttp takes no braces, which names of folders may have."""


def answer(data: object) -> web.Response:
    """An answer as JSON, in which numbers that are none are null."""
    return web.Response(body=msgspec.json.encode(data), content_type="application/json")


class Actions:
    """Carries out what a page asks for."""

    def __init__(self, source: JobSource) -> None:
        self._source = source
        self._films = Films(source)

    def routes(self) -> list[web.RouteDef]:
        """The routes of all actions."""
        job = JOB
        return [
            web.post("/api/jobs", self.submit),
            web.post(f"{job}/cancel", self.cancel),
            web.post(f"{job}/resume", self.resume),
            web.post(f"{job}/film", self.film),
        ]

    async def submit(self, request: web.Request) -> web.Response:
        """Submit the text of a job file; files that it names are not read on this machine."""
        given = await _body(request)
        document = documents.yaml_of(str(given.get("text", "")), "job file")
        if not isinstance(document, dict):
            raise SpecError("job file: this is no mapping; a job file has env, algorithm, stop and other sections")
        _check_paths(document)
        name = str(given.get("job") or "") or None
        return answer(job_fields(await self._source.submit(document, name)))

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel a job."""
        return answer(job_fields(await self._source.cancel(request.match_info["job"])))

    async def resume(self, request: web.Request) -> web.Response:
        """Resume a job, with other stop rules if they are given."""
        stop = (await _body(request)).get("stop")
        if stop is not None and not isinstance(stop, dict):
            raise SpecError("stop: give stop rules by name, as {rounds: 200}")
        return answer(job_fields(await self._source.resume(request.match_info["job"], stop)))

    async def film(self, request: web.Request) -> web.Response:
        """Play an episode; answers with an animated GIF."""
        seed = (await _body(request)).get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31:
            raise SpecError("seed: give a whole number from 0 on")
        return web.Response(body=await self._films.film(request.match_info["job"], seed), content_type="image/gif")


async def _body(request: web.Request) -> Mapping[str, Any]:  # Any: JSON
    if request.content_type != "application/json":
        raise SpecError("send JSON")  # what no form of another site can send
    try:
        found = json.loads(await request.read() or b"{}")
    except (ValueError, RecursionError):
        raise SpecError("this is no JSON") from None
    if not isinstance(found, dict):
        raise SpecError("send a JSON object")
    return found


def _check_paths(document: Mapping[str, Any]) -> None:  # Any: YAML
    """Refuse files of this machine: whoever may use the page need not be its user."""
    for section, name in (("bill", "prices"), ("start", "checkpoint")):
        inside = document.get(section)
        if isinstance(inside, dict) and isinstance(inside.get(name), str):
            raise SpecError(f"{section}.{name} names a file; submit this job with `marless submit`, which reads files")


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
                # Copy what plays the newest checkpoint.
                files = await self._source.files(job)
                for file in newest_checkpoint(files, job):
                    await self._fetch(job, file, folder)
                target = Path(directory, "film.gif")
                await _play(folder, target, seed)
                return await asyncio.to_thread(regular_files.read, target, MOST_BYTES)

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
