"""A Ray cluster of this machine whose autoscaler adds and removes nodes: Ray's own, with nodes that are processes.

`ray.cluster_utils.AutoscalingCluster` is no use here: it begins and ends with `ray stop --force`, which ends every
cluster of the machine, and the file that it reads is not in Ray's wheel.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.plugins.ray.clusters.cluster import STORE_BYTES, eventually, processes

IDLE_S = 6.0
"""Seconds after which the autoscaler removes a node that nothing uses."""
_HEAD = "f" * 51 + "00000"
"""The id under which Ray's provider of fake nodes knows the head."""


@dataclass(frozen=True)
class Autoscaled:
    """A cluster of a head and as many further nodes as are needed."""

    address: str
    client: str
    """The address for Ray's client: ray://HOST:PORT."""
    place: Path

    def nodes(self) -> int:
        """How many nodes there are, by their raylets."""
        return len(processes("/raylet ", str(self.place)))


@contextmanager
def autoscaled(most: int) -> Iterator[Autoscaled]:
    """A head with one CPU, and up to `most` - 1 nodes with one CPU each; all processes end with the context."""
    from ray.util import get_node_ip_address

    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as name:
        place, host, (port, client) = Path(name), get_node_ip_address(), _free_ports(2)
        cluster = Autoscaled(f"{host}:{port}", f"ray://{host}:{client}", place)
        (place / "autoscaling.json").write_text(json.dumps(_config(cluster.address, most)))
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", "--num-cpus=1"]
        command += [f"--autoscaling-config={place}/autoscaling.json", f"--temp-dir={place}", "--disable-usage-stats"]
        command += [f"--ray-client-server-port={client}", "--include-dashboard=false"]
        command += [f"--object-store-memory={STORE_BYTES}"]
        try:
            with (place / "start.log").open("wb") as log:
                subprocess.run(command, check=True, stdout=log, stderr=log, env=os.environ | _ENVIRONMENT)
            eventually(lambda: cluster.nodes() == 1, "the head starts")
            yield cluster
        finally:
            _end(place)


_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
"""Its nodes are processes. By its name, `fake_multinode`, Ray would read a file of defaults that its wheel lacks."""
_NOTHING_TO_RUN = (
    *("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands"),
    *("head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files", "rsync_exclude", "rsync_filter"),
)
_ENVIRONMENT = {
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": _HEAD,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD,
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_worker_niceness": "0",
}


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, as Ray takes no port 0."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _config(address: str, most: int) -> dict[str, object]:
    provider = {"type": "external", "module": _PROVIDER, "head_node_id": _HEAD, "gcs_address": address}
    more = {"CPU": 1, "object_store_memory": STORE_BYTES}
    return {
        "cluster_name": "autoscaled",
        "max_workers": most - 1,
        "idle_timeout_minutes": IDLE_S / 60,
        "provider": provider | {"launch_multiple": True, "disable_node_updaters": True},
        "head_node_type": "ray.head.default",
        **{key: [] for key in _NOTHING_TO_RUN},
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
            "more": {"resources": more, "node_config": {}, "min_workers": 0, "max_workers": most - 1},
        },
    }


def _end(place: Path) -> None:
    """Kill all processes of the cluster: those whose command lines name its directory."""

    def left() -> list[int]:
        found = processes(str(place))
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return found

    eventually(lambda: not left(), "the cluster ends")
