"""Measures the dashboard: how soon pages are there, how soon events, and what browsers cost a job that trains.

`python -m bench.dashboard --json dashboard.json`. The long run is made here: 10,000 rounds of 100 actors, as records
are written. Browsers are connections that follow a job as pages do; with Chromium and Playwright (`make test-browser`
installs it), a real one measures the first paint, the first curve, and the memory of the page.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import psutil  # type: ignore[import-untyped]  # psutil ships no types

from bench.harness import percentile
from bench.jobs import stack
from marless.app.client import AsyncClient
from marless.jobs.record import (
    Decision,
    GroupRecord,
    InvocationRecord,
    PhaseSeconds,
    RoundRecord,
)
from marless.learning.data.returns import EpisodeReturns

ROUNDS, ACTORS, AGENTS = 10_000, 100, 8
BROWSERS = 50
CHROMIUM = "/usr/bin/chromium"
PAGES = ("", "style.css", "app.js", "dom.js", "api.js", "jobs.js", "dialogs.js")
SPEC = """name: long
env: {name: mpe/simple_spread}
algorithm: ippo
actors: {count: 100}
stop: {rounds: 10000}
"""
TRAINED: dict[str, Any] = {  # Any: YAML
    "name": "watched",
    "env": {"name": "mpe/simple_spread"},
    "algorithm": "ippo",
    "actors": {"count": 2, "envs": 32, "steps": 25},
    "evaluation": {"every": 20, "episodes": 20, "random_episodes": 20},
    "stop": {"rounds": 150},
}


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


@contextmanager
def dashboard(*words: str) -> Iterator[tuple[str, str, psutil.Process]]:
    """Run a dashboard; yields its address, its token and its process."""
    command = [sys.executable, "-P", "-m", "marless", "dashboard", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        address, _, token = process.stdout.readline().strip().partition("/#token=")
        try:
            yield address, token, psutil.Process(process.pid)
        finally:
            process.terminate()


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


async def follow(browser: aiohttp.ClientSession, job: str, late_s: list[float] | None) -> None:
    """Follow a job as a page does; adds for each round the seconds from its end until the page has it."""
    async with browser.get(f"/api/jobs/{job}/events", timeout=aiohttp.ClientTimeout(total=None)) as answer:
        if late_s is None:
            while await answer.content.readany():  # most only read: their work would be that of other machines
                pass
            return
        async for line in answer.content:
            if line.startswith(b"data: [{"):
                late_s.append(time.time() - json.loads(line[6:])[-1]["ended_s"])


async def trained(runs: Path, number: int, address: str, token: str, browsers: int) -> tuple[float, list[float]]:
    """Train a job with so many browsers that follow it; returns the median seconds of its rounds, and latencies."""
    late_s: list[float] = []
    async with AsyncClient(runs=runs) as client, session(address, token) as browser:
        job = (await client.submit(TRAINED | {"seed": number}, job=f"watched-{number}")).job
        followers = [asyncio.create_task(follow(browser, job, None if each else late_s)) for each in range(browsers)]
        rounds = [event.record.took_s async for event in client.watch(job) if event.record]
        for each in followers:
            each.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
    return median(rounds[20:]), late_s


async def crowd(runs: Path, repeats: int) -> dict[str, Any]:  # Any: JSON
    """How much slower rounds are with BROWSERS pages open, and how late those have each round."""
    alone, watched, late_s = list[float](), list[float](), list[float]()
    used_s = []
    with dashboard("--runs", str(runs)) as (address, token, process):
        await trained(runs, 0, address, token, 1)  # workers are warm now
        for number in range(1, 2 * repeats + 1):
            browsers, before = (BROWSERS if number % 2 else 0), sum(process.cpu_times()[:2])
            took_s, late = await trained(runs, number, address, token, browsers)
            (watched if browsers else alone).append(took_s)
            if browsers:
                used_s.append(sum(process.cpu_times()[:2]) - before)
            late_s += late
    return {
        "round_ms_alone": 1e3 * median(alone),
        "round_ms_watched": 1e3 * median(watched),
        "slower": median(watched) / median(alone) - 1,
        "dashboard_cpu_ms_per_round": 1e3 * median(used_s) / TRAINED["stop"]["rounds"],
        "event_ms": 1e3 * median(late_s),
        "event_ms_95": 1e3 * percentile(late_s, 95),
        "events": len(late_s),
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
    parser.add_argument("--repeats", type=int, default=5, help="jobs with and without browsers")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="marless-") as place:
        runs = Path(place, "runs")
        figures: dict[str, Any] = {"records_mb": write_long_run(runs) / 1e6}  # Any: JSON
        with dashboard(str(runs)) as (address, token, _):
            figures |= asyncio.run(pages(address, token))
        with dashboard(str(runs)) as (address, token, _):
            figures |= browser_figures(address, token)
    with suppress(KeyboardInterrupt), stack() as runs:
        os.nice(19)  # after the services have started: what browsers take is that of other machines
        figures |= asyncio.run(crowd(runs, given.repeats))
    text = json.dumps(figures, indent=1)
    if given.json:
        given.json.write_text(text + "\n")
    print(text)  # the figures, for people


if __name__ == "__main__":
    main()
