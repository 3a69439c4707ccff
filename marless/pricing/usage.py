"""Which functions a round used, for how long, and of what size: what is priced, from nothing but its record.

The learners of this system train all policies of a shape in one stacked pass of one process. What MARLess bills is a
function per policy, per critic and per mixer (Wei et al. 2025, §5). So every function inside a learner counts as a
function of its own: the vCPU seconds that it took of its passes, at the vCPUs of a learner function, plus its part of
what its learner did in no pass at all (reading trajectories, publishing). The learner that hosted them is not counted
again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from marless.record import InvocationRecord, RoundRecord
from marless.spec import FunctionSize, FunctionsSpec

HOST = "learner"
"""A whole execution of a learner worker, in which other functions ran."""
ACTOR = "actor"
WHOLE = (ACTOR, "evaluation")
"""Functions that have a worker to themselves."""
STARTED = ("critic", "mixer", "policy")
"""Functions inside a learner that train: as functions of their own, each would have a container to itself."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One function as it was used in a round. Times are Unix seconds, spans are seconds."""

    function: str
    """actor, evaluation, what ran in a learner (see `marless.algos.base.FunctionRun`); learner: one nothing ran in."""
    name: str
    """The policy, critic, mixer, scope or agent class that it served; "" for actors."""
    group: str
    """The policy of the round that it served; "" for what served all of them: actors, joint critics, mixers, …"""
    seconds: float
    """How long it worked, at its size; without queueing and without its start."""
    vcpus: float
    memory_mb: int
    cold: bool
    """It had to be started first: nothing warm was there to run it."""
    init_s: float
    """Seconds that this start took; 0 if it was warm."""
    start_s: float
    """Of the execution, or of the stacked pass, that it ran in."""
    end_s: float


def usage(record: RoundRecord, functions: FunctionsSpec) -> tuple[Use, ...]:
    """All functions of a round, in the order of its record.

    A critic, mixer or policy inside a cold learner is cold itself, with the whole of the learner's start: as a function
    of its own it would have needed one. Post-processing and measurements run before or after them, where they are, and
    start nothing. An attempt that failed is used as any other, if the record has it. A clock that was set back makes no
    time negative: such a span counts as 0.
    """
    policies = {group.policy for group in record.groups}
    inner: defaultdict[int, list[InvocationRecord]] = defaultdict(list)
    hosts: defaultdict[int, list[InvocationRecord]] = defaultdict(list)
    for each in record.invocations:
        if each.function not in WHOLE:
            (hosts if each.function == HOST else inner)[each.index].append(each)
    overheads = {index: _shares(hosts[index], inner[index]) for index in inner}
    uses = []
    for each in record.invocations:
        if each.function in WHOLE or (each.function == HOST and not inner[each.index]):
            size = functions.actor if each.function in WHOLE else functions.learner
            uses.append(_use(each, _wall(each), size, each, policies))
        elif each.function != HOST:
            seconds = max(each.vcpu_s, 0.0) / functions.learner.vcpus + next(overheads[each.index])
            starting = hosts[each.index] if each.function in STARTED else ()
            host = max(starting, key=attrgetter("cold", "init_s"), default=each)
            uses.append(_use(each, seconds, functions.learner, host, policies))
    return tuple(uses)


def outside_of_passes(hosts: Iterable[InvocationRecord], inner: Sequence[InvocationRecord]) -> float:
    """Seconds that learners worked in no pass of any function: their walls minus the union of the passes in them."""
    return sum(_wall(host) - _covered(host, inner) for host in hosts)


def _shares(hosts: Sequence[InvocationRecord], inner: Sequence[InvocationRecord]) -> Iterator[float]:
    """Each function's part, by vCPU seconds, of what its learners did in no pass; in the order of `inner`."""
    overhead_s = outside_of_passes(hosts, inner)
    total = sum(max(each.vcpu_s, 0.0) for each in inner)
    for each in inner:
        yield overhead_s * (max(each.vcpu_s, 0.0) / total if total else 1 / len(inner))


def _wall(invocation: InvocationRecord) -> float:
    return max(invocation.end_s - invocation.start_s, 0.0)


def _covered(host: InvocationRecord, inner: Iterable[InvocationRecord]) -> float:
    """Seconds of a learner's wall in which at least one pass ran; passes of an earlier learner lie outside."""
    covered, reached = 0.0, host.start_s
    for each in sorted(inner, key=attrgetter("start_s")):
        end_s = min(each.end_s, host.end_s)
        covered += max(end_s - max(each.start_s, reached), 0.0)
        reached = max(reached, end_s)
    return covered


def _use(each: InvocationRecord, seconds: float, size: FunctionSize, host: InvocationRecord, policies: set[str]) -> Use:
    return Use(
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
