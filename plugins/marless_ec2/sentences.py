"""What people are told when AWS refuses: which call failed, on what, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from marless.core.errors import told
from marless_ec2.plan import ROLE, ScalingGroup
from marless_ec2.settings import Ec2Settings

NO_PERMISSION = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
THROTTLED = (
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestLimitExceeded",
    "TooManyRequestsException",
)
_BAD_KEYS = {
    "InvalidClientTokenId": "are not known to AWS",
    "UnrecognizedClientException": "are not known to AWS",
    "AuthFailure": "are not valid",
    "SignatureDoesNotMatch": "do not belong together",
    "ExpiredToken": "have expired",
    "ExpiredTokenException": "have expired",
    "RequestExpired": "have expired, or this machine's clock is wrong",
    "OptInRequired": "are of an account that does not use this service or region",
}
_NO_KEYS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "TokenRetrieval",
)
_LAUNCHES: Mapping[str, str] = {
    "InsufficientInstanceCapacity|do not have sufficient|no Spot capacity|UnfulfillableCapacity": (
        "AWS has no capacity of these instance types now: allow more types, or more zones"
    ),
    "VcpuLimitExceeded|vCPU limit|MaxSpotInstanceCountExceeded|InstanceLimitExceeded|Max spot instance count": (
        "the account's quota of vCPUs for these types (spot instances have one of their own) is used up: ask for more "
        "in Service Quotas, under Amazon EC2"
    ),
    "UnauthorizedOperation|not authorized|AuthFailure": (
        "the group may not launch what its launch template says: allow it to its service-linked role"
    ),
    "InvalidAMIID|AMI|launch template|LaunchTemplate|InvalidParameter|Invalid IamInstanceProfile|security group": (
        "the launch template cannot be used: correct it"
    ),
}


def cannot(call: str, what: str, error: BaseException) -> str:
    """Why a call, such as "autoscaling:SetDesiredCapacity", failed on something; `error` is botocore's."""
    response: Mapping[str, Any] = getattr(error, "response", {})  # Any: JSON of AWS
    code, said = (str(response.get("Error", {}).get(key, "")) for key in ("Code", "Message"))
    why = _refused(call, code, said) if code else _not_called(error)
    return f"{call} of {what} failed: {why}"


def _refused(call: str, code: str, said: str) -> str:
    if code in NO_PERMISSION:
        return f"not permitted; allow {call} on it to the role of this pool ({_short(said)})"
    if code in _BAD_KEYS:
        return f"the AWS credentials {_BAD_KEYS[code]}; give this pool's machine a role, or set AWS_PROFILE"
    if code in THROTTLED:
        return "AWS takes no more calls of this account for now; it is called again, less often"
    return f"{code}: {_short(said)}"


def _not_called(error: BaseException) -> str:
    kind, said = type(error).__name__, _short(str(error))
    if kind in _NO_KEYS:
        return f"no AWS credentials ({said}); give this pool's machine a role, or set AWS_PROFILE"
    if kind == "NoRegionError":
        return "no region; give the launcher region=eu-central-1, or set AWS_REGION"
    if re.search("Connect|Timeout|Endpoint|SSL|HTTPClient", kind):
        return f"AWS does not answer ({said}); see the name of the region, and the network of this machine"
    return told(error)


def not_launched(settings: Ec2Settings, said: str) -> str:
    """Why a group has not launched a machine; `said` is the message of its activity."""
    for pattern, meaning in _LAUNCHES.items():
        if re.search(pattern, said):
            return f"{settings.where} cannot launch a machine: {meaning} ({_short(said)})"
    return f"{settings.where} cannot launch a machine: {_short(said)}"


def unfit(group: ScalingGroup, settings: Ec2Settings) -> str:
    """Why a pool cannot use a group; "" if it can."""
    role = group.tags.get(ROLE, settings.role)
    if settings.role and role != settings.role:
        return f"{settings.where} is for {role} workers (its tag {ROLE}): give the {settings.role} pool one of its own"
    if group.least:
        return f"{settings.where} keeps {group.least} machines (its min_size), also without work: set that to 0"
    return ""


def waiting(group: ScalingGroup, settings: Ec2Settings, booting: int) -> str:
    """Why a worker waits for a machine, if nothing is wrong."""
    running = len(group.serving)
    if booting:
        return f"{booting} of {running} machines of {settings.where} start; workers follow when they have dialled in"
    if running >= group.most:
        return f"all {group.most} machines of {settings.where} are full, and that is its max_size: raise it, or wait"
    return f"a machine of {settings.where} is ordered ({running} of {group.desired} run)"


def no_group(settings: Ec2Settings) -> str:
    """There is no group of that name."""
    return f"there is no Auto Scaling {settings.where}: create it (`terraform apply`), or correct group= and region="


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 300 else words[:299] + "…"
