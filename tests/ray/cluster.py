"""Ray clusters of this machine: several real nodes, each with its own raylet, under small limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

STORE_BYTES = 80 * 2**20
"""Memory of a node's object store, about the least that Ray takes; nothing of ours lies there."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@contextmanager
def ray_cluster(*cpus: int) -> Iterator[object]:
    """Nodes with so many CPUs each; the first is the head. All processes end with the context."""
    os.environ |= QUIET
    from ray.cluster_utils import Cluster

    limits = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], **limits})
    try:
        for each in cpus[1:]:
            cluster.add_node(num_cpus=each, object_store_memory=STORE_BYTES)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()
