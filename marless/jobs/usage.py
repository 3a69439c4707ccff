"""Usage: the functions that a round used, with durations and sizes, derived only from its record. The basis of pricing.

A learner trains all policies of a shape in one stacked pass of one process, but MARLess bills one function per policy,
critic and mixer (Wei et al. 2025, §5). Therefore every function inside a learner counts as a function of its own. Its
duration is its vCPU seconds divided by the vCPUs of a learner function, plus its share of the learner's time outside of
any pass (reading trajectories, publishing). The hosting learner is not counted again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from marless.core.settings import FunctionSize, FunctionsSpec
from marless.jobs.record import InvocationRecord, RoundRecord

HOST = "learner"
"""Function name of a whole execution of a learner worker, inside which other functions run."""
PARAMETER = "parameter"
"""Function name of an aggregation of gradients in the param_store, under schedule `stellaris`."""
ACTOR = "actor"
WHOLE = (ACTOR, "evaluation")
"""Functions that are whole executions of a worker."""
STARTED = ("critic", "mixer", "policy")
"""Functions inside a learner that train; as separate functions, each would need a container of its own."""


@dataclass(frozen=True, kw_only=True)
class FunctionUse:
    """The use of one function in a round. `start_s` and `end_s` are Unix seconds."""

    function: str
    """"actor", "evaluation", a function inside a learner (see `marless.core.group.FunctionRun`), or "learner" for a
    learner without functions inside."""
    name: str
    """The policy, critic, mixer, scope or agent class that it served; "" for actors."""
    group: str
    """The policy of the round that it served; "" for functions that served all: actors, joint critics, mixers, …"""
    seconds: float
    """Working time at its size, without queueing and start-up."""
    vcpus: float
    memory_mb: int
    cold: bool
    """True for a cold start."""
    init_s: float
    """Seconds of start-up; 0 if it was warm."""
    start_s: float
    """Start of its execution, or of the stacked pass in which it ran."""
    end_s: float


def usage(record: RoundRecord, functions: FunctionsSpec) -> tuple[FunctionUse, ...]:
    """The uses of all functions of a round, in the order of its record.

    A critic, mixer or policy inside a cold learner is cold too, with the learner's whole start-up time, because as a
    separate function it would have needed a start of its own. Post-processing and measurements run before or after them
    in the same containers, and have no start. The parameter function has the size of a learner. Failed attempts count,
    if the record has them. Negative durations, from a clock that was set back, count as 0.
    """
    policies = {group.policy for group in record.groups}
    inner: defaultdict[int, list[InvocationRecord]] = defaultdict(list)
    hosts: defaultdict[int, list[InvocationRecord]] = defaultdict(list)
    for each in record.invocations:
        if each.function not in (*WHOLE, PARAMETER):
            (hosts if each.function == HOST else inner)[each.index].append(each)
    overheads = {index: _shares(hosts[index], inner[index]) for index in inner}
    uses = []
    for each in record.invocations:
        if each.function in (*WHOLE, PARAMETER) or (each.function == HOST and not inner[each.index]):
            size = functions.actor if each.function in WHOLE else functions.learner
            uses.append(_use(each, _wall(each), size, each, policies))
        elif each.function != HOST:
            # Shares were made in the order of the record, in which this loop takes them:
            # the next one is this function's.
            seconds = max(each.vcpu_s, 0.0) / functions.learner.vcpus + next(overheads[each.index])
            starting = hosts[each.index] if each.function in STARTED else ()
            host = max(starting, key=attrgetter("cold", "init_s"), default=each)
            uses.append(_use(each, seconds, functions.learner, host, policies))
    return tuple(uses)


def outside_of_passes(hosts: Iterable[InvocationRecord], inner: Sequence[InvocationRecord]) -> float:
    """Seconds that learners spent outside of any function's pass: their durations minus the union of the passes."""
    outside_s = 0.0
    for host in hosts:
        # Passes of an earlier learner do not count.
        covered, reached = 0.0, host.start_s
        for each in sorted(inner, key=attrgetter("start_s")):
            end_s = min(each.end_s, host.end_s)
            covered += max(end_s - max(each.start_s, reached), 0.0)
            reached = max(reached, end_s)
        outside_s += _wall(host) - covered
    return outside_s


def _shares(hosts: Sequence[InvocationRecord], inner: Sequence[InvocationRecord]) -> Iterator[float]:
    """Each function's share, by vCPU seconds, of its learners' time outside of passes; in the order of `inner`."""
    overhead_s = outside_of_passes(hosts, inner)
    total = sum(max(each.vcpu_s, 0.0) for each in inner)
    for each in inner:
        yield overhead_s * (max(each.vcpu_s, 0.0) / total if total else 1 / len(inner))


def _wall(invocation: InvocationRecord) -> float:
    return max(invocation.end_s - invocation.start_s, 0.0)


def _use(
    each: InvocationRecord, seconds: float, size: FunctionSize, host: InvocationRecord, policies: set[str]
) -> FunctionUse:
    return FunctionUse(
        function=each.function,
        name=each.name,
        group=each.name if each.name in policies else "",
        seconds=seconds,
        vcpus=size.vcpus,
        memory_mb=size.memory_mb,
        cold=host.cold,
        init_s=max(host.init_s, 0.0) if host.cold else 0.0,
        start_s=each.start_s,
        end_s=each.end_s,
    )
