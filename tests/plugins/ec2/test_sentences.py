"""What people are told of the launcher `ec2`: its options, and what AWS answers. Needs no SDK."""

import pytest

from marless.core import process_environment
from marless.core.errors import SpecError
from marless.fleet.launchers.base import WorkerProgram
from marless_ec2 import sentences
from marless_ec2.plan import GroupInstance, ScalingGroup
from marless_ec2.settings import Ec2Settings, read

ACTORS = WorkerProgram("marless.services.actor_pool.worker", (), {}, str, process_environment.ACTOR)
SETTINGS = Ec2Settings("actors", "eu-central-1", "actor")
CALL = "autoscaling:SetDesiredCapacity"


class ClientError(Exception):
    """As the SDK has it: what AWS has answered."""

    def __init__(self, code, said="Rate exceeded"):
        super().__init__(f"An error occurred ({code}): {said}")
        self.response = {"Error": {"Code": code, "Message": said}}


class NoCredentialsError(Exception):
    """As the SDK has it."""


class EndpointConnectionError(Exception):
    """As the SDK has it."""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ClientError("AccessDenied", "arn:aws:iam::1:role/pool is not authorized"),
            f"not permitted; allow {CALL} on it to the role of this pool (arn:aws:iam::1:role/pool is not authorized)",
        ),
        (ClientError("Throttling"), "AWS takes no more calls of this account for now; it is called again, less often"),
        (
            ClientError("ExpiredToken"),
            "the AWS credentials have expired; give this pool's machine a role, or set AWS_PROFILE",
        ),
        (ClientError("ValidationError", "above max size"), "ValidationError: above max size"),
        (
            NoCredentialsError("Unable to locate credentials"),
            "no AWS credentials (Unable to locate credentials); give this pool's machine a role, or set AWS_PROFILE",
        ),
        (
            EndpointConnectionError("Could not connect to https://autoscaling.mars-1.amazonaws.com/"),
            "AWS does not answer (Could not connect to https://autoscaling.mars-1.amazonaws.com/); see the name of the "
            "region, and the network of this machine",
        ),
        (RuntimeError("broken"), "RuntimeError: broken"),
    ],
)
def test_a_failed_call_says_which_on_what_and_what_to_do(error, told):
    said = sentences.cannot(CALL, SETTINGS.where, error)
    assert said == f"{CALL} of group actors in eu-central-1 failed: {told}"


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (
            "We currently do not have sufficient c6a.4xlarge capacity in zones",
            "AWS has no capacity of these instance types",
        ),
        (
            "You have requested more vCPU capacity than your current vCPU limit of 32 allows",
            "the account's quota of vCPUs",
        ),
        ("MaxSpotInstanceCountExceeded", "the account's quota of vCPUs"),
        (
            "You are not authorized to use launch template: lt-1",
            "the group may not launch what its launch template says",
        ),
        ("The image id '[ami-1]' does not exist. AMI not found", "the launch template cannot be used"),
        ("Something new", "cannot launch a machine: Something new"),
    ],
)
def test_why_a_machine_is_not_launched(said, meaning):
    told = sentences.not_launched(SETTINGS, said)
    assert told.startswith("group actors in eu-central-1 cannot launch a machine: ")
    assert meaning in told
    assert said in told


def test_a_group_of_other_workers_or_with_a_least_size_is_refused():
    assert sentences.unfit(ScalingGroup("actors", 0, 4, 0, tags={"marless:role": "actor"}), SETTINGS) == ""
    assert sentences.unfit(ScalingGroup("actors", 0, 4, 0), SETTINGS) == ""
    assert sentences.unfit(ScalingGroup("actors", 0, 4, 0, tags={"marless:role": "learner"}), SETTINGS) == (
        "group actors in eu-central-1 is for learner workers (its tag marless:role): give the actor pool one of its own"
    )
    assert sentences.unfit(ScalingGroup("actors", 2, 4, 2), SETTINGS) == (
        "group actors in eu-central-1 keeps 2 machines (its min_size), also without work: set that to 0"
    )


def test_what_a_worker_waits_for_is_told():
    running = (GroupInstance("i-0", "InService"), GroupInstance("i-1", "Pending"))
    assert sentences.waiting(ScalingGroup("actors", 0, 4, 2, running), SETTINGS, 1) == (
        "1 of 2 machines of group actors in eu-central-1 start; workers follow when they have dialled in"
    )
    assert sentences.waiting(ScalingGroup("actors", 0, 2, 2, running), SETTINGS, 0) == (
        "all 2 machines of group actors in eu-central-1 are full, and that is its max_size: raise it, or wait"
    )
    assert sentences.waiting(ScalingGroup("actors", 0, 4, 3, running), SETTINGS, 0) == (
        "a machine of group actors in eu-central-1 is ordered (2 of 3 run)"
    )


def test_options_are_read_and_the_role_is_put_into_the_name_of_the_group():
    given = {"group": "fleet-{role}", "region": "eu-west-1", "slots": "16", "idle_s": "60"}
    assert read(ACTORS.module, given) == Ec2Settings("fleet-actor", "eu-west-1", "actor", slots=16, idle_s=60.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give the Auto Scaling group of the pool"),
        ({"group": "a", "slots": "many"}, "slots=many: give the workers of a machine"),
        ({"group": "a", "idle_s": "-1"}, "idle_s=-1: give a number of seconds above 0"),
        ({"group": "a", "size": "4"}, "no option 'size'; it has group, region, slots"),
    ],
)
def test_wrong_options_are_told(options, said):
    with pytest.raises(SpecError, match=said):
        read(ACTORS.module, options)
