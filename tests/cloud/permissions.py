"""What Terraform's provider has called, as actions of IAM, and what deploy/terraform/permissions.json allows."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.cloud.terraform import SOURCE

PREFIXES = {
    "Auto Scaling": "autoscaling",
    "Budgets": "budgets",
    "EC2": "ec2",
    "IAM": "iam",
    "S3": "s3",
    "STS": "sts",
    "Secrets Manager": "secretsmanager",
    "Service Quotas": "servicequotas",
}
NAMED: Mapping[str, str] = {
    "s3:DeleteBucketEncryption": "s3:PutEncryptionConfiguration",
    "s3:DeleteObjects": "s3:DeleteObject",
    "s3:DeletePublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "s3:GetBucketAccelerateConfiguration": "s3:GetAccelerateConfiguration",
    "s3:GetBucketCors": "s3:GetBucketCORS",
    "s3:GetBucketEncryption": "s3:GetEncryptionConfiguration",
    "s3:GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "s3:GetBucketReplication": "s3:GetReplicationConfiguration",
    "s3:GetObjectLockConfiguration": "s3:GetBucketObjectLockConfiguration",
    "s3:GetPublicAccessBlock": "s3:GetBucketPublicAccessBlock",
    "s3:HeadBucket": "s3:ListBucket",
    "s3:HeadObject": "s3:GetObject",
    "s3:ListObjectVersions": "s3:ListBucketVersions",
    "s3:PutBucketEncryption": "s3:PutEncryptionConfiguration",
    "s3:PutBucketLifecycleConfiguration": "s3:PutLifecycleConfiguration",
    "s3:PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
}
"""Actions of IAM that are not named as the call is."""
UNCALLED = {
    "a multipart upload, as of a large wheel, that is broken off": ("s3:AbortMultipartUpload",),
    "tags, which are given in other calls": (
        *("autoscaling:CreateOrUpdateTags", "budgets:TagResource", "s3:PutObjectTagging", "secretsmanager:TagResource"),
        *("iam:TagInstanceProfile", "iam:TagPolicy", "iam:TagRole"),
        *("autoscaling:DeleteTags", "budgets:UntagResource", "ec2:DeleteTags", "iam:UntagRole"),
        "secretsmanager:UntagResource",
    ),
    "machines that get a role, and roles that AWS makes for itself": ("iam:PassRole", "iam:CreateServiceLinkedRole"),
    "later changes of variables": (
        *(
            "ec2:AttachNetworkInterface",
            "ec2:CreateLaunchTemplateVersion",
            "ec2:DeleteRoute",
            "ec2:ModifyLaunchTemplate",
        ),
        *("ec2:ModifyNetworkInterfaceAttribute", "ec2:ModifySecurityGroupRules", "ec2:ModifySubnetAttribute"),
        *("ec2:ModifyVpcEndpoint", "autoscaling:DeleteLifecycleHook", "iam:CreatePolicyVersion"),
        *("iam:DeletePolicyVersion", "iam:UpdateAssumeRolePolicy", "iam:UpdateRoleDescription"),
        "secretsmanager:UpdateSecret",
    ),
    "objects with versions": ("s3:DeleteObjectVersion",),
    "client.sh, image.sh and `marless cloud`": (
        *("secretsmanager:GetSecretValue", "ec2:GetConsoleOutput", "ec2:CreateImage", "ec2:StopInstances"),
        *("ec2:StartInstances", "autoscaling:SetDesiredCapacity", "autoscaling:SetInstanceProtection"),
    ),
}
"""What is allowed although an apply and a destroy do not call it, and for what."""


def called(log: Path) -> set[str]:
    """The actions that the provider has needed for its calls."""
    found = set()
    for line in log.read_text(errors="replace").splitlines():
        method, service = re.search(r"rpc\.method=(\w+)", line), re.search(r'rpc\.service=(?:"([^"]+)"|(\w+))', line)
        if method and service:
            action = f"{PREFIXES[service[1] or service[2]]}:{method[1]}"
            found.add(_of_budgets(action) if action.startswith("budgets:") else NAMED.get(action, action))
    return found


def _of_budgets(action: str) -> str:
    if "Tag" in action:
        return action
    return "budgets:ViewBudget" if action.startswith("budgets:Describe") else "budgets:ModifyBudget"


def allowed() -> list[str]:
    """The actions of permissions.json, which may end in "*"."""
    told = json.loads((SOURCE / "permissions.json").read_text())
    return [action for each in told["Statement"] for action in each["Action"]]


def covered(action: str, by: Iterable[str]) -> bool:
    """Whether a list of actions allows one."""
    return any(fnmatch.fnmatchcase(action, each) for each in by)
