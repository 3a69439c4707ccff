"""Reads AggregateRequests: their numbers and names are checked, and bounded, before anything is looked up."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from marless.core.errors import SpecError, shown
from marless.core.limits import MAX_COUNT, MAX_KEPT, MAX_POLICIES
from marless.core.net_step import NetStep, ReturnScale
from marless.rpc import gradients
from marless.rpc.requests import check_names, check_number
from marless.rpc.v1 import common_pb2, param_store_pb2
from services.param_store.aggregation import AggregationTask
from services.param_store.keys import check_name

PREFIXES = frozenset({"policy", "critic"})
"""The nets that take steps."""


def aggregation_of(request: param_store_pb2.AggregateRequest) -> AggregationTask:
    """The aggregation that is asked for; raises SpecError for what cannot be one."""
    check_name("job", request.job)
    check_number("epoch", request.epoch)
    check_number("round", request.round)
    check_number("the number of versions to keep", request.keep, 0, MAX_KEPT)
    check_number("the number of gradients", len(request.gradients), 1, MAX_POLICIES)
    sources = _sources(request)
    heads = _versions("policies", request.policies, new=sources)
    check_number("the number of policies", len(heads), 1, MAX_POLICIES)
    if odd := [name for name in heads if gradients.is_gradient(name)]:
        raise SpecError(f"{odd[0]!r} is a gradient, and gets no next version")
    check_number(
        "the number of parts of gradients", sum(len(each.parts) for each in request.gradients), 1, MAX_POLICIES
    )
    parts = [_versions("parts of a gradient", each.parts) for each in request.gradients]
    discarded = _versions("discarded gradients", request.discarded)
    _check_gradients([name for each in (*parts, discarded) for name in each])
    for number, each in enumerate(request.gradients):
        check_number(f"the number of parts of gradient {number}", len(each.parts), 1, MAX_POLICIES)
        if not 0 < each.weight <= 1:
            raise SpecError(f"the weight of gradient {number} is {each.weight:g}; it is above 0 and at most 1")
    return AggregationTask(
        job=request.job,
        epoch=request.epoch,
        round=request.round,
        heads=heads,
        sources=sources,
        gradients=parts,
        weights=[each.weight for each in request.gradients],
        discarded=tuple(discarded),
        steps=_steps(request),
        separate=request.separate,
        keep=request.keep,
    )


def _versions(what: str, pairs: Sequence[common_pb2.PolicyVersion], *, new: Collection[str] = ()) -> dict[str, int]:
    """Versions by name; only those of `new` policies may be 0."""
    check_names(what, [each.policy for each in pairs[: MAX_POLICIES + 1]], MAX_POLICIES)
    for each in pairs:
        check_name("policy", each.policy)
        check_number(f"the version of {each.policy}", each.version, 0 if each.policy in new else 1)
    return {each.policy: each.version for each in pairs}


def _sources(request: param_store_pb2.AggregateRequest) -> dict[str, tuple[str, int]]:
    """The policies whose next versions start from other policies, with the versions of these."""
    wanted = {each.policy for each in request.policies}
    if odd := request.sources.keys() - wanted:
        raise SpecError(f"a source of {shown(min(odd))}, which is not among the policies that get a next version")
    for source in request.sources.values():
        check_name("policy", source.policy)
        check_number(f"the version of {source.policy}", source.version, 1)
        if gradients.is_gradient(source.policy):
            raise SpecError(f"{source.policy!r} is a gradient, and no policy starts from it")
    return {name: (source.policy, source.version) for name, source in request.sources.items()}


def _check_gradients(names: Sequence[str]) -> None:
    check_names("gradients", names, MAX_POLICIES)
    if odd := [name for name in names if not gradients.is_gradient(name)]:
        raise SpecError(f"{odd[0]!r} is no gradient; only gradients are applied and removed")


def _steps(request: param_store_pb2.AggregateRequest) -> dict[str, NetStep]:
    if not request.steps or not request.steps.keys() <= PREFIXES:
        raise SpecError(f"steps of {_listed(request.steps)}; give one for policy, for critic, or for both")
    return {prefix: _step(prefix, request.steps[prefix]) for prefix in sorted(request.steps, reverse=True)}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(shown, sorted(names)[: len(PREFIXES) + 1])) or "no net"


def _step(prefix: str, step: param_store_pb2.NetStep) -> NetStep:
    for what, number in (("lr", step.lr), ("eps", step.eps), ("max_grad_norm", step.max_grad_norm)):
        if not 0 <= number < math.inf:
            raise SpecError(f"the step of {prefix!r}: {what} is {number:g}; it is a finite number of at least 0")
    check_number(f"the step of {prefix!r}: target_steps", step.target_steps, 0, MAX_COUNT)
    returns = None
    if step.HasField("returns"):
        check_number(f"the step of {prefix!r}: returns.decay", step.returns.decay, 0, 1)
        returns = ReturnScale(decay=step.returns.decay, popart=step.returns.popart)
    return NetStep(
        lr=step.lr,
        eps=step.eps,
        max_grad_norm=step.max_grad_norm,
        returns=returns,
        target_steps=step.target_steps or None,
    )
