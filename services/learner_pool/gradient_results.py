"""What the store keeps of a gradient: the arrays, and the report of the learner that computed it.

If a reply was lost, or a worker or pool died after the publish, the reply is rebuilt from the report.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import json_format

from marless.core.errors import SpecError
from marless.core.state import Arrays
from marless.learning.aggregation import gradient_file
from marless.learning.nets.serial import not_finite
from marless.rpc import gradients
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.v1 import common_pb2, learner_pool_pb2
from services.learner_pool import update_results


def name_of(task: learner_pool_pb2.LearnTask) -> str:
    """The policy under which the store keeps a task's gradient."""
    return gradients.name_of(task.gradient.learner, task.scope)


def request_id(task: learner_pool_pb2.LearnTask) -> str:
    """The idempotency key of a task's publish: its rollouts, and the versions in order of the policies' names."""
    heads = {each.policy: each.version for each in task.versions}
    heads |= {group.policy: group.source.version for group in task.groups}
    # By name, so that a repeated task has the same key, in whatever order it lists them.
    versions = [heads[name] for name in sorted(heads)]
    return gradients.request_id(task.job, task.gradient.learner, task.scope, task.gradient.rollouts, versions)


async def published(store: ParamStore, task: learner_pool_pb2.LearnTask) -> learner_pool_pb2.LearnResult | None:
    """The result of this task if the store has its gradient, else None."""
    name = name_of(task)
    listed = (await store.list(task.job)).policies.get(name)
    if listed is None or listed.req_id != request_id(task):
        return None
    version = listed.head.version
    report = (await store.get(task.job, {name: version}, (update_results.PART,)))[name].blobs[update_results.PART]
    found = json_format.Parse(bytes(report), learner_pool_pb2.LearnResult(), ignore_unknown_fields=True)
    return located(task, version, found)


def write(
    task: learner_pool_pb2.LearnTask,
    found: Mapping[str, Arrays],
    result: learner_pool_pb2.LearnResult,
) -> PolicyWrite:
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
    blobs = {gradients.PART: gradient_file.encode(found), update_results.PART: report}
    return PolicyWrite(policy=name_of(task), expected=0, req_id=request_id(task), blobs=blobs)


def located(
    task: learner_pool_pb2.LearnTask, version: int, result: learner_pool_pb2.LearnResult
) -> learner_pool_pb2.LearnResult:
    """The result with its place in the store."""
    result.gradient.CopyFrom(common_pb2.PolicyVersion(policy=name_of(task), version=version))
    return result
