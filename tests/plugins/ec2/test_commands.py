"""`marless cloud down` and `up` on a deployment of moto: what is stopped, what is kept, and what is told."""

import pytest

from tests.plugins.ec2.machines import client, group, instances, seen
from tests.plugins.ray.clusters.cluster import marless

pytestmark = [pytest.mark.cloud, pytest.mark.usefixtures("aws")]


def control() -> str:
    """An instance with the tags of the control plane of the deployment "test", to which groups of tests belong."""
    ec2 = client("ec2")
    tags = [{"Key": "marless:fleet", "Value": "test"}, {"Key": "Name", "Value": "test-control"}]
    made = ec2.run_instances(
        ImageId=ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"],
        **{"MinCount": 1, "MaxCount": 1},
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    return str(made["Instances"][0]["InstanceId"])


def state(instance: str) -> str:
    [found] = client("ec2").describe_instances(InstanceIds=[instance])["Reservations"]
    return str(found["Instances"][0]["State"]["Name"])


def test_a_deployment_is_stopped_with_its_machines_and_started_again():
    instance = control()
    group()
    client("autoscaling").set_desired_capacity(AutoScalingGroupName="actors", DesiredCapacity=2)
    assert [each["ProtectedFromScaleIn"] for each in seen()["Instances"]] == [True, True]
    done = marless("cloud", "down", "--keep-data", "--name", "test")
    assert done.returncode == 0 and done.stderr.endswith(
        "marless: the deployment test in eu-central-1 is stopped, 2 further machines end; `marless cloud up` starts "
        "it, and its jobs go on\n"
    )
    assert (state(instance), instances(), seen()["DesiredCapacity"]) == ("stopped", [], 0)
    done = marless("cloud", "up", "--name", "test")
    assert done.returncode == 0 and "answer in about a minute" in done.stderr, done.stderr
    assert (state(instance), instances()) == ("running", [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("down", "--keep-data"), "there is no deployment marless in eu-central-1: correct --name and --region"),
        (("up", "--name", "team"), "there is no deployment team in eu-central-1"),
        (("down",), "give --keep-data to stop the machines and keep the rest; `terraform destroy` ends everything"),
    ],
)
def test_what_cannot_be_done_is_told_and_nothing_is_stopped(words, said):
    instance = control()
    done = marless("cloud", *words)
    assert done.returncode > 0 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert state(instance) == "running"


def test_a_permission_that_lacks_is_named(aws_between):
    from tests.cloud.between import failing

    control()
    aws_between.handles["StopInstances"] = failing("UnauthorizedOperation", "no", 403)
    done = marless("cloud", "down", "--keep-data", "--name", "test")
    assert done.returncode > 0
    assert (
        "ec2:StopInstances of deployment test in eu-central-1 failed: not permitted; allow ec2:StopInstances"
        in done.stderr
    )
