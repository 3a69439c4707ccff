"""Encodes an update's report (metrics, function runs, distances) for the store, which keeps it with the new versions.

If an update's reply was lost, or its worker or pool died after publishing, the reply is rebuilt from these parts, and
the update is not repeated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from marless.rpc import idempotency
from marless.rpc.param_store import ParamStore
from marless.rpc.v1 import common_pb2, learner_pool_pb2

PART = "outcome"


def key_of(update: learner_pool_pb2.UpdateRequest | learner_pool_pb2.LearnTask) -> int | str:
    """What an update's versions are published for: its round and, of jobs whose rollouts belong to no round, these.

    Of such a job, an update of the same round from other rollouts is another one.
    """
    if not update.rollouts:
        return update.round
    rollouts = hashlib.sha256(",".join(map(str, update.rollouts)).encode()).hexdigest()
    return f"{update.round}-{rollouts[:32]}"


def result(versions: Mapping[str, int]) -> learner_pool_pb2.LearnResult:
    """A result that holds only versions."""
    return learner_pool_pb2.LearnResult(
        versions=[common_pb2.PolicyVersion(policy=name, version=version) for name, version in versions.items()]
    )


def encode(
    names: Collection[str],
    metrics: Mapping[str, Mapping[str, float]],
    functions: Iterable[common_pb2.Invocation],
    distances: Iterable[common_pb2.Distances] = (),
) -> dict[str, bytes]:
    """The report part of each policy and joint critic; what belongs to none of them goes into the first.

    Each part lists all names, so that `published` finds the joint critics from the policies.
    """
    first = next(iter(names))
    runs: dict[str, list[list[str | float | list[str]]]] = {name: [] for name in names}
    for run in functions:
        runs[run.name if run.name in runs else first].append(
            [run.id, run.function, run.name, run.index, run.start_s, run.end_s, run.vcpu_s, list(run.after)]
        )
    parts: dict[str, dict[str, object]] = {
        name: {"metrics": dict(metrics.get(name, {})), "functions": runs[name], "with": list(names)} for name in names
    }
    if measured := [[list(each.agents), list(each.values)] for each in distances]:
        parts[first]["distances"] = measured
    return {name: json.dumps(part).encode() for name, part in parts.items()}


async def are_stored(
    store: ParamStore, job: str, key: int | str, made: learner_pool_pb2.LearnResult | learner_pool_pb2.UpdateResponse
) -> bool:
    """True if the versions that the update of this key made are still the heads of their policies."""
    policies = (await store.list(job)).policies
    return all(
        each.policy in policies
        and policies[each.policy].head.version == each.version
        and policies[each.policy].req_id == idempotency.request_id(job, key, each.policy)
        for each in made.versions
    )


async def published(
    store: ParamStore, job: str, key: int | str, names: Collection[str]
) -> learner_pool_pb2.LearnResult | None:
    """The result of the update of this key of `names`, policies of one scope; None unless all of it is published.

    It includes joint critics that were published with them, whether `names` has them or not.
    """
    policies = (await store.list(job)).policies

    def made(wanted: Iterable[str]) -> bool:
        return all(
            name in policies and policies[name].req_id == idempotency.request_id(job, key, name) for name in wanted
        )

    if not made(names):
        return None
    parts = await _parts(store, job, {name: policies[name].head.version for name in names})
    others = [name for name in next(iter(parts.values()))["with"] if name not in parts]
    if not made(others):
        return None
    parts |= await _parts(store, job, {name: policies[name].head.version for name in others})
    found = result({name: policies[name].head.version for name in parts})
    for name, part in parts.items():
        _add_report(part, found, name)
    return found


async def _parts(store: ParamStore, job: str, versions: Mapping[str, int]) -> dict[str, dict[str, Any]]:  # Any: JSON
    stored = await store.get(job, versions, (PART,)) if versions else {}
    return {name: json.loads(bytes(each.blobs[PART])) for name, each in stored.items()}


def _add_report(part: Mapping[str, Any], found: learner_pool_pb2.LearnResult, name: str) -> None:  # Any: JSON
    """Add the content of one policy's report part to a result."""
    found.metrics[name].values.update(part["metrics"])
    for id_, function, served, index, start_s, end_s, vcpu_s, after in part["functions"]:
        found.functions.add(
            id=id_,
            function=function,
            name=served,
            index=index,
            start_s=start_s,
            end_s=end_s,
            vcpu_s=vcpu_s,
            after=after,
        )
    for agents, values in part.get("distances", ()):
        found.distances.add(agents=agents, values=values)
