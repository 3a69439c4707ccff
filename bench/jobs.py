"""Measures the latency of a coordinator: of `submit`, and of the events of `watch`, on a local stack of `marless up`.

`python -m bench.jobs --json jobs.json`. The latency of a round's event is counted from the end of the round, before its
record is written to disk, until the reader has it. All processes share one clock.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import harness
from bench.harness import Row, percentile, spread
from bench.systems import MARLESS, Request, settings
from marless.app.client import Client

ROUNDS = 25


@contextmanager
def stack() -> Iterator[Path]:
    """Run a stack in the background; yields its directory of run folders."""
    with tempfile.TemporaryDirectory(prefix="marless-") as place:
        runs = Path(place) / "runs"
        _marless(runs, "up")
        try:
            yield runs
        finally:
            _marless(runs, "down")


def _marless(runs: Path, *words: str | Path) -> float:
    """Run a command; returns its wall-clock seconds."""
    started_s = time.perf_counter()
    subprocess.run([MARLESS, *words, "--runs", runs], check=True, capture_output=True)
    return time.perf_counter() - started_s


def job(seed: int) -> Row:
    """The job of the other benchmarks, for a few rounds."""
    return {**settings(Request(seed, 0)), "stop": {"rounds": ROUNDS}}


def with_client(runs: Path, seed: int) -> tuple[float, list[float], float]:
    """Seconds of a submission by a new client, and the latencies of each round's event and of the job's end."""
    with Client(runs=runs) as client:
        started_s = time.perf_counter()
        submitted = client.submit(job(seed))
        submit_s = time.perf_counter() - started_s
        seen_s, end_s = [], 0.0
        for event in client.watch(submitted.job):
            now_s = time.time()
            if event.record:
                seen_s.append(now_s - event.record.ended_s)
            elif event.job and event.job.ended_s:
                end_s = now_s - event.job.ended_s
    return submit_s, seen_s, end_s


def with_command(runs: Path, seed: int) -> tuple[float, list[float]]:
    """The same with the command line: seconds of the command `submit`, and latencies of the lines of `watch`."""
    name, file = f"job-{seed}", runs.parent / "job.yaml"
    file.write_text(json.dumps(job(seed)), encoding="utf-8")  # JSON is YAML
    submit_s = _marless(runs, "submit", file, "--job", name)
    command: list[str | Path] = [MARLESS, "watch", name, "-o", "jsonl", "--runs", runs]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watching:
        assert watching.stdout
        seen = [(time.time(), json.loads(line)["ended_s"]) for line in watching.stdout]
    # Rounds that ended before the command printed its first line do not tell its latency.
    return submit_s, [now_s - ended_s for now_s, ended_s in seen if ended_s > seen[0][0]]


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args = harness.parser(__doc__, runs=10).parse_args()
    about = harness.machine()
    with stack() as runs:
        with_client(runs, 0)  # the first job, which starts the workers, is not measured
        clients = [with_client(runs, seed) for seed in range(args.runs)]
        commands = [with_command(runs, seed) for seed in range(args.runs)]
        help_ms = spread([1000 * _marless(runs, "list", "--help") for _ in range(args.runs)])
    client_ms = spread([1000 * submit_s for submit_s, _, _ in clients])
    command_ms = spread([1000 * submit_s for submit_s, _ in commands])
    events = {
        "a round → Client.watch": [seen for _, seen, _ in clients],
        "a round → marless watch -o jsonl": [seen for _, seen in commands],
        "the end of the job → Client.watch": [[end] for _, _, end in clients],
    }
    rows: list[Row] = [
        {"what": "Client.submit, from a new connection", "median (ms)": client_ms.cell(0)},
        {"what": "the command marless submit", "median (ms)": command_ms.cell(0)},
        {"what": "beside it: marless list --help, which calls nobody", "median (ms)": help_ms.cell(0)},
        *({"what": what, **_cells(runs_s)} for what, runs_s in events.items()),
    ]
    rounds_ms = [1000 * each for seen in events["a round → Client.watch"] for each in seen]
    headline = {
        "submit_ms": round(client_ms.median),
        "watch_ms_p50": round(percentile(rounds_ms, 50), 1),
        "watch_ms_p95": round(percentile(rounds_ms, 95), 1),
    }
    harness.report("jobs", about, rows, headline, args.json)


def _cells(runs_s: list[list[float]]) -> Row:
    """Medians over runs of each run's median and 95th percentile."""
    ms = [[1000 * each for each in run] for run in runs_s]
    return {
        "median (ms)": spread([percentile(run, 50) for run in ms]).cell(1),
        "p95 (ms)": spread([percentile(run, 95) for run in ms]).cell(1),
    }


if __name__ == "__main__":
    main()
