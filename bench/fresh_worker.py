"""Measures what it costs that each job has actor workers of its own: `python -m bench.fresh_worker --json FILE`.

A real actor pool with one worker plays one episode of mpe/simple_spread at a time. In one half of the runs all episodes
are those of one job, whose worker stays; in the other half each is that of another job, whose worker is a fresh one.
Between two episodes the worker is idle for long enough to be replaced. The halves take turns. CPU time is that of the
pool, its template and all workers; what the template takes to start is part of both.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial

from bench import harness
from bench.harness import Row, spread
from marless.fleet.tenancy import IDLE_S
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.server import serving
from marless.rpc.v1 import actor_pool_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.services.actor_pool.__main__ import build, parse

PAUSE_S = IDLE_S + 0.1
TIMEOUT_S = 60.0
JOBS: dict[str, Callable[[int], str]] = {"of its job": lambda _: "job", "fresh": lambda episode: f"job-{episode}"}
"""Kind of worker → the job of each episode."""


def cpu_s() -> float:
    """CPU seconds of this process and of all that have ended below it."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


async def played(episodes: int, job_of: Callable[[int], str]) -> list[float]:
    """The seconds of each episode but the first one, for which the template starts."""
    with tempfile.TemporaryDirectory(prefix="marless-") as place:
        config = parse(["--listen", f"unix:{place}/pool.sock", "--param-store", f"unix:{place}/none.sock"])
        async with serving(config.server, partial(build, config)) as address:
            peer = Peer(address, Security())
            times_s = [await _episode(peer, job_of(each)) for each in range(episodes + 1)]
            await peer.close()
    return times_s[1:]


async def _episode(peer: Peer, job: str) -> float:
    settings = actor_pool_pb2.RolloutSettings(
        env="mpe/simple_spread", env_options_json="{}", envs=1, steps=1, timeout_s=TIMEOUT_S
    )
    request = actor_pool_pb2.RolloutRequest(
        job=job, actors=1, mode=actor_pool_pb2.ROLLOUT_MODE_RANDOM, episodes=1, settings=settings
    )
    await asyncio.sleep(PAUSE_S)
    begun_s = time.perf_counter()
    await peer.call(ActorPoolServiceStub(peer.channel).Rollout, request, timeout_s=TIMEOUT_S)
    return time.perf_counter() - begun_s


def measured(runs: int, episodes: int) -> list[Row]:
    """The table, and the difference of its two lines."""
    times_ms: dict[str, list[float]] = {kind: [] for kind in JOBS}
    cpu_ms: dict[str, list[float]] = {kind: [] for kind in JOBS}
    for run in range(runs):
        for kind, job_of in JOBS.items():
            before_s = cpu_s()
            times_ms[kind] += [1000 * each for each in asyncio.run(played(episodes, job_of))]
            cpu_ms[kind].append(1000 * (cpu_s() - before_s) / episodes)
            harness.say(f"run {run}, {kind}: {cpu_ms[kind][-1]:.0f} ms of CPU time per episode")
    rows: list[Row] = [
        {
            "worker": kind,
            "from request to answer (ms)": spread(times_ms[kind]).cell(1),
            "CPU (ms per episode)": spread(cpu_ms[kind]).cell(1),
        }
        for kind in JOBS
    ]
    return [
        *rows,
        {
            "worker": "difference of medians",
            "from request to answer (ms)": _more(times_ms),
            "CPU (ms per episode)": _more(cpu_ms),
        },
    ]


def _more(values: dict[str, list[float]]) -> float:
    warm, fresh = (spread(values[kind]).median for kind in JOBS)
    return round(fresh - warm, 1)


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=5)
    parser.add_argument("--episodes", type=harness.positive, default=10, help="of each half of a run")
    args = parser.parse_args()
    rows = measured(args.runs, args.episodes)
    harness.report("fresh_worker", harness.machine(), rows, {"runs": args.runs, "episodes": args.episodes}, args.json)


if __name__ == "__main__":
    main()
