"""What the resources of deploy/terraform promise, read from what terraform has made: one sentence for each breach."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Resource = Mapping[str, Any]
"""A resource as `terraform show -json` has it."""

UNNAMED = {
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeLifecycleHooks",
    "autoscaling:DescribeScalingActivities",
    "ec2:DescribeSpotPriceHistory",
}
"""Actions for which AWS knows no resources."""
USER_DATA_BYTES = 16_384
"""Limit of EC2."""


def breaches(resources: Iterable[Resource], client_cidrs: list[str], port: int) -> list[str]:
    """All sentences; [] if every promise is kept."""
    found = []
    for each in resources:
        check = CHECKS.get(each["type"])
        if check:
            found += [f"{each['address']} {what}" for what in check(each["values"], client_cidrs, port)]
    return found


def statements(resources: Iterable[Resource], role: str) -> list[Mapping[str, Any]]:
    """What a role allows, or the policy of "readers"."""
    kinds = ("aws_iam_role_policy", "aws_iam_policy")
    policies = [
        json.loads(each["values"]["policy"])
        for each in resources
        if each["type"] in kinds and role in (each["values"]["name"], each["name"])
    ]
    return [statement for policy in policies for statement in policy["Statement"]]


def allowed(told: Iterable[Mapping[str, Any]], action: str, resource: str) -> bool:
    """Whether statements allow an action on a resource; conditions are taken as met."""
    return any(
        statement["Effect"] == "Allow"
        and any(fnmatch.fnmatchcase(action, each) for each in _listed(statement["Action"]))
        and any(fnmatch.fnmatchcase(resource, each) for each in _listed(statement["Resource"]))
        for statement in told
    )


def _listed(one_or_many: str | list[str]) -> list[str]:
    return [one_or_many] if isinstance(one_or_many, str) else one_or_many


def _machine(values: Mapping[str, Any], *_: object) -> Iterator[str]:
    [options] = values["metadata_options"]
    if options["http_tokens"] != "required" or options["http_put_response_hop_limit"] != 1:
        yield "answers IMDSv1, or IMDSv2 from afar"
    volumes = values.get("root_block_device") or [each["ebs"][0] for each in values["block_device_mappings"]]
    if not volumes or any(each["encrypted"] not in (True, "true") for each in volumes):
        yield "has a volume that is not encrypted"
    if values.get("key_name"):
        yield "has a key for SSH"


def _template(values: Mapping[str, Any], *given: object) -> Iterator[str]:
    yield from _machine(values, *given)
    if values["instance_initiated_shutdown_behavior"] != "terminate":
        yield "goes on costing after its shutdown"


def _ingress(values: Mapping[str, Any], client_cidrs: list[str], port: int) -> Iterator[str]:
    inside = values["referenced_security_group_id"] and not values["cidr_ipv4"]
    client = values["cidr_ipv4"] in client_cidrs and values["from_port"] == values["to_port"] == port
    if not (inside or client) or values["cidr_ipv6"] or values["ip_protocol"] != "tcp":
        yield "lets others in"
    if values["from_port"] != values["to_port"]:
        yield "opens more than one port"


def _group(values: Mapping[str, Any], *_: object) -> Iterator[str]:
    if any({"0.0.0.0/0", "::/0"} & {*each["cidr_blocks"], *each["ipv6_cidr_blocks"]} for each in values["ingress"]):
        yield "is open to everybody"


def _policy(values: Mapping[str, Any], *_: object) -> Iterator[str]:
    for each in json.loads(values["policy"])["Statement"]:
        if each["Effect"] != "Allow":
            continue
        yield from (f"allows all of {action}" for action in _listed(each["Action"]) if "*" in action)
        if "*" in _listed(each["Resource"]):
            yield from (f"allows {action} on all" for action in _listed(each["Action"]) if action not in UNNAMED)


def _role(values: Mapping[str, Any], *_: object) -> Iterator[str]:
    for each in json.loads(values["assume_role_policy"])["Statement"]:
        if each["Principal"] != {"Service": "ec2.amazonaws.com"}:
            yield "can be assumed by others than machines"


def _scaling(values: Mapping[str, Any], *_: object) -> Iterator[str]:
    if not values["protect_from_scale_in"] or not values["force_delete"] or values["min_size"]:
        yield "ends machines that work, stays after a destroy, or never has none"
    if values["capacity_rebalance"]:
        yield "replaces machines that its pool replaces, too"
    [hook] = values["initial_lifecycle_hook"]
    if hook["lifecycle_transition"] != "autoscaling:EC2_INSTANCE_TERMINATING" or hook["default_result"] != "CONTINUE":
        yield "has no hook for the end of machines"


def _private(values: Mapping[str, Any], *_: object) -> Iterator[str]:
    switches = ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets")
    yield from (f"has {name} off" for name in switches if values[name] is not True)


def _bucket(values: Mapping[str, Any], *_: object) -> Iterator[str]:
    if not any(each["abort_incomplete_multipart_upload_days"] for each in values["lifecycle_rule"] if each["enabled"]):
        yield "keeps, and charges for, the parts of uploads that were broken off"


def _versioned(values: Mapping[str, Any], *_: object) -> Iterator[str]:
    if values["versioning_configuration"][0]["status"] != "Enabled":
        yield "keeps no versions"


def _denies(values: Mapping[str, Any], *_: object) -> Iterator[str]:
    told = json.loads(values["policy"])["Statement"]
    if [(each["Effect"], each.get("Condition")) for each in told] != [
        ("Deny", {"Bool": {"aws:SecureTransport": "false"}})
    ]:
        yield "does not deny what comes without TLS, or says more"


CHECKS = {
    "aws_autoscaling_group": _scaling,
    "aws_iam_role": _role,
    "aws_iam_policy": _policy,
    "aws_iam_role_policy": _policy,
    "aws_instance": _machine,
    "aws_launch_template": _template,
    "aws_s3_bucket": _bucket,
    "aws_s3_bucket_policy": _denies,
    "aws_s3_bucket_public_access_block": _private,
    "aws_s3_bucket_versioning": _versioned,
    "aws_security_group": _group,
    "aws_vpc_security_group_ingress_rule": _ingress,
}
