"""Converts between the messages of the pools and the records, groups and measurements of a job."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from marless.core.errors import CorruptError
from marless.core.group import Group, LaneRecord, Versions
from marless.core.machine import MachineRecord
from marless.core.settings import Measure
from marless.jobs.record import Distances, InvocationRecord
from marless.rpc.v1 import actor_pool_pb2, common_pb2, learner_pool_pb2


def lane_of(receipt: actor_pool_pb2.RolloutReceipt) -> LaneRecord:
    """How an actor leaves its lane; raises CorruptError for a carry of another digest."""
    lane = LaneRecord(lane=receipt.index, version=receipt.lane.version, digest=receipt.lane.digest)
    if receipt.carry and hashlib.sha256(receipt.carry).hexdigest() != lane.digest:
        raise CorruptError(f"the carry that actor {lane.lane} has returned is not the one that its receipt names")
    return lane


def groups_of(groups: Iterable[Group], versions: Versions) -> list[common_pb2.Group]:
    """Messages of groups, each with the version that it starts from."""
    return [
        common_pb2.Group(
            policy=group.policy,
            agents=group.agents,
            source=common_pb2.PolicyVersion(policy=group.start, version=versions.get(group.start, 0)),
        )
        for group in groups
    ]


def versions_of(versions: Versions) -> list[common_pb2.PolicyVersion]:
    """Messages of versions by policy."""
    return [common_pb2.PolicyVersion(policy=name, version=version) for name, version in versions.items()]


def measure_of(measure: Measure) -> learner_pool_pb2.Measure:
    """Which measurements to make; their settings are in the job's spec."""
    return learner_pool_pb2.Measure(
        curvature=measure.curvature is not None,
        noise=measure.noise,
        gradients=measure.gradients,
        similarity=measure.similarity is not None,
    )


def distances_of(measured: common_pb2.Distances) -> Distances:
    """Measured distances between the agents of a class, as rows."""
    agents, values = tuple(measured.agents), measured.values
    rows = (tuple(values[row * len(agents) : (row + 1) * len(agents)]) for row in range(len(agents)))
    return Distances(agents=agents, values=tuple(rows))


def machine_of(use: common_pb2.MachineUse, pool: str, launcher: str) -> MachineRecord:
    """What a machine of a pool did for a job, with times in whole milliseconds."""
    told = {name: getattr(use.machine, name) for name in ("id", "provider", "type", "market", "zone", "vcpus")}
    times = ("began_s", "connected_after_s", "first_task_after_s", "present_s", "starting_s", "work_s", "waiting_s")
    return MachineRecord(
        pool=pool,
        launcher=launcher,
        usd_h=use.machine.usd_h if use.machine.HasField("usd_h") else None,
        released=use.is_released,
        held=use.is_held,
        **told,
        **{name: round(getattr(use, name), 3) for name in times},
    )


_TIMES = ("queued_s", "start_s", "end_s", "vcpu_s", "init_s", "ready_s", "pass_cpu_s", "init_cpu_s")
_ASIDE = frozenset(field.name for field in common_pb2.Invocation.DESCRIPTOR.fields) - {*_TIMES, "after"}


def invocations_of(invocations: Iterable[common_pb2.Invocation]) -> tuple[InvocationRecord, ...]:
    """The invocations, with times in whole microseconds, which is what clocks tell, so that records of many actors are
    short.
    """
    return tuple(
        InvocationRecord(
            **{name: getattr(each, name) for name in _ASIDE},
            **{name: round(getattr(each, name), 6) for name in _TIMES},
            after=tuple(each.after),
        )
        for each in invocations
    )
