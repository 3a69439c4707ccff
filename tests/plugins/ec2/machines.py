"""A group of moto; its instances are host programs on this machine, which start and end as its instances do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.cloud.conftest import REGION
from tests.plugins.ec2.fake_metadata import FakeMetadata, metadata

ROOT = Path(__file__).parents[3]
LOOK_S = 0.1


@cache
def _client(service: str, endpoint: str) -> Any:
    import boto3

    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    return boto3.client(service, endpoint_url=endpoint, region_name=REGION, **keys)


def client(service: str) -> Any:
    """Speaks to moto, whatever is between it and the code under test."""
    return _client(service, os.environ["MOTO_ENDPOINT"])


def group(name: str = "actors", *, most: int = 3, least: int = 0, role: str = "actor", hook: bool = True) -> str:
    """Create a group as deploying.md describes it; returns its name."""
    ec2, scaling = client("ec2"), client("autoscaling")
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    template = ec2.create_launch_template(
        LaunchTemplateName=name, LaunchTemplateData={"ImageId": image, "InstanceType": "c6a.4xlarge"}
    )["LaunchTemplate"]["LaunchTemplateId"]
    tags = {"marless:fleet": "test", "marless:role": role}
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=name,
        LaunchTemplate={"LaunchTemplateId": template, "Version": "$Latest"},
        **{"MinSize": least, "MaxSize": most, "DesiredCapacity": least, "AvailabilityZones": ["eu-central-1a"]},
        NewInstancesProtectedFromScaleIn=True,
        Tags=[{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in tags.items()],
    )
    if hook:
        scaling.put_lifecycle_hook(
            **{"AutoScalingGroupName": name, "LifecycleHookName": "leave"},
            LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        )
    return name


def seen(name: str = "actors") -> dict[str, Any]:
    """The group as AWS has it."""
    found = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    return dict(found[0])


def instances(name: str = "actors") -> list[str]:
    """The ids of its instances; none if there is no such group."""
    found = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    return [each["InstanceId"] for one in found for each in one["Instances"]]


@dataclass
class Machine:
    """One instance: its host program and its metadata service."""

    process: subprocess.Popen[bytes]
    metadata: FakeMetadata
    stack: ExitStack

    def end(self) -> None:
        """As AWS ends it."""
        self.process.kill()
        self.process.wait()
        self.stack.close()


@dataclass
class Machines:
    """All instances of a group."""

    pool: str
    slots: int
    name: str
    arguments: tuple[str, ...] = ()
    broken: bool = False
    """Start none: as if user data had failed."""
    running: dict[str, Machine] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def follow(self) -> None:
        """Start and end host programs as the group has instances, until `stop`."""
        while not self.stop.wait(LOOK_S):
            alive = instances(self.name)
            for instance in [each for each in alive if each not in self.running and not self.broken]:
                self.running[instance] = self._begin(instance)
            for instance in [each for each in self.running if each not in alive]:
                self.running.pop(instance).end()

    def _begin(self, instance: str) -> Machine:
        stack = ExitStack()
        service = stack.enter_context(metadata(instance))
        command = [sys.executable, "-P", "-m", "marless_ec2.host", "--pool", self.pool]
        command += ["--slots", f"{self.slots}", "--metadata", service.address, *self.arguments]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        return Machine(subprocess.Popen(command, cwd=ROOT, env=clean), service, stack)


@contextmanager
def machines(pool: str, *arguments: str, slots: int = 2, name: str = "actors") -> Iterator[Machines]:
    """Follow a group; everything is ended with the context."""
    following = Machines(pool, slots, name, arguments)
    thread = threading.Thread(target=following.follow)
    thread.start()
    try:
        yield following
    finally:
        following.stop.set()
        thread.join()
        for machine in following.running.values():
            machine.end()
