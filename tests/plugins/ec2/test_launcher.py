"""The launcher `ec2` against real calls of the SDK, with host programs as instances."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from marless.core.errors import OverloadedError, UnavailableError
from marless.fleet import fleet
from marless.fleet.launchers.base import LaunchOutcome
from marless.fleet.launchers.contract import check_launcher
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.rpc.v1.actor_pool_pb2 import ScaleRequest
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.common_pb2 import ListWorkersRequest
from marless.services.actor_pool import __main__ as actor_pool
from marless.services.actor_pool.__main__ import ActorPoolConfig
from marless_ec2 import group as ec2_group
from marless_ec2 import launcher as ec2
from marless_ec2 import scaling
from marless_ec2.group import LEASE, AutoScaling
from marless_ec2.settings import Ec2Settings
from tests.cloud.between import answering, changing, failing
from tests.plugins.ec2.machines import Machines, client, group, instances, machines, seen
from tests.plugins.ray.clusters.cluster import marless

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(600), pytest.mark.usefixtures("aws")]
QUICK = {"group": "actors", "poll_s": "0.2", "connect_s": "30"}
PATIENCE_S = 200.0
WHERE = "group actors in eu-central-1"


class Asks(ec2.Ec2Launcher):
    """Orders again what was refused, as a pool does."""

    async def launch(self, orders):
        answers = dict(zip(orders, await super().launch(orders), strict=True))
        while refused := [order for order, answer in answers.items() if answer.outcome is LaunchOutcome.REFUSED]:
            await asyncio.sleep(0.1)
            answers |= zip(refused, await super().launch(refused), strict=True)
        return [answers[order] for order in orders]


@dataclass
class Pool:
    """An actor pool that runs in this process, and the machines of its group."""

    peer: Peer
    machines: Machines

    async def scale(self, workers: int) -> None:
        """Ask for so many workers; the pool goes on trying after a refusal."""
        stub = ActorPoolServiceStub(self.peer.channel)
        await self.peer.call(stub.Scale, ScaleRequest(workers=workers), timeout_s=PATIENCE_S)

    async def expect_refused(self, workers: int) -> str:
        """Ask for so many workers, and be told why there are none."""
        with pytest.raises(OverloadedError) as told:
            await self.scale(workers)
        return str(told.value)

    async def workers(self) -> list[str]:
        stub = ActorPoolServiceStub(self.peer.channel)
        return [each.worker for each in (await self.peer.call(stub.ListWorkers, ListWorkersRequest())).workers]

    async def expect_workers(self, workers: int) -> None:
        """Wait until so many workers are connected; fails if they are not in time."""
        async with asyncio.timeout(PATIENCE_S):
            while len(await self.workers()) != workers:  # noqa: ASYNC110  # a pool tells nobody
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running(place: Path, workers: int = 8, slots: int = 2, **options: str) -> AsyncIterator[Pool]:
    address = f"unix:{place}/pool.sock"
    config = ActorPoolConfig(
        ServerOptions(address, Security()), "127.0.0.1:9", workers=workers, warm=0, keep_alive_s=600
    )

    def make(program, _options):
        return ec2.make(program, QUICK | options)

    with machines(address, slots=slots) as following:
        async with serving(config.server, lambda at: actor_pool.build(config, at, make)):
            peer = Peer(address, Security(), "actor_pool")
            yield Pool(peer, following)
            await peer.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    """Pools ask again at once, and the SDK does so at most twice."""
    monkeypatch.setattr(fleet, "REFUSED_S", 0.1)
    monkeypatch.setattr(scaling, "SOONEST_S", 0.05)
    monkeypatch.setattr(scaling, "ASKED_S", 1.0)
    monkeypatch.setattr(scaling, "LONGEST_S", 0.5)
    monkeypatch.setattr(ec2_group, "TRIES", 2)


async def expect(condition: Callable[[], bool], what: str) -> None:
    """Wait for what AWS tells nobody; fails if it does not come."""
    began_s = time.monotonic()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() - began_s < PATIENCE_S, what
        await asyncio.sleep(0.05)


async def test_it_passes_the_contract():
    group()
    with ExitStack() as stack:

        def make(program):
            stack.enter_context(machines(program.arguments[1]))
            return Asks(program, ec2.read(program.module, QUICK))

        await check_launcher(make, "marless.services.actor_pool.worker")
    assert (seen()["DesiredCapacity"], instances()) == (0, [])


async def test_a_group_grows_with_its_workers_up_to_its_size_and_idle_machines_end(tmp_path):
    group(most=3)
    async with running(tmp_path, idle_s="1", connect_s="10") as pool:
        assert await pool.expect_refused(4) == f"no actor workers: {WHERE} is looked at"
        await pool.expect_workers(4)
        assert seen()["DesiredCapacity"] == 2
        await expect(
            lambda: all(each["ProtectedFromScaleIn"] for each in seen()["Instances"]), "machines are protected"
        )
        with suppress(UnavailableError, OverloadedError):  # machines may take longer to start than a call waits
            await pool.scale(6)
        await pool.expect_workers(6)
        assert seen()["DesiredCapacity"] == 3
        before = set(instances())
        with pytest.raises(
            (UnavailableError, OverloadedError), match=f"all 3 machines of {WHERE} are full, and that is its max_size"
        ):
            await pool.scale(7)
        assert (len(await pool.workers()), seen()["DesiredCapacity"]) == (6, 3)
        await pool.scale(1)
        await expect(lambda: seen()["DesiredCapacity"] == 1, "idle machines end")
        assert set(instances()) < before, "the machine with work is none that was started later"
        assert len(await pool.workers()) == 1
        await pool.scale(0)
        await expect(lambda: not instances(), "the last machine ends")
    assert seen()["DesiredCapacity"] == 0


async def test_machines_that_outlive_a_lease_are_kept_and_ended_when_they_are_idle(tmp_path, aws_between):
    """AWS refuses, as moto does not, to end a machine if that would lower the desired capacity below the least one."""
    group()
    refuse = failing("ValidationError", "Currently, desiredSize equals minSize (0).")
    aws_between.handles["TerminateInstanceInAutoScalingGroup"] = lambda given, forward: (
        forward() if seen()["DesiredCapacity"] else refuse(given, forward)
    )
    async with running(tmp_path, idle_s="1") as pool:
        await pool.expect_refused(1)
        await pool.expect_workers(1)
        [kept] = instances()
        await expect(lambda: seen()["Instances"][0]["ProtectedFromScaleIn"], "the machine is protected")
        client("autoscaling").set_desired_capacity(AutoScalingGroupName="actors", DesiredCapacity=0)  # as a lease does
        await expect(lambda: seen()["DesiredCapacity"] == 1, "the machine with work is wanted again")
        assert instances() == [kept]
        await pool.scale(0)
        await expect(lambda: not instances(), "the idle machine ends")


async def test_a_machine_that_does_not_dial_in_is_ended_and_another_one_is_started(tmp_path):
    group()
    async with running(tmp_path, boot_s="1") as pool:
        pool.machines.broken = True
        await pool.expect_refused(1)
        await expect(lambda: bool(instances()), "a machine is started")
        first = instances()
        await expect(lambda: bool(instances()) and instances() != first, "it is replaced")
        pool.machines.broken = False
        await pool.expect_workers(1)


async def test_a_pool_gives_its_machines_back_and_its_lease_would(tmp_path, aws):
    group()
    async with running(tmp_path, lease_s="600") as pool:
        await pool.expect_refused(1)
        await pool.expect_workers(1)
        [lease] = client("autoscaling").describe_scheduled_actions()["ScheduledUpdateGroupActions"]
        assert (lease["ScheduledActionName"], lease["DesiredCapacity"]) == (LEASE, 0)
        assert 590 < lease["StartTime"].timestamp() - time.time() <= 600
    assert (seen()["DesiredCapacity"], instances()) == (0, [])


PERMISSION = "arn:aws:iam::1:role/pool is not authorized"
FAULTS = {
    "permission": (
        "SetDesiredCapacity",
        failing("AccessDenied", PERMISSION, 403),
        "not permitted; allow autoscaling:Set",
    ),
    "keys": ("DescribeAutoScalingGroups", failing("ExpiredToken", "", 403), "the AWS credentials have expired"),
    "throttled": (
        "DescribeAutoScalingGroups",
        failing("Throttling"),
        "AWS takes no more calls of this account for now",
    ),
    "lease": (
        "PutScheduledUpdateGroupAction",
        failing("AccessDenied", "", 403),
        "allow autoscaling:PutScheduledUpdate",
    ),
    "broken": ("DescribeAutoScalingGroups", failing("InternalFailure", "oops", 500), "InternalFailure: oops"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_aws_refuses_is_told_and_the_pool_goes_on_when_it_may(tmp_path, aws_between, fault):
    action, handle, told = FAULTS[fault]
    group()
    async with running(tmp_path) as pool:
        aws_between.handles[action] = handle
        await expect_told(pool, f"autoscaling:{action} of {WHERE} failed: ", told)
        assert seen()["DesiredCapacity"] == 0, "no machine without a lease"
        del aws_between.handles[action]
        await pool.expect_workers(1)


async def expect_told(pool: Pool, *words: str) -> None:
    said = ""
    async with asyncio.timeout(PATIENCE_S):
        while not all(word in said for word in words):
            said = await pool.expect_refused(1)
            await asyncio.sleep(0.05)


async def test_without_credentials_a_pool_waits_for_them(tmp_path, monkeypatch):
    group()
    async with running(tmp_path) as pool:
        with monkeypatch.context() as without:
            without.delenv("AWS_ACCESS_KEY_ID")
            without.delenv("AWS_SECRET_ACCESS_KEY")
            await expect_told(
                pool, "no AWS credentials (Unable to locate credentials); give this pool's machine a role"
            )
        await pool.expect_workers(1)


async def test_a_group_that_is_made_later_is_found(tmp_path):
    async with running(tmp_path) as pool:
        pool.machines.broken = True
        await expect_told(pool, f"there is no Auto Scaling {WHERE}: create it (`terraform apply`)")
        group()
        pool.machines.broken = False
        await pool.expect_workers(1)


async def test_without_a_network_a_pool_says_so(tmp_path, aws, monkeypatch):
    group()
    async with running(tmp_path, aws_s="1") as pool:
        with monkeypatch.context() as without:
            without.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
            await expect_told(
                pool, "AWS does not answer (Could not connect to the endpoint URL", "the name of the region"
            )
        await pool.expect_workers(1)


ACTIVITY = """<Activities><member><ActivityId>1</ActivityId><AutoScalingGroupName>actors</AutoScalingGroupName>
<Cause>c</Cause><StartTime>2026-11-24T12:00:00Z</StartTime><StatusCode>Failed</StatusCode><StatusMessage>%s</StatusMessage>
</member></Activities>"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("We currently do not have sufficient c6a.4xlarge capacity", "AWS has no capacity of these instance types now"),
        ("You have requested more vCPU capacity than your current vCPU limit of 32", "the account's quota of vCPUs"),
    ],
)
async def test_why_a_machine_does_not_come_is_told(tmp_path, aws_between, said, told):
    group()
    async with running(tmp_path) as pool:
        aws_between.handles["DescribeAutoScalingGroups"] = changing(("<DesiredCapacity>0<", "<DesiredCapacity>1<"))
        aws_between.handles["DescribeScalingActivities"] = answering("DescribeScalingActivities", ACTIVITY % said)
        await expect_told(pool, f"{WHERE} cannot launch a machine: {told}", said)
        aws_between.handles.clear()
        await pool.expect_workers(1)


async def test_throttled_calls_lose_no_worker_and_no_machine(tmp_path, aws_between):
    group()
    async with running(tmp_path, idle_s="0.5") as pool:
        await pool.expect_refused(3)
        await pool.expect_workers(3)
        workers, machines_ = await pool.workers(), instances()
        calls = len(aws_between.calls)
        for action in ("DescribeAutoScalingGroups", "SetInstanceProtection", "SetDesiredCapacity"):
            aws_between.handles[action] = failing("Throttling", "Rate exceeded")
        await expect(lambda: len(aws_between.calls) > calls + 6, "it is called again and again")
        assert (await pool.workers(), list(pool.machines.running)) == (workers, machines_)
        await pool.scale(4)  # there is room for it, without AWS
        aws_between.handles.clear()
        await pool.scale(0)
        await expect(lambda: not instances(), "idle machines end")


async def test_a_machine_that_its_group_ends_is_let_go_once_its_workers_have_left(tmp_path, aws_between):
    group()
    aws_between.handles["CompleteLifecycleAction"] = answering("CompleteLifecycleAction")
    async with running(tmp_path, slots=1) as pool:
        await pool.expect_refused(1)
        await pool.expect_workers(1)
        [leaving] = instances()

        def ends(given, forward):
            status, text = forward()
            before, found, after = text.partition(f"<InstanceId>{leaving}</InstanceId>")
            return status, before + found + after.replace("InService", "Terminating:Wait", 1)

        aws_between.handles["DescribeAutoScalingGroups"] = ends
        await expect(lambda: bool(aws_between.made("CompleteLifecycleAction")), "its hook is completed")
        call = aws_between.made("CompleteLifecycleAction")[0]
        assert (call["LifecycleHookName"], call["InstanceId"]) == ("leave", leaving)
        assert (call["LifecycleActionResult"], call["AutoScalingGroupName"]) == ("CONTINUE", "actors")
        del aws_between.handles["DescribeAutoScalingGroups"]
        client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=leaving, ShouldDecrementDesiredCapacity=False
        )  # as AWS goes on, which replaces it
        await expect(lambda: len(instances()) == 1 and instances() != [leaving], "another machine is started")
        await pool.expect_workers(1)


def doctor(**environment: str) -> dict[str, str]:
    shown = marless("doctor", "-o", "json", MARLESS_LAUNCHER="ec2,group=actors", **environment).stdout
    return next(each for each in json.loads(shown) if each["check"] == "launcher-ec2")


def test_doctor_looks_at_the_group_and_changes_nothing():
    found = doctor()
    assert (found["level"], found["found"]) == ("fail", f"there is no Auto Scaling {WHERE}")
    assert found["advice"] == "create it (`terraform apply`), or correct group= and region="
    group()
    found = doctor()
    assert found["level"] == "ok"
    assert found["found"] == f"{WHERE}: 0 of at most 3 machines run; ends are announced by its hook leave"
    assert instances() == []


async def test_fifty_machines_at_most_are_protected_by_one_call(aws_between):
    group(most=60)
    actors = AutoScaling(Ec2Settings("actors", "eu-central-1"))
    actors.want(60)
    actors.protect(instances(), protected=False)
    sent = [
        [key for key in call if key.startswith("InstanceIds.")] for call in aws_between.made("SetInstanceProtection")
    ]
    assert [len(each) for each in sent] == [50, 10]
    assert not any(each["ProtectedFromScaleIn"] for each in seen()["Instances"])


def left(**environment: str) -> list[dict[str, str]]:
    """What `marless fleet list` shows of machines."""
    shown = marless("fleet", "list", "-o", "json", MARLESS_LAUNCHER="ec2,group=actors", **environment)
    assert shown.returncode == 0, shown.stderr
    return [each for each in json.loads(shown.stdout) if each["launcher"] == "ec2"]


def test_machines_of_a_pool_that_is_gone_are_listed_and_reaped(aws):
    group()
    group("learners", role="learner")
    scaling, ec2_ = client("autoscaling"), client("ec2")
    actors, learners = (AutoScaling(Ec2Settings(name, aws.region, lease_s=600)) for name in ("actors", "learners"))
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
