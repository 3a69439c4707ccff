"""What people are told of a Ray cluster: what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from marless.core.errors import told
from marless.rpc.addresses import is_local
from marless_ray.host import boot
from marless_ray.settings import WorkerResources, amount_of

_SHOWN = ("CPU", "GPU", "memory")
_START = "start one (`ray start --head`), or give the address of one with address=HOST:6379 or address=ray://HOST:10001"


@dataclass(frozen=True)
class Cluster:
    """What a cluster has, as it was asked last."""

    nodes: int
    total: Mapping[str, float]
    free: Mapping[str, float]
    largest: Mapping[str, float]
    """Of each resource, the most that one node has."""

    @classmethod
    def of(cls, nodes: Sequence[Mapping[str, Any]], free: Mapping[str, float]) -> Cluster:  # Any: as Ray has it
        """Build it from what `ray.nodes()` and `ray.available_resources()` say."""
        alive = [dict(each["Resources"]) for each in nodes if each["Alive"]]
        names = {name for each in alive for name in each}
        total = {name: sum(each.get(name, 0.0) for each in alive) for name in names}
        return cls(len(alive), total, free, {name: max(each.get(name, 0.0) for each in alive) for name in names})

    def lacks(self, demand: WorkerResources) -> str:
        """The resource that no node has enough of for one worker; "" if there is none."""
        wanted = demand.of_ray().items()
        return next((name for name, amount in wanted if self.largest.get(name, 0.0) < amount), "")

    def has_free(self, demand: WorkerResources) -> bool:
        """Whether as much is free, on all nodes together."""
        return all(self.free.get(name, 0.0) >= amount for name, amount in demand.of_ray().items())

    def __str__(self) -> str:
        """The cluster in words: "2 nodes with 4 CPUs (1 free), 12.0 GiB (9.0 GiB free)"."""
        own = {name for name in self.total if ":" not in name and name not in (*_SHOWN, "object_store_memory")}
        shown = [*(name for name in _SHOWN if self.total.get(name)), *sorted(own)]
        amounts = [f"{amount_of(name, self.total[name])} ({self._free(name)} free)" for name in shown]
        return f"{self.nodes} node{'s' if self.nodes != 1 else ''} with {', '.join(amounts) or 'no resources'}"

    def _free(self, name: str) -> str:
        free = self.free.get(name, 0.0)
        return amount_of(name, free) if name == "memory" else f"{free:g}"


def no_room(demand: WorkerResources, cluster: Cluster | None) -> str:
    """Why a worker waits for a place."""
    begin = f"Ray has no room for a worker of {demand}"
    if cluster is None:
        return f"{begin}, or no node that answers; see `ray status`"
    if lacking := cluster.lacks(demand):
        return f"{begin}: no node has {_at_least(demand, lacking)} ({cluster}); add such a node, or ask for less"
    if cluster.has_free(demand):
        return f"{begin} on one node, or does not start it in time: {cluster}; see `ray status`, or ask for less"
    return f"{begin}: {cluster}; add nodes, or end something else; an autoscaler adds nodes by itself"


def _at_least(demand: WorkerResources, name: str) -> str:
    return amount_of(name, demand.of_ray()[name])


def unfit(node: Mapping[str, Any], arguments: Sequence[str]) -> str:  # Any: JSON of an actor
    """Why workers cannot run on a node, of which an actor has said what it found; "" if they can."""
    where, wanted = f"Ray's node {node['host']}", version("marless")
    if node["marless"] != wanted:
        return (
            f"{where} has marless {node['marless']}, and this pool has {wanted}: install {wanted} there, for "
            f"{node['python']}"
        )
    if node["boot"] != boot() and (local := [each for each in arguments if _is_of_one_host(each)]):
        return (
            f"workers on {where} cannot reach {local[0]}: let the services listen on an address of the network, and "
            "give --advertise"
        )
    if node["missing"]:
        return f"{where} has no {node['missing'][0]}: put a copy there, at the same path"
    return ""


def _is_of_one_host(word: str) -> bool:
    host, _, port = word.rpartition(":")
    return word.startswith("unix:") or bool(host and port.isdecimal() and is_local(word))


def no_place(error: BaseException) -> str:
    """Why an actor did not come up."""
    said = str(error)
    if "No module named 'marless" in said or "No module named 'services" in said:
        wanted = version("marless")
        return f"a node of Ray has no marless {wanted}: install it there, for the Python that runs Ray"
    return f"Ray could not start a worker's actor: {told(error)}; see `ray status` and Ray's logs"


def not_connected(address: str, error: BaseException) -> str:
    """Why there is no cluster to use."""
    said = str(error)
    if "Version mismatch" in said:
        lines = " ".join(said.split())
        return (
            f"Ray at {address} is another version: {lines}; install the cluster's version of ray in the pool's Python"
        )
    if "Raylet addresses" in said or "node_ip_address" in said or "find a node" in said.lower():
        return (
            f"this host is no node of the Ray cluster at {address}: run the pool on one, or start one here (`ray "
            f"start --address={address}`), or give address=ray://HOST:10001"
        )
    if isinstance(error, ConnectionError | OSError | TimeoutError):
        return f"no Ray cluster answers at {address}; {_START}"
    return f"cannot connect to Ray at {address}: {told(error)}; {_START}"
