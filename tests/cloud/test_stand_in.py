"""The stand-in for AWS answers the SDK, and each test has an empty account."""

import pytest

pytestmark = pytest.mark.cloud


@pytest.mark.parametrize("repetition", [1, 2])
def test_each_test_has_an_account_of_its_own(aws, repetition):
    import boto3

    groups = boto3.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    images = boto3.client("ec2").describe_key_pairs()["KeyPairs"]
    assert (groups, images) == ([], [])
    boto3.client("ec2").create_key_pair(KeyName="left by an earlier test")
