"""The launcher `ec2` against real calls of the SDK, with host programs as instances."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack

import pytest

from marless.fleet.launchers.base import Outcome
from marless.fleet.launchers.contract import check_launcher
from marless.fleet.launchers.ec2 import launcher as ec2
from marless.fleet.launchers.ec2.group import LEASE, AutoScaling
from marless.fleet.launchers.ec2.settings import Settings
from tests.cloud.machines import group, instances, machines, seen
from tests.ray.cluster import marless

boto3 = pytest.importorskip("boto3")

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(180), pytest.mark.usefixtures("aws")]
QUICK = {"group": "actors", "poll_s": "0.2", "connect_s": "30"}


class Asks(ec2.Ec2Launcher):
    """Orders again what was refused, as a pool does."""

    async def launch(self, orders):
        answers = dict(zip(orders, await super().launch(orders), strict=True))
        while refused := [order for order, answer in answers.items() if answer.outcome is Outcome.REFUSED]:
            await asyncio.sleep(0.1)
            answers |= zip(refused, await super().launch(refused), strict=True)
        return [answers[order] for order in orders]


async def test_it_passes_the_contract():
    group()
    with ExitStack() as stack:

        def make(program):
            stack.enter_context(machines(program.arguments[1]))
            return Asks(program, ec2.read(program.module, QUICK))

        await check_launcher(make, "services.actor_pool.worker")
    assert (seen()["DesiredCapacity"], instances()) == (0, [])


def left(**environment: str) -> list[dict[str, str]]:
    """What `marless fleet list` shows of machines."""
    shown = marless("fleet", "list", "-o", "json", MARLESS_LAUNCHER="ec2,group=actors", **environment)
    assert shown.returncode == 0, shown.stderr
    return [each for each in json.loads(shown.stdout) if each["launcher"] == "ec2"]


def test_machines_of_a_pool_that_is_gone_are_listed_and_reaped(aws):
    group()
    group("learners", role="learner")
    scaling, ec2_ = boto3.client("autoscaling"), boto3.client("ec2")
    actors, learners = (AutoScaling(Settings(name, aws.region, lease_s=600)) for name in ("actors", "learners"))
    actors.lease()
    actors.want(2)
    assert left() == []
    scaling.delete_scheduled_action(AutoScalingGroupName="actors", ScheduledActionName=LEASE)
    learners.lease()  # only now: moto takes actions of equal names in two groups for one
    learners.want(2)
    found = left()
    assert {each["id"] for each in found} == set(instances("actors"))
    assert {each["pool"] for each in found} == {"actors"}
    assert found[0]["what"] == "c6a.4xlarge (on-demand) in eu-central-1a"
    stray = instances("learners")[0]
    scaling.detach_instances(AutoScalingGroupName="learners", InstanceIds=[stray], ShouldDecrementDesiredCapacity=True)
    reaped = marless("fleet", "reap", "-o", "name", MARLESS_LAUNCHER="ec2,group=actors")
    assert reaped.returncode == 0, reaped.stderr
    assert set(reaped.stdout.split()) >= {stray, *(each["id"] for each in found)}
    assert (seen("actors")["DesiredCapacity"], instances("actors")) == (0, [])
    assert instances("learners"), "their pool is alive"
    assert left() == []
    alive = ec2_.describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["running"]}])["Reservations"]
    assert {each["InstanceId"] for one in alive for each in one["Instances"]} >= set(instances("learners"))
