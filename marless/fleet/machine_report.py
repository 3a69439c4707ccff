"""What a pool tells of its workers' machines: the answer to ListMachines."""

from __future__ import annotations

from marless.core.job_id import check_id
from marless.fleet.machines import MachineAccounts, MachineUse
from marless.rpc.v1 import common_pb2


def used_by(job: str, machines: MachineAccounts) -> common_pb2.ListMachinesResponse:
    """What each machine did for a job until now; raises SpecError for an id that no job has."""
    check_id(job)
    return common_pb2.ListMachinesResponse(launcher=machines.launcher, machines=map(_told, machines.of(job)))


def _told(use: MachineUse) -> common_pb2.MachineUse:
    presence, account = use.presence, use.account
    return common_pb2.MachineUse(
        machine=common_pb2.Machine(**vars(presence.machine)),
        began_s=presence.began_s,
        connected_after_s=presence.connected_after_s,
        first_task_after_s=presence.first_task_after_s,
        present_s=presence.present_s,
        starting_s=account.starting_s,
        work_s=account.work_s,
        waiting_s=account.waiting_s,
        is_released=presence.is_released and use.is_last,
        is_held=not presence.is_released and use.is_last and not presence.running,
    )
