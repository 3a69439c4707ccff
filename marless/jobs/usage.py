"""Usage: the functions that a round used, with durations and sizes, derived only from its record. The basis of pricing.

A learner trains all policies of a shape in one stacked pass of one process, but MARLess bills one function per policy,
critic and mixer (Wei et al. 2025, §5). Therefore every function inside a learner counts as a function of its own. Its
duration is its vCPU seconds divided by the vCPUs of a learner function, plus its share of the learner's time outside of
any pass (reading trajectories, publishing). The hosting learner is not counted again.

A duration holds the time in which a function waited for a core that other programs used. A job may therefore count CPU
seconds instead (`bill.time: cpu`):

- an actor, an evaluation, the parameter function, and a learner without functions inside: its CPU seconds, but at most
  its duration, because one that keeps several cores busy has more CPU seconds than it takes;
- a function inside a learner: the CPU seconds of its passes, plus its share of all other CPU seconds of the learner's
  process, divided by the vCPUs of a learner function;
- a start: the CPU seconds of the worker's process until it was ready;
- what has no CPU seconds, such as an attempt whose worker was lost: as by duration.

So time in which a function waits for data or for the store is not counted either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from marless.core.settings import FunctionSize, FunctionsSpec
from marless.jobs.prices import BilledStart, BilledTime
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
    """Working time at its size, without queueing for a worker, and without start-up."""
    vcpus: float
    memory_mb: int
    cold: bool
    """True for a cold start."""
    init_s: float
    """Seconds of start-up; 0 if it was warm."""
    start_s: float
    """Start of its execution, or of the stacked pass in which it ran."""
    end_s: float


def usage(
    record: RoundRecord, functions: FunctionsSpec, time: BilledTime = "duration", starts: BilledStart = "function"
) -> tuple[FunctionUse, ...]:
    """The uses of all functions of a round, in the order of its record, by their durations or their CPU seconds.

    By default, `starts` is "function": every actor that ran in this round on a worker which started in it is cold, and
    so is every critic, mixer or policy inside a cold learner, each with the whole start-up time of that process:
    each would have needed a start of its own. (The papers run each in a container of its own, and charge for the starts
    of the first round.) With "process", a worker starts once: for its first actor, or in equal parts for the critics,
    mixers and policies inside a learner. Evaluations run in the containers of actors, and post-processing and
    measurements before or after the others in the same containers: they have no start.

    The parameter function has the size of a learner. Failed attempts count, if the record has them. Negative durations,
    from a clock that was set back, count as 0.
    """
    policies = {group.policy for group in record.groups}
    inner: defaultdict[int, list[InvocationRecord]] = defaultdict(list)
    hosts: defaultdict[int, list[InvocationRecord]] = defaultdict(list)
    for each in record.invocations:
        if each.function not in (*WHOLE, PARAMETER):
            (hosts if each.function == HOST else inner)[each.index].append(each)
    by_cpu = time == "cpu"
    inner_s = {
        index: (_cpu_seconds if by_cpu else _seconds)(hosts[index], each, functions.learner.vcpus)
        for index, each in inner.items()
    }
    uses = []
    start_of = {each.worker: each for each in record.invocations if each.function == ACTOR and each.cold}
    for each in record.invocations:
        if each.function in (*WHOLE, PARAMETER) or (each.function == HOST and not inner[each.index]):
            size = functions.actor if each.function in WHOLE else functions.learner
            shared = each.function == ACTOR and not each.cold and starts == "function"
            host = start_of.get(each.worker, each) if shared else each
            uses.append(_use(each, working_s(each, time), size, host, policies, time))
        elif each.function != HOST:
            # They are in the order of the record, in which this loop takes them: the next one is this function's.
            seconds = next(inner_s[each.index])
            starting = hosts[each.index] if each.function in STARTED else ()
            host = max(starting, key=attrgetter("cold", "init_s"), default=each)
            sharing = 1 if starts == "function" else sum(other.function in STARTED for other in inner[each.index])
            uses.append(_use(each, seconds, functions.learner, host, policies, time, max(sharing, 1)))
    return tuple(uses)


def working_s(each: InvocationRecord, time: BilledTime) -> float:
    """Seconds that a whole execution of a worker works: its duration, or its CPU seconds, which are at most that."""
    return _at_most(_wall(each), each.cpu_s) if time == "cpu" else _wall(each)


def waiting(records: Iterable[RoundRecord]) -> float:
    """Seconds that actors and evaluations waited while they ran, as a fraction of their CPU seconds; 0 without any.

    On cores of their own they wait for next to nothing: so this tells how far other programs have lengthened them. It
    counts a game in a process of its own, and one that waits for a clock, as waiting, too.
    """
    acting = [each for record in records for each in record.invocations if each.function in WHOLE and each.cpu_s > 0]
    cpu_s = sum(each.cpu_s for each in acting)
    return max(sum(map(_wall, acting)) / cpu_s - 1, 0.0) if cpu_s else 0.0


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


def _seconds(hosts: Sequence[InvocationRecord], inner: Sequence[InvocationRecord], vcpus: float) -> Iterator[float]:
    """Each function's vCPU seconds at its size, and its share, by these, of its learners' time outside of passes."""
    overhead_s, total = outside_of_passes(hosts, inner), _sum(each.vcpu_s for each in inner)
    for each in inner:
        vcpu_s = max(each.vcpu_s, 0.0)
        yield vcpu_s / vcpus + overhead_s * (vcpu_s / total if total else 1 / len(inner))


def _cpu_seconds(hosts: Sequence[InvocationRecord], inner: Sequence[InvocationRecord], vcpus: float) -> Iterator[float]:
    """Each function's share of its learners' CPU seconds, by those of its passes, at its size.

    If none were measured, shares are by the durations of passes. Learners that are not in the record, because their
    result came from the store, have none beside those of their passes.
    """
    measured_s = _sum(each.pass_cpu_s for each in inner)
    weights = [max(each.pass_cpu_s if measured_s else each.vcpu_s, 0.0) for each in inner]
    whole_s = sum(each.cpu_s if each.cpu_s > 0 else _wall(each) for each in hosts)
    # Measured CPU seconds of passes are at most the process's, but those that a model has made need not be.
    whole_s = max(whole_s, measured_s) or sum(weights)
    for weight in weights:
        yield whole_s / vcpus * (weight / sum(weights) if any(weights) else 1 / len(inner))


def _sum(seconds: Iterable[float]) -> float:
    return sum(max(each, 0.0) for each in seconds)


def start_s(host: InvocationRecord, time: BilledTime) -> float:
    """Seconds of the start of a worker, if this was its first invocation; else 0."""
    if not host.cold:
        return 0.0
    init_s = max(host.init_s, 0.0)
    return _at_most(init_s, host.init_cpu_s) if time == "cpu" else init_s


def _at_most(seconds: float, cpu_s: float) -> float:
    """CPU seconds, unless there are more of them than seconds, or they are not known."""
    return min(seconds, cpu_s) if cpu_s > 0 else seconds


def _wall(invocation: InvocationRecord) -> float:
    return max(invocation.end_s - invocation.start_s, 0.0)


def _use(
    each: InvocationRecord,
    seconds: float,
    size: FunctionSize,
    host: InvocationRecord,
    policies: set[str],
    time: BilledTime,
    sharing: int = 1,
) -> FunctionUse:
    return FunctionUse(
        function=each.function,
        name=each.name,
        group=each.name if each.name in policies else "",
        seconds=seconds,
        vcpus=size.vcpus,
        memory_mb=size.memory_mb,
        cold=host.cold,
        init_s=start_s(host, time) / sharing,
        start_s=each.start_s,
        end_s=each.end_s,
    )
