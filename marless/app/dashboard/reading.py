"""The part of the API that reads, as JSON. Every answer is bounded: curves are downsampled, and lists are cut."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import aclosing
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

import numpy as np
from aiohttp import web

from marless.app.dashboard.actions import JOB, answer
from marless.app.dashboard.comparing import MOST_JOBS, compare
from marless.app.dashboard.feeds import job_fields, listing_json
from marless.app.dashboard.fleets import MOST_ROUNDS, FleetView, timeline
from marless.app.dashboard.hub import Hub
from marless.app.dashboard.rows import GroupStretch
from marless.app.dashboard.sources import read
from marless.core import documents
from marless.core.errors import MarlessError, NotFoundError, SpecError, UnavailableError
from marless.rpc.security import Security

MOST_POINTS = 4000
MOST_NAMES = 64
MOST_STRETCHES = 400
"""Stretches of equal groups in one answer."""
MOST_TEXT = 2**20
"""Characters of a job file that a page shows."""


class Reading:
    """Answers the pages from a hub."""

    def __init__(self, hub: Hub, security: Security) -> None:
        self._hub = hub
        self._fleet = FleetView(hub, security)

    def routes(self) -> list[web.RouteDef]:
        """All routes that read, but the streams."""
        job = JOB
        return [
            web.get("/api/about", self.about),
            web.get("/api/jobs", self.jobs),
            web.get(job, self.job),
            web.get(f"{job}/series", self.series),
            web.get(f"{job}/groups", self.groups),
            web.get(f"{job}/rounds/{{round}}", self.round),
            web.get(f"{job}/timeline", self.timeline),
            web.get(f"{job}/bills", self.bills),
            web.get(f"{job}/files", self.files),
            web.get(f"{job}/file", self.file),
            web.get("/api/compare", self.compare),
            web.get("/api/fleet", self.fleet),
        ]

    async def about(self, _request: web.Request) -> web.Response:
        """What this dashboard shows."""
        source = self._hub.source
        return answer({"version": version("marless"), "place": source.place, "writable": source.writable})

    async def jobs(self, _request: web.Request) -> web.Response:
        """All jobs."""
        await self._hub.jobs()
        return web.Response(body=listing_json(self._hub), content_type="application/json")

    async def job(self, request: web.Request) -> web.Response:
        """All about a job but its curves."""
        follower = await self._hub.follower(request.match_info["job"])
        series = follower.series
        try:
            text = (await read(self._hub.source, follower.name, "spec.yaml", MOST_TEXT)).decode(errors="replace")
        except MarlessError:
            text = ""
        found = follower.job or await self._hub.source.get(follower.name)
        return answer(
            {
                "job": job_fields(found),
                "summary": found.summary,
                "spec": text,
                "stop": _stop_of(text),
                "columns": series.names(),
                "left_out": series.left_out,
                "rounds": series.rounds,
                "evaluations": int(np.count_nonzero(~np.isnan(series.column("return/greedy")))),
                "marks": list(series.marks),
                "versions": series.versions,
                "problem": follower.problem,
                "unreachable": follower.unreachable,
            }
        )

    async def series(self, request: web.Request) -> web.Response:
        """Curves in a range."""
        follower = await self._hub.follower(request.match_info["job"])
        query = request.query
        axis = query.get("x", "rounds")
        if axis == "usd":
            self._hub.book(follower)
        found = follower.series.query(
            query.getall("name", [])[:MOST_NAMES],
            axis,
            low=_number(query, "low"),
            high=_number(query, "high"),
            points=max(min(int(_number(query, "points") or 800), MOST_POINTS), 2),
        )
        return answer(found)

    async def groups(self, request: web.Request) -> web.Response:
        """The groups over rounds; of many stretches every n-th one, and `skipped` says how many are not shown."""
        follower = await self._hub.follower(request.match_info["job"])
        known = list(follower.series.stretches)
        low, high = _number(request.query, "low") or 0, _number(request.query, "high")
        found = [each for each in known if each.last >= low and (high is None or each.first <= high)]
        step = math.ceil(len(found) / MOST_STRETCHES) or 1
        merged = [_merged(found[at : at + step]) for at in range(0, len(found), step)]
        return answer({"stretches": merged, "skipped": len(found) - len(merged), "rounds": follower.series.rounds})

    async def round(self, request: web.Request) -> web.Response:
        """The decisions of a round with all inputs, and its groups and actors."""
        try:
            number = int(request.match_info["round"])
        except ValueError:
            raise SpecError("the number of a round is a whole number") from None
        found = await self._hub.source.records(request.match_info["job"], number, 1) if number >= 0 else []
        if not found:
            raise NotFoundError(f"round {number + 1} is not recorded")
        fields = ("round", "env_steps", "actors", "groups", "decisions", "phases", "aggregation", "versions", "ahead")
        return answer({name: getattr(found[0], name) for name in fields})

    async def timeline(self, request: web.Request) -> web.Response:
        """The invocations of some rounds."""
        first, count = (int(_number(request.query, name) or 0) for name in ("first", "count"))
        wanted = max(min(count, MOST_ROUNDS), 1)
        found = await self._hub.source.records(request.match_info["job"], max(first, 0), wanted)
        return answer(await asyncio.to_thread(timeline, found))

    async def bills(self, request: web.Request) -> web.Response:
        """How far the bills are computed; asking begins it."""
        return answer(self._hub.book(await self._hub.follower(request.match_info["job"])).about())

    async def files(self, request: web.Request) -> web.Response:
        """The files of a run folder."""
        return answer({"files": [vars(each) for each in await self._hub.source.files(request.match_info["job"])]})

    async def file(self, request: web.Request) -> web.StreamResponse:
        """One file, to be saved; browsers never show it as a page."""
        job, path = request.match_info["job"], request.query.get("path", "")
        name = quote(path.rpartition("/")[2], safe="")
        async with aclosing(self._hub.source.pieces(job, path)) as pieces:
            first = await anext(pieces, b"")
            response = web.StreamResponse(
                headers={
                    "Content-Type": "application/octet-stream",
                    "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
                }
            )
            await response.prepare(request)
            await response.write(first)
            async for piece in pieces:
                await response.write(piece)
        await response.write_eof()
        return response

    async def compare(self, request: web.Request) -> web.Response:
        """Compare jobs."""
        query = request.query
        names = list(dict.fromkeys(query.getall("job", [])))
        if len(names) > MOST_JOBS:
            raise SpecError(f"{len(names)} jobs are too many to compare at once; choose {MOST_JOBS} at most")
        problems, followers = [], []
        for name in names:
            try:
                followers.append(await self._hub.follower(name))
            except NotFoundError as error:
                problems.append(str(error))
        books = [self._hub.book(each) for each in followers]
        found = await compare(
            self._hub.source,
            followers,
            axis=query.get("x", "env-steps"),
            quantity=query.get("y", "return"),
            group=query.get("group", "settings"),
        )
        found["problems"] = problems + found["problems"]
        found["priced"] = all(book.rounds >= book.follower.series.rounds or book.problem for book in books)
        return answer(found)

    async def fleet(self, _request: web.Request) -> web.Response:
        """Services, workers and machines."""
        return answer(await self._fleet.json())


def _number(query: Mapping[str, str], name: str) -> float | None:
    text = query.get(name)
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise SpecError(f"{name}: {text[:40]!r} is no number")
    return found


def _stop_of(text: str) -> Mapping[str, Any]:  # Any: JSON
    try:
        document = documents.yaml_of(text, "spec.yaml")
    except (SpecError, UnavailableError):
        return {}
    stop = document.get("stop") if isinstance(document, dict) else None
    return stop if isinstance(stop, dict) else {}


def _merged(stretches: list[GroupStretch]) -> GroupStretch:
    """The first of some stretches, as long as all of them together."""
    first = stretches[0]
    return GroupStretch(first.first, stretches[-1].last, first.groups, first.rule, first.reason)
