"""Ray clusters of this machine: several real nodes, each with a raylet of its own, under small limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

STORE_BYTES = 80 * 2**20
"""Memory of a node's object store, about the least that Ray takes; nothing of ours lies there."""
PATIENCE_S = 60.0
ACTOR, WORKER = "ray::WorkerHost", "marless_ray.worker"
"""What the command lines of an actor's process, and of its worker's, contain."""
DRIVER = "marless_ray.driver"
_OF_NODES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""By default, Ray runs actors at a low priority, and on a machine with other load they would hardly run."""
_LIMITS = {"object_store_memory": STORE_BYTES}


@contextmanager
def ray_cluster(*cpus: int) -> Iterator[Any]:
    """Nodes with so many CPUs each; the first is the head. All processes end with the context."""
    os.environ |= _OF_NODES
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        try:
            cluster.add_node(num_cpus=cpus[0], include_dashboard=False, **_LIMITS)
        except Exception as error:
            raise AssertionError(f"Ray itself has not started here, before anything of ours: {error}") from error
        for each in cpus[1:]:
            cluster.add_node(num_cpus=each, **_LIMITS)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


@contextmanager
def further_node(address: str, python: str, **resources: float) -> Iterator[None]:
    """One more node, run by this interpreter, with one CPU and these custom resources."""

    command = [python, "-m", "ray.scripts.scripts", "start", f"--address={address}", "--num-cpus=1", "--block"]
    command += [f"--object-store-memory={STORE_BYTES}", f"--resources={json.dumps(resources)}", "--disable-usage-stats"]
    node = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        node.terminate()
        node.wait()


def processes(*words: str) -> list[int]:
    """The processes of this machine whose command lines contain all of these words."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if int(process.name) != os.getpid() and all(word in line for word in words):
            found.append(int(process.name))
    return found


def driver_of(pool: int) -> list[int]:
    """The process that speaks to Ray for this pool, if it has one; those that have ended have no command line."""
    found = []
    for driver in processes(DRIVER):
        with suppress(psutil.Error):
            found += [driver] if psutil.Process(driver).ppid() == pool else []
    return found


def eventually(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> float:
    """Wait for what no process tells; returns the seconds it took, raises AssertionError if it does not come."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < within_s, f"{what}: not within {within_s:g} s"
        time.sleep(0.02)
    return time.monotonic() - began_s


def marless(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours."""
    command = [sys.executable, "-m", "marless", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
