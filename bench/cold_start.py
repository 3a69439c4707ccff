"""Measures start-up time and memory of marless: of the whole local stack, and of one actor worker.

`python -m bench.cold_start --json cold_start.json`. With `--docker network=host,user=1000`, also of an actor worker in
a container, on the engine that DOCKER_HOST names and with these options of the launcher. MB are 10⁶ bytes. PSS counts a
page shared by n processes as 1/n for each, so that it can be added up; RSS is the resident memory.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter

import grpc
import psutil  # type: ignore[import-untyped]  # psutil ships no types

from bench import harness
from bench.harness import ROOT, Row, Spread, spread
from bench.processes import family, role
from bench.systems import Request, marless_job, settings
from marless.rpc.v1.actor_pool_pb2 import ROLLOUT_MODE_RANDOM, RolloutRequest, RolloutSettings, ScaleRequest
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub


class Footprint:
    """Memory of a process and its descendants, at the moment when their sum was largest."""

    def __init__(self) -> None:
        self.total_pss_mb = 0.0
        self.rows: list[Row] = []

    def __call__(self, process: psutil.Process) -> None:
        """Take one measurement."""
        numbers: Counter[str] = Counter()
        rows: list[Row] = []
        for member in family(process):
            try:
                memory, what = member.memory_full_info(), role(member.cmdline())
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            numbers[what] += 1
            name = f"{what} {numbers[what]}" if what.endswith("worker") else what
            rows.append({"what": name, "PSS (MB)": _mb(memory.pss), "RSS (MB)": _mb(memory.rss)})
        total = sum(row["PSS (MB)"] for row in rows)
        if total > self.total_pss_mb:
            self.total_pss_mb, self.rows = total, rows

    def largest_rss_mb(self, what: str) -> float:
        """Largest RSS of the processes whose name starts with `what`; 0 if there were none."""
        return max((float(row["RSS (MB)"]) for row in self.rows if row["what"].startswith(what)), default=0.0)


def _mb(size_bytes: int) -> float:
    return round(size_bytes / 1e6, 1)


def first_round_s(seed: int) -> float:
    """Seconds from the start of `marless train` to the end of its first round."""
    job = marless_job({**settings(Request(seed, 0)), "stop": {"rounds": 2}}, timeout_s=120)
    return float(job.records[0]["ended_s"]) - job.started_s


def worker_start_s(runs: int, launcher: str = "local", rest_s: float = 0.0) -> tuple[float, Spread]:
    """Seconds from the request of a rollout until its first task runs on a worker that is started for it.

    Returns those of the pool's first worker, which include the start of its template, and those of later workers.
    Before each of these, there is no worker for `rest_s`.
    """
    with tempfile.TemporaryDirectory(prefix="marless-") as folder:
        address = f"unix:{folder}/pool.sock" if launcher == "local" else _loopback()
        command = [sys.executable, "-m", "marless.services.actor_pool", "--listen", address, "--launcher", launcher]
        command += ["--param-store", address]  # nobody asks it for anything
        pool = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env=harness.variables())
        try:
            with grpc.insecure_channel(address) as channel:
                stub = ActorPoolServiceStub(channel)
                return _first_task_s(stub), spread([_first_task_s(stub, rest_s) for _ in range(runs)])
        finally:
            pool.terminate()  # and not killed: then a launcher would leave its containers
            pool.wait()


def _loopback() -> str:
    """An address that containers on the host's network reach."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def _first_task_s(pool: ActorPoolServiceStub, rest_s: float = 0.0) -> float:
    pool.Scale(ScaleRequest(workers=0), timeout=60, wait_for_ready=True)
    time.sleep(rest_s)
    settings = RolloutSettings(env="game/target", env_options_json="{}", envs=1, steps=1, seed=1, timeout_s=60)
    request = RolloutRequest(job="job", mode=ROLLOUT_MODE_RANDOM, actors=1, episodes=1, settings=settings)
    needed_s = time.time()
    played = pool.Rollout(request, timeout=60)
    return min(run.start_s for run in played.invocations) - needed_s


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=5)
    parser.add_argument("--docker", metavar="OPTIONS", help="options of the launcher `docker`; default: not measured")
    args = parser.parse_args()
    about, footprint = harness.machine(), Footprint()
    first_s = spread([first_round_s(seed) for seed in range(args.runs)])
    first_worker_s, worker_s = worker_start_s(args.runs)
    contained: list[Row] = []
    if args.docker:
        first_s_in, in_container = worker_start_s(args.runs, f"docker,{args.docker}")
        contained = [
            {"what": "actor worker in a container, needed → runs its first task", "seconds": in_container.cell(3)},
            {"what": "the first of its pool, with the checks of its engine", "seconds": f"{first_s_in:.3f}"},
        ]
    job = settings(Request(seed=0, env_steps=10**9)) | {"stop": {"wall_s": 15}}
    marless_job(job, timeout_s=120, watch=footprint)
    rows: list[Row] = [
        {"what": "marless train → first round recorded", "seconds": first_s.cell(2)},
        {"what": "actor worker, needed → runs its first task", "seconds": worker_s.cell(3)},
        {"what": "the first of its pool, with its template", "seconds": f"{first_worker_s:.3f}"},
        *contained,
        *footprint.rows,
        {"what": "all processes", "PSS (MB)": round(footprint.total_pss_mb, 1)},
    ]
    headline = {
        "first_round_s": round(first_s.median, 2),
        "actor_worker_start_s": round(worker_s.median, 3),
        "actor_worker_rss_mb": footprint.largest_rss_mb("actor worker"),
        "total_pss_mb": round(footprint.total_pss_mb, 1),
    }
    harness.report("cold_start", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
