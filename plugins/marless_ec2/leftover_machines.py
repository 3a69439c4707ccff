"""Finds and ends machines of a fleet whose pool is gone: its lease on their group is over, or their group is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from marless.core.errors import NotFoundError
from marless.core.orphans import Orphan
from marless.fleet.launchers.base import Options
from marless_ec2.group import LEASE, AutoScaling, Json, client, group_of, made
from marless_ec2.plan import FLEET, ROLE, ScalingGroup
from marless_ec2.settings import NAME, Ec2Settings, check_installed, read

_OF_GROUP = "aws:autoscaling:groupName"
"""Tag by which AWS marks the instances of a group."""
_ROLES = ["actor", "learner"]
"""Machines of workers; the fleet may have others, such as that of its services."""
_COSTS = ["pending", "running", "stopping", "stopped"]


class LeftoverMachines:
    """The machines of the fleet to which the group of the settings belongs. Methods raise UnavailableError."""

    what = "machines"

    def __init__(self, settings: Ec2Settings) -> None:
        self._settings = settings

    def of_dead_pools(self) -> list[Orphan]:
        """Machines that no pool looks after, the oldest first."""
        try:
            fleet = AutoScaling(self._settings).describe().tags.get(FLEET, "")
        except NotFoundError:
            fleet = ""
        groups = {group.name: group for group in self._groups(fleet)} if fleet else {}
        live = {name for name in groups if self._is_leased(name)}
        found = [each for each in self._instances(fleet) if _group_of(each) not in live]
        return sorted(map(_orphan, found), key=lambda each: -each.age_s)

    def end(self, found: Sequence[Orphan]) -> None:
        """End these machines, and have their groups start no others."""
        left = [each.id for each in found]
        for name in {each.pool for each in found if each.pool}:
            group = AutoScaling(Ec2Settings(name, self._settings.region, aws_s=self._settings.aws_s))
            try:
                members = [each for each in group.describe().instances if each.id in left]
            except NotFoundError:
                continue
            # Before they are ended: a group that still wanted them would start others in their place.
            group.protect([each.id for each in members if each.is_protected], protected=False)
            group.want(0)
        if left:
            aws = self._client("ec2")
            made(lambda: aws.terminate_instances(InstanceIds=left), "ec2:terminate_instances", self._settings.where)

    def _groups(self, fleet: str) -> Iterator[ScalingGroup]:
        filters = [{"Name": f"tag:{FLEET}", "Values": [fleet]}]
        for each in self._pages("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", Filters=filters):
            yield group_of(each)

    def _is_leased(self, name: str) -> bool:
        given = {"AutoScalingGroupName": name, "ScheduledActionNames": [LEASE]}
        actions = self._pages("autoscaling", "describe_scheduled_actions", "ScheduledUpdateGroupActions", **given)
        return any(each["StartTime"] > datetime.now(UTC) for each in actions)

    def _instances(self, fleet: str) -> Iterator[Json]:
        """The instances of the fleet; if its group is gone, those that were in it."""
        tag, value = (FLEET, fleet) if fleet else (_OF_GROUP, self._settings.group)
        wanted = {f"tag:{tag}": [value], f"tag:{ROLE}": _ROLES, "instance-state-name": _COSTS}
        filters = [{"Name": name, "Values": values} for name, values in wanted.items()]
        for each in self._pages("ec2", "describe_instances", "Reservations", Filters=filters):
            yield from each["Instances"]

    def _pages(self, service: str, method: str, key: str, **given: Any) -> list[Json]:  # Any: JSON
        def read() -> list[Json]:
            pages = self._client(service).get_paginator(method).paginate(**given)
            return [each for page in pages for each in page[key]]

        found: list[Json] = made(read, f"{service}:{method}", self._settings.where)
        return found

    def _client(self, service: str) -> Any:  # Any: as of `client`
        return client(service, self._settings.region, self._settings.aws_s)


def leftovers(options: Options | None) -> LeftoverMachines | None:
    """The machines of the group that the options name; None if another launcher was chosen. Raises SpecError."""
    if options is None:
        return None
    check_installed()
    return LeftoverMachines(read("marless.services.actor_pool.worker", options))


def _group_of(instance: Json) -> str:
    return _tags(instance).get(_OF_GROUP, "")


def _tags(instance: Json) -> dict[str, str]:
    return {each["Key"]: each.get("Value", "") for each in instance.get("Tags", ())}


def _orphan(instance: Json) -> Orphan:
    market = instance.get("InstanceLifecycle", "on-demand")
    what = f"{instance['InstanceType']} ({market}) in {instance['Placement']['AvailabilityZone']}"
    age_s = (datetime.now(UTC) - instance["LaunchTime"]).total_seconds()
    return Orphan(NAME, instance["InstanceId"], _group_of(instance), what, round(age_s, 1))
