"""The part of the API that changes something: submit, cancel, resume; and films, for which a program is started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from marless.app.dashboard.films import Films
from marless.app.dashboard.sources import JobSource
from marless.app.dashboard.streams import job_fields
from marless.core import documents
from marless.core.errors import SpecError


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
        job = "/api/jobs/{job}"
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
