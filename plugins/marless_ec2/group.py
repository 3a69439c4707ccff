"""Calls of AWS about one Auto Scaling group. They block: see `asyncio.to_thread`.

The SDK is imported with the first call. It repeats calls that are throttled or get no answer, with random pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from marless.core.errors import NotFoundError, UnavailableError
from marless_ec2 import sentences
from marless_ec2.plan import GroupInstance, ScalingGroup
from marless_ec2.settings import Ec2Settings

LEASE = "marless-lease"
"""Name of the scheduled action that sets a group's desired capacity to 0 unless its pool puts it off."""
AT_ONCE = 50
"""Machines that one call may protect."""
TRIES = 5
ENDING = "autoscaling:EC2_INSTANCE_TERMINATING"
Json = dict[str, Any]  # Any: what the SDK returns


def client(service: str, region: str, aws_s: float) -> Any:  # Any: the SDK makes its classes at run time
    """A client of the SDK; raises its errors."""
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": TRIES}
    config = Config(connect_timeout=aws_s, read_timeout=aws_s, retries=retries, user_agent_extra="marless")
    return boto3.session.Session(region_name=region or None).client(service, config=config)


class AutoScaling:
    """One group. Methods raise UnavailableError with a sentence for people."""

    def __init__(self, settings: Ec2Settings) -> None:
        self._settings = settings
        self._group = {"AutoScalingGroupName": settings.group}

    def describe(self) -> ScalingGroup:
        """The group as it is; raises NotFoundError if there is none."""
        said = self._call("describe_auto_scaling_groups", AutoScalingGroupNames=[self._settings.group])
        if not said["AutoScalingGroups"]:
            raise NotFoundError(sentences.no_group(self._settings))
        return group_of(said["AutoScalingGroups"][0])

    def failure(self) -> str:
        """Why the last launch failed; "" if it did not."""
        for activity in self._call("describe_scaling_activities", **self._group, MaxRecords=5)["Activities"]:
            if activity["StatusCode"] == "Successful":
                return ""
            if activity["StatusCode"] in ("Failed", "Cancelled") and activity.get("StatusMessage"):
                return sentences.not_launched(self._settings, activity["StatusMessage"])
        return ""

    def hook(self) -> str:
        """Name of the hook for which machines wait before they end; "" if there is none."""
        hooks = self._call("describe_lifecycle_hooks", **self._group)["LifecycleHooks"]
        return next((each["LifecycleHookName"] for each in hooks if each["LifecycleTransition"] == ENDING), "")

    def lease(self) -> None:
        """Have AWS set the desired capacity to 0 after `lease_s`; replaces the lease before."""
        until = datetime.now(UTC) + timedelta(seconds=self._settings.lease_s)
        action: Json = {"ScheduledActionName": LEASE, "StartTime": until, "DesiredCapacity": 0}
        self._call("put_scheduled_update_group_action", **self._group, **action)

    def want(self, desired: int) -> None:
        """Set the desired capacity."""
        self._call("set_desired_capacity", **self._group, DesiredCapacity=desired, HonorCooldown=False)

    def protect(self, instances: Sequence[str], *, protected: bool) -> None:
        """Protect machines from being ended by their group, or let it end them."""
        for begin in range(0, len(instances), AT_ONCE):
            part = list(instances[begin : begin + AT_ONCE])
            self._call("set_instance_protection", **self._group, InstanceIds=part, ProtectedFromScaleIn=protected)

    def end(self, instance: str) -> None:
        """End this machine, and lower the desired capacity by one; no error if it has ended."""
        victim: Json = {"InstanceId": instance, "ShouldDecrementDesiredCapacity": True}
        self._call("terminate_instance_in_auto_scaling_group", "not found", **victim)

    def complete(self, hook: str, instance: str) -> None:
        """Let a machine end that waits for this hook; no error if it does not wait any more."""
        waiting: Json = {"LifecycleHookName": hook, "InstanceId": instance, "LifecycleActionResult": "CONTINUE"}
        self._call("complete_lifecycle_action", "no active lifecycle action", **self._group, **waiting)

    @cached_property
    def _aws(self) -> Any:  # Any: as of `client`
        return client("autoscaling", self._settings.region, self._settings.aws_s)

    def _call(self, method: str, gone: str = "", **given: Any) -> Json:  # Any: JSON
        """Call a method of the SDK; an error that says `gone` is none."""
        try:
            said: Json = made(
                lambda: getattr(self._aws, method)(**given), f"autoscaling:{method}", self._settings.where, gone
            )
        except UnavailableError:
            self.__dict__.pop("_aws", None)  # a client keeps the credentials, or lack of them, that it was made with
            raise
        return said


def made(call: Callable[[], Any], name: str, where: str, gone: str = "") -> Any:  # Any: what the SDK returns
    """What a call returns; {} if it fails with an error that says `gone`. Raises UnavailableError for all others.

    `name` is service and method, such as "ec2:terminate_instances"; `where` what it is called for, for people.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return call()
    except (BotoCoreError, ClientError) as error:
        if gone and gone in str(error).lower():
            return {}
        service, _, method = name.partition(":")
        action = f"{service}:" + "".join(word.capitalize() for word in method.split("_"))
        raise UnavailableError(sentences.cannot(action, where, error)) from None


def group_of(said: Json) -> ScalingGroup:
    """A group as `DescribeAutoScalingGroups` has it."""
    instances = [
        GroupInstance(each["InstanceId"], each["LifecycleState"], each.get("ProtectedFromScaleIn", False))
        for each in said.get("Instances", ())
    ]
    return ScalingGroup(
        said["AutoScalingGroupName"],
        least=said["MinSize"],
        most=said["MaxSize"],
        desired=said["DesiredCapacity"],
        instances=tuple(instances),
        tags={each["Key"]: each.get("Value", "") for each in said.get("Tags", ())},
    )
