"""What an account holds, by the types of deploy/terraform: for tests that nothing is left."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import boto3
import jmespath

LISTS: Mapping[str, tuple[str, str, str]] = {
    "aws_autoscaling_group": (
        "autoscaling",
        "describe_auto_scaling_groups",
        "AutoScalingGroups[].AutoScalingGroupName",
    ),
    "aws_budgets_budget": ("budgets", "describe_budgets", "Budgets[].BudgetName"),
    "aws_eip": ("ec2", "describe_addresses", "Addresses[].AllocationId"),
    "aws_iam_instance_profile": ("iam", "list_instance_profiles", "InstanceProfiles[].InstanceProfileName"),
    "aws_iam_policy": ("iam", "list_policies", "Policies[?!starts_with(Arn, 'arn:aws:iam::aws:')].Arn"),
    "aws_iam_role": ("iam", "list_roles", "Roles[].RoleName"),
    "aws_instance": (
        "ec2",
        "describe_instances",
        "Reservations[].Instances[?State.Name != 'terminated'][].InstanceId",
    ),
    "aws_internet_gateway": ("ec2", "describe_internet_gateways", "InternetGateways[].InternetGatewayId"),
    "aws_launch_template": ("ec2", "describe_launch_templates", "LaunchTemplates[].LaunchTemplateId"),
    "aws_network_interface": (
        "ec2",
        "describe_network_interfaces",
        "NetworkInterfaces[?TagSet[?Key == 'Name' && Value == 'marless-control']].NetworkInterfaceId",
    ),
    "aws_route_table": ("ec2", "describe_route_tables", "RouteTables[].RouteTableId"),
    "aws_s3_bucket": ("s3", "list_buckets", "Buckets[].Name"),
    "aws_secretsmanager_secret": ("secretsmanager", "list_secrets", "SecretList[].ARN"),
    "aws_security_group": ("ec2", "describe_security_groups", "SecurityGroups[].GroupId"),
    "aws_subnet": ("ec2", "describe_subnets", "Subnets[].SubnetId"),
    "aws_vpc": ("ec2", "describe_vpcs", "Vpcs[].VpcId"),
    "aws_vpc_endpoint": ("ec2", "describe_vpc_endpoints", "VpcEndpoints[?State != 'deleted'].VpcEndpointId"),
    # Not resources of terraform, but what its machines are made of, and what pools make. moto keeps the network
    # interfaces of worker machines that have ended.
    "volumes": ("ec2", "describe_volumes", "Volumes[].VolumeId"),
    "scheduled actions": (
        "autoscaling",
        "describe_scheduled_actions",
        "ScheduledUpdateGroupActions[].ScheduledActionName",
    ),
}
"""How to list everything of a type: a service of AWS, an operation of it, and where the ids are in its answer."""
PART_OF = {
    "aws_default_security_group": "aws_vpc",
    "aws_eip_association": "aws_eip",
    "aws_iam_role_policy": "aws_iam_role",
    "aws_route_table_association": "aws_route_table",
    "aws_s3_bucket_policy": "aws_s3_bucket",
    "aws_s3_bucket_public_access_block": "aws_s3_bucket",
    "aws_s3_bucket_server_side_encryption_configuration": "aws_s3_bucket",
    "aws_s3_bucket_versioning": "aws_s3_bucket",
    "aws_s3_object": "aws_s3_bucket",
    "aws_vpc_security_group_egress_rule": "aws_security_group",
    "aws_vpc_security_group_ingress_rule": "aws_security_group",
}
"""Types that exist only as parts of others."""
ACCOUNT = "123456789012"


def inventory(endpoint: str, region: str) -> dict[str, Set[str]]:
    """The ids of everything in an account, by type."""
    session = boto3.Session("testing", "testing", region_name=region)
    return {kind: _ids(session.client(service, endpoint_url=endpoint), *how) for kind, (service, *how) in LISTS.items()}


def _ids(client: Any, operation: str, where: str) -> Set[str]:  # Any: clients are made as the program runs
    arguments = {"AccountId": ACCOUNT} if operation == "describe_budgets" else {}
    return frozenset(jmespath.search(where, getattr(client, operation)(**arguments)) or ())
