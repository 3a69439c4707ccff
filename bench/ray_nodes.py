"""Measures workers on a Ray cluster of this machine against workers that the pools fork.

`python -m bench.ray_nodes --json ray_nodes.json`; it needs `pip install 'marless[ray]'`. Measured are the time from the
need of an actor worker until it runs its first task, the rate of a whole job on one node, in turns with the same job by
`local`, and what it costs to lose a node in the middle of a round. Ray's nodes run actors at normal priority here.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

from bench import harness, recovery
from bench.cold_start import worker_start_s
from bench.harness import Row, Spread, spread
from bench.systems import Request, marless, steady_rate
from marless_ray.places import KEEP_S

ENV_STEPS = 400_000
STORE_BYTES = 80 * 2**20
WARM_UP_ROUNDS = 20
_NODES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


@contextmanager
def nodes(*cpus: int) -> Iterator[Any]:  # Any: Ray has no types
    """A cluster with a node for each number of CPUs; the first is the head."""
    with mock.patch.dict(os.environ, _NODES):
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args=_limits(cpus[0]) | {"include_dashboard": False})
        try:
            for each in cpus[1:]:
                cluster.add_node(**_limits(each))
            cluster.wait_for_nodes()
            yield cluster
        finally:
            cluster.shutdown()


def _limits(cpus: int) -> dict[str, Any]:  # Any: of Ray's nodes
    return {"num_cpus": cpus, "object_store_memory": STORE_BYTES}


def rates(runs: int) -> tuple[list[float], list[float]]:
    """Env steps per second of a job on one node of Ray, and by `local`, in turns."""
    found: dict[str, list[float]] = {"ray": [], "local": []}
    with nodes(8) as cluster:
        for seed in range(runs):
            for name, launcher in (("ray", f"ray,address={cluster.address}"), ("local", "local")):
                with mock.patch.dict(os.environ, {"MARLESS_LAUNCHER": launcher}):
                    found[name].append(steady_rate(marless(Request(seed, ENV_STEPS))))
                harness.say(f"{name}: {found[name][-1]:.0f} env steps/s")
    return found["ray"], found["local"]


def start_s(runs: int) -> tuple[float, Spread, Spread]:
    """Seconds from the need of a worker until its first task, on a warm node.

    Returns those of a pool's first one, those of later ones in a new actor, and those in the actor of the one before.
    """
    with nodes(4) as cluster:
        launcher = f"ray,address={cluster.address}"
        first_s, new = worker_start_s(runs, launcher, KEEP_S + 3)
        return first_s, new, worker_start_s(runs, launcher)[1]


async def lost_node_s(seed: int) -> tuple[float, float]:
    """Seconds of an undisturbed round, and from the loss of one of two nodes with workers until the next record."""
    with nodes(2, 2, 2) as cluster:
        launcher = {"MARLESS_LAUNCHER": f"ray,address={cluster.address}", "MARLESS_ACTOR_WORKERS": "3"}
        with mock.patch.dict(os.environ, launcher):
            async with recovery.running(seed) as job:
                first = [await anext(job.rounds) for _ in range(WARM_UP_ROUNDS)]
                round_s = statistics.median(after.ended_s - before.ended_s for before, after in pairwise(first))
                await asyncio.sleep(round_s / 2)
                killed_s = time.time()
                await asyncio.to_thread(cluster.remove_node, next(iter(cluster.worker_nodes)), allow_graceful=False)
                return round_s, (await job.next_after(killed_s)).ended_s - killed_s


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args = harness.parser(__doc__, runs=3).parse_args()
    about = harness.machine()
    first_s, new_s, again_s = start_s(args.runs)
    ray, local = rates(args.runs)
    lost = [asyncio.run(lost_node_s(seed)) for seed in range(args.runs)]
    ratio = spread([one / other for one, other in zip(ray, local, strict=True)])
    cost = spread([max(next_s - round_s, 0.0) for round_s, next_s in lost])
    rows: list[Row] = [
        {"what": "actor worker on a warm node, needed → runs its first task (s)", "value": new_s.cell(2)},
        {"what": "the same in an actor whose worker has just ended (s)", "value": again_s.cell(2)},
        {"what": "the first of its pool, with its connection to Ray (s)", "value": f"{first_s:.2f}"},
        {"what": "env steps/s on one node", "value": spread(ray).cell(0)},
        {"what": "the same by `local`", "value": spread(local).cell(0)},
        {"what": "ratio of the two", "value": ratio.cell(2)},
        {"what": "time lost with a node (s)", "value": cost.cell(2)},
    ]
    headline = {
        "worker_start_s": round(new_s.median, 2),
        "against_local": round(ratio.median, 3),
        "lost_node_s": round(cost.median, 2),
    }
    harness.report("ray_nodes", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
