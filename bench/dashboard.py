"""Measures the dashboard's pages: how soon they are there, and what a long run costs them.

`python -m bench.dashboard --json dashboard.json`. The long run is made here: 10,000 rounds of 100 actors, as records
are written. With Chromium and Playwright (`make test-browser` installs it), a real browser measures the first paint,
the first curve, and the memory of the page. What browsers cost a job that trains: `bench.dashboard_crowd`.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from bench.dashboard_crowd import dashboard
from bench.harness import percentile
from marless.jobs.record import (
    Decision,
    GroupRecord,
    InvocationRecord,
    PhaseSeconds,
    RoundRecord,
)
from marless.learning.data.returns import EpisodeReturns

ROUNDS, ACTORS, AGENTS = 10_000, 100, 8
CHROMIUM = "/usr/bin/chromium"
PAGES = ("", "style.css", "app.js", "dom.js", "api.js", "jobs.js", "dialogs.js")
SPEC = """name: long
env: {name: mpe/simple_spread}
algorithm: ippo
actors: {count: 100}
stop: {rounds: 10000}
"""


def long_record(number: int) -> RoundRecord:
    """A round of the long run."""
    agents = [f"agent_{each}" for each in range(AGENTS)]
    level = -30.0 + 20.0 * number / ROUNDS + (number * 7919 % 100) / 25
    returns = EpisodeReturns(episodes=64, mean=level, per_agent=dict.fromkeys(agents, level), standard_error=0.1)
    start_s = 1.7e9 + number
    invocations = tuple(
        InvocationRecord(
            id=f"long/{number}/train/{index}", function="actor", name="", index=index, attempt=1,
            worker=f"actor-{index}", queued_s=start_s, start_s=start_s + 0.001 * index, end_s=start_s + 0.5,
            vcpu_s=0.4, memory_bytes=2**26, cold=number == 0,
        )
        for index in range(ACTORS)
    )  # fmt: skip
    return RoundRecord(
        job="long",
        round=number,
        env_steps=5000 * (number + 1),
        actors=ACTORS,
        groups=tuple(GroupRecord(policy=agent, agents=(agent,), version=number + 2) for agent in agents),
        versions=dict.fromkeys(agents, number + 2),
        started_s=start_s,
        ended_s=start_s + 0.9,
        phases=PhaseSeconds(rollout=0.6, update=0.3, evaluation=0.0),
        returns=returns,
        evaluation=returns if number % 100 == 0 else None,
        metrics={agent: {"policy_loss": 0.01 * level, "entropy": 1.5, "approx_kl": 0.01} for agent in agents},
        invocations=invocations,
        decisions=(
            Decision(kind="scaling", rule="marless", outcome="100 actors", reason="all", inputs={"average": 90.0}),
            Decision(kind="sharing", rule="fixed", outcome="apart", reason="fixed: 8 policies in every round"),
        ),
        idle_s=0.1,
    )


def write_long_run(runs: Path) -> int:
    """Write the long run; returns the size of its records in bytes."""
    folder = runs / "long"
    folder.mkdir(parents=True)
    status = {"job": "long", "state": "SUCCEEDED", "env": "mpe/simple_spread", "algorithm": "ippo"}
    (folder / "job.json").write_text(json.dumps(status | {"accepted_s": 1.7e9, "ended_s": 1.7e9 + ROUNDS}))
    (folder / "spec.yaml").write_text(SPEC)
    first = long_record(0)
    with (folder / "rounds.jsonl").open("w") as file:
        for number in range(ROUNDS):
            file.write(replace(long_record(number), lanes=first.lanes).to_json() + "\n")
    return (folder / "rounds.jsonl").stat().st_size


@asynccontextmanager
async def session(address: str, token: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A browser's connections."""
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(address, headers=headers, connector=connector, auto_decompress=False) as opened:
        yield opened


async def pages(address: str, token: str) -> dict[str, Any]:  # Any: JSON
    """Seconds and bytes of all that the first paint needs, and the seconds of the first curve of the long run."""
    async with session(address, token) as browser:
        started_s, size = time.perf_counter(), 0
        for page in PAGES:
            async with browser.get(f"/{page}") as answer:
                size += len(await answer.read())
        async with browser.get("/api/jobs") as answer:
            await answer.read()
        page_s = time.perf_counter() - started_s
        started_s = time.perf_counter()
        query = "name=return/greedy&name=return/exploring&x=env-steps&points=1000"
        async with browser.get("/api/jobs/long") as answer:
            await answer.read()
        async with browser.get(f"/api/jobs/long/series?{query}") as answer:
            await answer.read()
        curve_s, again_s = time.perf_counter() - started_s, time.perf_counter()
        total = 0
        while total < ROUNDS:
            async with browser.get(f"/api/jobs/long/series?{query}") as answer:
                data = await answer.read()
                if answer.headers.get("Content-Encoding") == "gzip":
                    data = gzip.decompress(data)
                total = json.loads(data)["total"]
        whole_s = time.perf_counter() - again_s + curve_s
        started_s = time.perf_counter()
        async with browser.get(f"/api/jobs/long/series?{query}&low=1e7&high=1.1e7") as answer:
            await answer.read()
        zoom_s = time.perf_counter() - started_s
    return {
        "page_s": page_s,
        "page_kb": size / 1e3,
        "first_curve_s": curve_s,
        "whole_run_s": whole_s,
        "zoom_s": zoom_s,
    }


FRAMES = """async () => {
  const chart = document.querySelector(".plot");
  chart.focus();
  const times = [];
  let going = true;
  const frame = (now) => { times.push(now); if (going) requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
  const keys = ["+", "ArrowRight", "+", "ArrowLeft", "-", "+", "ArrowRight", "-", "ArrowLeft", "0"];
  for (let number = 0; number < 60; number += 1) {
    chart.dispatchEvent(new KeyboardEvent("keydown", {key: keys[number % keys.length], bubbles: true}));
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  going = false;
  return times;
}"""
"""Zooms and moves a chart by its keys for three seconds, 20 times a second; returns the times of frames in ms."""


def zooming(page: Any) -> dict[str, float]:  # Any: playwright's page
    """Frames per second while a chart of the long run is zoomed and moved, and the slowest in twenty."""
    times = page.evaluate(FRAMES)
    gaps = sorted(after - before for before, after in pairwise(times))
    return {
        "zoom_frames_a_second": 1000 * len(gaps) / (times[-1] - times[0]),
        "zoom_frame_ms_95": percentile(gaps, 95),
    }


def browser_figures(address: str, token: str) -> dict[str, Any]:  # Any: JSON
    """What a real browser measures; {} without one."""
    if find_spec("playwright") is None or not Path(CHROMIUM).exists():
        return {}
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{address}/#token={token}")
        page.wait_for_selector("tbody tr")
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        found = {"first_paint_ms": page.evaluate(paint)}
        started_s = time.perf_counter()
        page.evaluate("location.hash = '#/job/long'")
        page.wait_for_selector(".plot canvas")
        found["first_curve_shown_ms"] = 1e3 * (time.perf_counter() - started_s)
        page.wait_for_timeout(5000)
        found |= zooming(page)
        found["heap_mb"] = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
        chromium.close()
    return found


def main() -> None:
    """Measure, and print or write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="marless-") as place:
        runs = Path(place, "runs")
        figures: dict[str, Any] = {"records_mb": write_long_run(runs) / 1e6}  # Any: JSON
        with dashboard(str(runs)) as (address, token, _):
            figures |= asyncio.run(pages(address, token))
        with dashboard(str(runs)) as (address, token, _):
            figures |= browser_figures(address, token)
    text = json.dumps(figures, indent=1)
    if given.json:
        given.json.write_text(text + "\n")
    print(text)  # the figures, for people


if __name__ == "__main__":
    main()
