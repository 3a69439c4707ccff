"""Measures what a round costs whose run folder is in a bucket of S3, beside one on a disk: time, requests and bytes.

`python -m bench.bucket_rounds --json bucket_rounds.json`; it needs moto (`make .venv/.cloud`), which stands for S3. One
set of pools serves a coordinator for each kind of run folder; the jobs of a run are trained in turns. The slow bucket
answers each request `LATER_S` later than moto does, as S3 may.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from bench import harness, round_overhead
from bench.harness import Row, percentile, spread
from bench.stack import serving
from bench.systems import WARM_UP, Request, settings
from marless.app.client import Client

LATER_S = 0.05
DISK, BUCKET, SLOW = "disk", "bucket", "slow bucket"
PLACES = (DISK, BUCKET, SLOW)
HEAD, OBJECT, DELETION, OTHER = "heads", "objects", "deletions", "others"
_REGION = "us-east-1"
_NAME = "marless-bench"
_POOLS = ("param_store", "learner_pool", "actor_pool")
_WORKERS = {
    "param_store": (),
    "learner_pool": ("--learner-workers", "1", "--warm-workers", "1"),
    "actor_pool": ("--actor-workers", "2", "--warm-workers", "2"),
}
Environ = Mapping[str, Any]  # Any: of WSGI
App = Callable[[dict[str, Any], Any], Iterable[bytes]]  # Any: of WSGI


def kind(request: Environ) -> str:
    """What a request does for a run folder: replaces its head, writes or deletes objects, or reads or lists."""
    if request["REQUEST_METHOD"] == "PUT":
        return HEAD if {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"} & request.keys() else OBJECT
    if request["REQUEST_METHOD"] == "DELETE" or "delete" in request.get("QUERY_STRING", ""):
        return DELETION
    return OTHER


@dataclass
class Counted:
    """A server with one bucket, and what it was asked for."""

    app: App
    later_s: float
    requests: Counter[str] = field(default_factory=Counter)
    """By kind."""
    sent_bytes: int = 0

    def __call__(self, request: dict[str, Any], respond: Any) -> Iterable[bytes]:  # Any: of WSGI
        """Serve a request."""
        self.requests[kind(request)] += 1
        self.sent_bytes += int(request.get("CONTENT_LENGTH") or 0)
        time.sleep(self.later_s)
        return self.app(request, respond)

    @property
    def now(self) -> Counter[str]:
        """Requests by kind, and bytes, until now."""
        return self.requests + Counter({"bytes": self.sent_bytes})


@contextmanager
def server(later_s: float) -> Iterator[tuple[Counted, dict[str, str]]]:
    """A bucket that answers so much later; yields what it is asked for, and the variables of those who ask."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each request
    counted = Counted(DomainDispatcherApplication(create_backend_app), later_s)
    answering = make_server("127.0.0.1", 0, counted, threaded=True)
    thread = threading.Thread(target=answering.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{answering.server_port}"
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": _REGION}
    try:
        yield counted, {"AWS_ENDPOINT_URL_S3": endpoint, **keys}
    finally:
        answering.shutdown()
        thread.join()


@contextmanager
def coordinators() -> Iterator[dict[str, tuple[str, Counted | None]]]:
    """The address of a coordinator for each place of run folders, and the server that it asks."""
    with tempfile.TemporaryDirectory(prefix="marless-") as name, ExitStack() as stack:
        place = Path(name)
        peers = [word for each in _POOLS for word in (f"--{each.replace('_', '-')}", f"unix:{place}/{each}.sock")]
        for each in _POOLS:
            data = ("--data-dir", f"{place}/data") if each == "param_store" else peers[:2]
            command = (f"marless.services.{each}", "--listen", f"unix:{place}/{each}.sock", *data, *_WORKERS[each])
            stack.enter_context(serving(place / f"{each}.log", *command))
        found: dict[str, tuple[str, Counted | None]] = {}
        for at in PLACES:
            address = f"unix:{place}/{at[0]}.sock"
            counted, runs, variables = stack.enter_context(_runs(at, place))
            options = ("--listen", address, "--runs", runs, "--working-copies", f"{place}/copies-{at[0]}", *peers)
            with mock.patch.dict(os.environ, variables):
                stack.enter_context(serving(place / f"{at}.log", "marless.services.coordinator", *options))
            found[at] = address, counted
        yield found


@contextmanager
def _runs(at: str, place: Path) -> Iterator[tuple[Counted | None, str, Mapping[str, str]]]:
    """The server of a place of run folders, its name for --runs, and variables for its coordinator."""
    if at == DISK:
        yield None, f"{place}/runs", {}
        return
    with server(LATER_S if at == SLOW else 0.0) as (counted, variables):
        yield counted, f"s3://{_bucket(at, variables)}/runs", variables


def _bucket(at: str, variables: Mapping[str, str]) -> str:
    import boto3

    name = f"{_NAME}-{at.split(maxsplit=1)[0]}"  # all buckets of this process are moto's, whichever server is asked
    session = boto3.session.Session(variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"])
    session.client("s3", endpoint_url=variables["AWS_ENDPOINT_URL_S3"], region_name=_REGION).create_bucket(Bucket=name)
    return name


@dataclass(frozen=True)
class Cost:
    """A round of one job, at the median, and its requests, on average."""

    round_ms: float
    requests: Mapping[str, float]


def measured(address: str, counted: Counted | None, job: Row) -> Cost:
    """Train a job; its first rounds and its last do not count."""
    ends_s, seen = [], []
    with Client(address) as client:
        for event in client.watch(client.submit(job).job):
            if event.record:
                ends_s.append(event.record.ended_s)
                seen.append(counted.now if counted else Counter())
    counting = range(WARM_UP - 1, len(ends_s) - 1)
    first, last = counting[0], counting[-1]
    times = [1000 * (after - before) for before, after in pairwise(ends_s[first : last + 1])]
    asked = Counter(seen[last])
    asked.subtract(seen[first])
    return Cost(percentile(times, 50), {what: number / (last - first) for what, number in asked.items()})


def jobs(rounds: int) -> dict[str, Row]:
    """An almost empty round, and that of the task of all benchmarks, with a checkpoint every ten rounds."""
    stop = {"stop": {"rounds": rounds}, "checkpoint": {"every": 10, "keep": 2}}
    empty = {**settings(Request(0, 0)), **round_overhead.SETTINGS, **stop}
    return {"empty round": empty, "task": {**settings(Request(0, 0)), **stop}}


def row(job: str, at: str, costs: Mapping[str, list[Cost]]) -> Row:
    """One row of the table."""
    own = costs[at]
    added = [each.round_ms - disk.round_ms for each, disk in zip(own, costs[DISK], strict=True)]
    found: Row = {"job": job, "run folder": at, "round (ms)": spread([each.round_ms for each in own]).cell(1)}
    if at == DISK:
        return found
    found["added (ms)"] = spread(added).cell(1)
    for what in (HEAD, OBJECT, DELETION, OTHER):
        found[f"{what} a round"] = round(spread([each.requests.get(what, 0.0) for each in own]).median, 2)
    found["kB a round"] = round(spread([each.requests["bytes"] / 1000 for each in own]).median, 1)
    return found


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--rounds", type=int, default=100, help="rounds of each job")
    args = parser.parse_args()
    about = harness.machine()
    costs: dict[str, dict[str, list[Cost]]] = {job: {at: [] for at in PLACES} for job in jobs(args.rounds)}
    with coordinators() as at_work:
        for seed in range(args.runs):
            for name, job in jobs(args.rounds).items():
                for at in (*PLACES[seed % 3 :], *PLACES[: seed % 3]):
                    costs[name][at].append(measured(*at_work[at], job | {"seed": seed}))
                    harness.say(f"{name}, {at}: {costs[name][at][-1].round_ms:.1f} ms")
    rows = [row(job, at, found) for job, found in costs.items() for at in PLACES]
    headline = {
        f"{job.replace(' ', '_')}_{at.replace(' ', '_')}_added_ms": each["added (ms)"]["median"]
        for job, at, each in ((each["job"], each["run folder"], each) for each in rows)
        if at != DISK
    }
    harness.report("bucket_rounds", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
