"""Results of updates and gradients in the store: published with their reports, or set aside until the store takes them.

The store keeps the report of a learner (metrics, function runs, distances) with the versions or the gradient that it
has published. If a reply was lost, or a worker or pool died after the publish, the reply is rebuilt from the report,
and nothing is computed again. A gradient reads the acting weights of other learners from the store.

If the store could not take an update's result, because its epoch was over or the store was down, the worker writes it
into a file of its pool, wherever the worker runs. The pool publishes the file when the update is requested again with
the same inputs.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from marless.core import private_files
from marless.core.errors import (
    FencedError,
    MarlessError,
    NotFoundError,
    OverloadedError,
    SpecError,
    UnauthenticatedError,
    UnavailableError,
)
from marless.core.log import structlog
from marless.core.state import Arrays
from marless.learning.aggregation import gradient_file
from marless.learning.nets.serial import decode_acting, not_finite
from marless.rpc import gradients, param_store
from marless.rpc.concurrency import gather
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.refs import Borrowed
from marless.rpc.v1 import common_pb2, param_store_pb2
from marless.rpc.v1 import learner_pool_pb2 as pb

PART = "outcome"


def update_key(update: pb.UpdateRequest | pb.LearnTask) -> int | str:
    """What an update's versions are published for: its round and, of jobs whose rollouts belong to no round, these.

    Of such a job, an update of the same round from other rollouts is another one.
    """
    if not update.rollouts:
        return update.round
    rollouts = hashlib.sha256(",".join(map(str, update.rollouts)).encode()).hexdigest()
    return f"{update.round}-{rollouts[:32]}"


def result_of(versions: Mapping[str, int]) -> pb.LearnResult:
    """A result that holds only versions."""
    return pb.LearnResult(
        versions=[common_pb2.PolicyVersion(policy=name, version=version) for name, version in versions.items()]
    )


def encode_reports(
    names: Collection[str],
    metrics: Mapping[str, Mapping[str, float]],
    functions: Iterable[common_pb2.Invocation],
    distances: Iterable[common_pb2.Distances] = (),
) -> dict[str, bytes]:
    """The report part of each policy and joint critic; what belongs to none of them goes into the first.

    Each part lists all names, so that `published_update` finds the joint critics from the policies.
    """
    first = next(iter(names))
    runs: dict[str, list[list[str | float | list[str]]]] = {name: [] for name in names}
    for run in functions:
        runs[run.name if run.name in runs else first].append(
            [
                *(run.id, run.function, run.name, run.index, run.start_s, run.end_s),
                *(run.vcpu_s, run.pass_cpu_s, list(run.after)),
            ]
        )
    parts: dict[str, dict[str, object]] = {
        name: {"metrics": dict(metrics.get(name, {})), "functions": runs[name], "with": list(names)} for name in names
    }
    if measured := [[list(each.agents), list(each.values)] for each in distances]:
        parts[first]["distances"] = measured
    return {name: json.dumps(part).encode() for name, part in parts.items()}


async def are_stored(store: ParamStore, job: str, key: int | str, made: pb.LearnResult | pb.UpdateResponse) -> bool:
    """True if the versions that the update of this key made are still the heads of their policies."""
    policies = (await store.list(job)).policies
    return all(
        each.policy in policies
        and policies[each.policy].head.version == each.version
        and policies[each.policy].req_id == param_store.publish_key(job, key, each.policy)
        for each in made.versions
    )


async def published_update(
    store: ParamStore, job: str, key: int | str, names: Collection[str]
) -> pb.LearnResult | None:
    """The result of the update of this key of `names`, policies of one scope; None unless all of it is published.

    It includes joint critics that were published with them, whether `names` has them or not.
    """
    policies = (await store.list(job)).policies

    def made(wanted: Iterable[str]) -> bool:
        return all(
            name in policies and policies[name].req_id == param_store.publish_key(job, key, name) for name in wanted
        )

    if not made(names):
        return None
    parts = await _report_parts(store, job, {name: policies[name].head.version for name in names})
    others = [name for name in next(iter(parts.values()))["with"] if name not in parts]
    if not made(others):
        return None
    parts |= await _report_parts(store, job, {name: policies[name].head.version for name in others})
    found = result_of({name: policies[name].head.version for name in parts})
    for name, part in parts.items():
        _add_report(part, found, name)
    return found


async def _report_parts(
    store: ParamStore, job: str, versions: Mapping[str, int]
) -> dict[str, dict[str, Any]]:  # Any: JSON
    stored = await store.get(job, versions, (PART,)) if versions else {}
    return {name: json.loads(bytes(each.blobs[PART])) for name, each in stored.items()}


def _add_report(part: Mapping[str, Any], found: pb.LearnResult, name: str) -> None:  # Any: JSON
    """Add the content of one policy's report part to a result."""
    found.metrics[name].values.update(part["metrics"])
    for id_, function, served, index, start_s, end_s, vcpu_s, pass_cpu_s, after in part["functions"]:
        found.functions.add(
            id=id_,
            function=function,
            name=served,
            index=index,
            start_s=start_s,
            end_s=end_s,
            vcpu_s=vcpu_s,
            pass_cpu_s=pass_cpu_s,
            after=after,
        )
    for agents, values in part.get("distances", ()):
        found.distances.add(agents=agents, values=values)


PASSING = (FencedError, UnavailableError, OverloadedError, UnauthenticatedError)
"""Errors of a publish that may succeed later; FencedError: under the epoch of the next coordinator;
UnauthenticatedError: with the next token."""
_log = structlog.get_logger("learner")


async def set_aside(
    borrowed: Borrowed, spare: common_pb2.Ref, writes: Sequence[PolicyWrite], error: MarlessError
) -> pb.Unpublished:
    """Write the blobs that were not published because of `error` to the task's spare file, which is the pool's.

    Raises `error` if that fails, too.
    """
    content = b"".join(blob for write in writes for blob in write.blobs.values())
    try:
        await borrowed.write(spare, [slice(0, len(content))], memoryview(content))
    except MarlessError as problem:
        _log.warning("update.not_kept", error=str(problem))
        raise error from None
    policies = [
        param_store_pb2.PolicyPublish(
            policy=write.policy,
            expected=write.expected,
            req_id=write.req_id,
            blobs=[param_store_pb2.BlobInfo(part=part, bytes=len(blob)) for part, blob in write.blobs.items()],
        )
        for write in writes
    ]
    return pb.Unpublished(policies=policies, error_code=type(error).__name__, error=str(error))


def is_whole(left: pb.Unpublished, spare: Path) -> bool:
    """True if the file has all bytes that the worker says to have left in it."""
    declared = sum(blob.bytes for policy in left.policies for blob in policy.blobs)
    with suppress(FileNotFoundError):
        return 0 < declared <= spare.stat().st_size
    return False


def writes_set_aside(left: pb.Unpublished, spare: Path) -> Iterator[PolicyWrite]:
    """The writes that a worker has left in a file of its pool, to be published now."""
    descriptor = private_files.open_own(spare, os.O_RDONLY)
    try:
        view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))  # stays mapped as long as the blobs exist
    finally:
        os.close(descriptor)
    at = 0
    for each in left.policies:
        blobs: dict[str, bytes | memoryview] = {}
        for blob in each.blobs:
            blobs[blob.part] = view[at : at + blob.bytes]
            at += blob.bytes
        yield PolicyWrite(policy=each.policy, expected=each.expected, req_id=each.req_id, blobs=blobs)


def gradient_request_id(task: pb.LearnTask) -> str:
    """The idempotency key of a task's publish: its rollouts, and the versions in order of the policies' names."""
    heads = {each.policy: each.version for each in task.versions}
    heads |= {group.policy: group.source.version for group in task.groups}
    # By name, so that a repeated task has the same key, in whatever order it lists them.
    versions = [heads[name] for name in sorted(heads)]
    return gradients.request_id(task.job, task.gradient.learner, task.scope, task.gradient.rollouts, versions)


async def published_gradient(store: ParamStore, task: pb.LearnTask) -> pb.LearnResult | None:
    """The result of this task if the store has its gradient, else None."""
    name = gradients.name_of(task.gradient.learner, task.scope)
    listed = (await store.list(task.job)).policies.get(name)
    if listed is None or listed.req_id != gradient_request_id(task):
        return None
    version = listed.head.version
    report = (await store.get(task.job, {name: version}, (PART,)))[name].blobs[PART]
    found = json_format.Parse(bytes(report), pb.LearnResult(), ignore_unknown_fields=True)
    return located(task, version, found)


def gradient_write(task: pb.LearnTask, found: Mapping[str, Arrays], result: pb.LearnResult) -> PolicyWrite:
    """The publish of a gradient and of its report, as the first version under its name.

    Raises SpecError for values that are not finite.
    """
    for policy, arrays in found.items():
        if odd := not_finite(arrays):
            raise SpecError(
                f"the gradient of {policy!r} has NaN or infinite values ({odd}) and was not published; lower "
                "algorithm.lr or algorithm.max_grad_norm, or scale the environment's rewards"
            )
    report = json_format.MessageToJson(result, preserving_proto_field_name=True, indent=None).encode()
    blobs = {gradients.PART: gradient_file.encode(found), PART: report}
    return PolicyWrite(
        policy=gradients.name_of(task.gradient.learner, task.scope),
        expected=0,
        req_id=gradient_request_id(task),
        blobs=blobs,
    )


def located(task: pb.LearnTask, version: int, result: pb.LearnResult) -> pb.LearnResult:
    """The result with its place in the store."""
    result.gradient.CopyFrom(
        common_pb2.PolicyVersion(policy=gradients.name_of(task.gradient.learner, task.scope), version=version)
    )
    return result


async def peer_weights(
    store: ParamStore, job: str, peers: Iterable[pb.VersionSet], policies: Collection[str]
) -> tuple[Mapping[str, Arrays], ...]:
    """The acting weights of these policies for each peer; equal peers are given once, and versions that are gone left
    out. The least ratio over equal peers is that of one of them.
    """
    given = (sorted((each.policy, each.version) for each in peer.versions) for peer in peers)
    sets = dict.fromkeys(tuple(each for each in one if each[0] in policies) for one in given)
    found = await gather(_weights_of_one(store, job, dict(each)) for each in sets)
    return tuple(each for each in found if each)


async def _weights_of_one(store: ParamStore, job: str, versions: Mapping[str, int]) -> dict[str, Arrays]:
    if not versions:
        return {}
    try:
        stored = await store.get(job, versions, ("acting",))
    except NotFoundError:
        # One of them is gone; the store does not say that the others are there, so each is asked for by itself.
        if len(versions) == 1:
            return {}
        alone = await gather(_weights_of_one(store, job, {name: version}) for name, version in versions.items())
        return {name: arrays for each in alone for name, arrays in each.items()}
    return {name: decode_acting(bytes(each.blobs["acting"])).acting for name, each in stored.items()}
