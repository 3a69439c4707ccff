"""deploy/terraform/ in a folder of its own, applied to an account of moto, the stand-in for AWS.

The provider comes from where terraform is told to look: `TF_CLI_ARGS_init=-plugin-dir=DIR` where no registry answers.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "deploy" / "terraform"
CLIENT_CIDR = "203.0.113.7/32"
FOR_MOTO = """
provider "aws" {
  s3_use_path_style = true
  max_retries       = 4
}
"""
"""What a server on localhost needs, and fewer retries than the 25 that let a test with an error hang."""
IMAGES = (
    {
        "ami_id": "ami-00000001",
        "name": "debian-12-amd64-20260801-2000",
        "owner_id": "136693071363",
        "root_device_name": "/dev/xvda",
    },
    {
        "ami_id": "ami-00000002",
        "name": "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20260801",
        "owner_id": "898082745236",
        "owner_alias": "amazon",
        "root_device_name": "/dev/xvda",
    },
)
"""Images of others, as an account on AWS sees them; but no root device is /dev/sda1, as some are on AWS: moto gives
each machine a volume of this name, and never deletes it if the machine's own is named so, too."""
QUOTAS = {
    "L-1216C47A": "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "L-34B43A08": "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
    "L-DB2E81BA": "Running On-Demand G and VT instances",
    "L-3819A6DF": "All G and VT Spot Instance Requests",
}
"""Quotas of EC2, in vCPUs, by their codes."""
SPOT_USD_H = "0.3312"
"""Price of every type in every zone."""
LIMIT_S = 240.0


@dataclass
class Terraform:
    """A working folder of terraform, and an account of its own on `endpoint`."""

    place: Path
    endpoint: str
    variables: Mapping[str, Any] = field(default_factory=dict)  # Any: as JSON has it
    took_s: dict[str, float] = field(default_factory=dict)
    """Seconds that each command took, the last time that it ran."""

    @property
    def folder(self) -> Path:
        """Where its commands run."""
        return self.place / "deploy" / "terraform"

    @property
    def state(self) -> Path:
        """The file in which terraform keeps what it has made."""
        return self.folder / "terraform.tfstate"

    @property
    def log(self) -> Path:
        """What its provider has called, and more."""
        return self.place / "provider.log"

    def furnish(self) -> None:
        """Copy the sources, write the variables, and install the provider. Skips the test where there is none."""
        shutil.copytree(SOURCE, self.folder, ignore=shutil.ignore_patterns(".terraform", "*.tfstate*", "*.tfvars"))
        (self.place / "requirements").symlink_to(ROOT / "requirements")
        (self.folder / "moto_override.tf").write_text(FOR_MOTO)
        (self.folder / "terraform.tfvars.json").write_text(json.dumps(self.variables))
        done = self.tried("init")
        if done.returncode:
            how = "set TF_CLI_ARGS_init=-plugin-dir=DIR to a folder with registry.terraform.io/hashicorp/aws/5.100.0/…"
            pytest.skip(f"terraform cannot install its provider here; {how}: {done.stderr.strip()[-300:]}")

    def run(self, command: str, *arguments: str) -> str:
        """Run a command of terraform; returns what it prints. Raises AssertionError with its errors if it fails."""
        done = self.tried(command, *arguments)
        assert done.returncode == 0, f"terraform {command}: {done.stdout[-2000:]}\n{done.stderr}"
        return done.stdout

    def tried(self, command: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command of terraform, which may fail, with this standard input."""
        began = time.monotonic()
        done = subprocess.run(
            ("terraform", command, *arguments),
            cwd=self.folder,
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        self.took_s[command] = time.monotonic() - began
        return done

    def plan(self, *arguments: str) -> Mapping[str, Any]:
        """What terraform would do."""
        self.run("plan", "-out=plan.bin", *arguments)
        return dict(json.loads(self.run("show", "-json", "plan.bin")))

    def output(self, name: str) -> Any:  # Any: as JSON has it
        """What a deployment tells its user."""
        return json.loads(self.run("output", "-json", name))

    @property
    def resources(self) -> list[Mapping[str, Any]]:
        """All resources that exist, with their values."""
        shown = json.loads(self.run("show", "-json"))
        return list(shown.get("values", {}).get("root_module", {}).get("resources", []))

    @property
    def environment(self) -> dict[str, str]:
        """Of all its commands, and of scripts that call AWS."""
        own = {
            "TF_CLI_CONFIG_FILE": _settings_of_terraform(),
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "CHECKPOINT_DISABLE": "1",
            "NO_COLOR": "1",
            "TF_IN_AUTOMATION": "1",
            "TF_CLI_ARGS": "-no-color",
            "TF_LOG_PROVIDER": "DEBUG",
            "TF_LOG_PATH": f"{self.log}",
        }
        return {name: value for name, value in os.environ.items() if name != "AWS_REGION"} | own


def _settings_of_terraform() -> str:
    """The file that its user has chosen, if there is one: terraform stops where the variable names none."""
    chosen = os.environ.get("TF_CLI_CONFIG_FILE", "")
    return chosen if Path(chosen).is_file() else os.devnull


def absent() -> str:
    """What is missing here that applies need; "" if nothing is."""
    if not shutil.which("terraform"):
        return "Terraform 1.10 or newer is not installed"
    return "" if shutil.which("aws") else "the AWS CLI is not installed: pip install awscli"


def variables(wheel: Path, region: str) -> dict[str, Any]:
    """Those that a user must give."""
    return {
        "region": region,
        "client_cidrs": [CLIENT_CIDR],
        "wheel": str(wheel),
        "budget_usd": 200,
        "budget_email": "team@example.org",
    }


@contextmanager
def account(region: str, public_ip: str = "192.0.2.7") -> Iterator[dict[str, float]]:
    """An empty account in this process's moto, which sees others' images, and is emptied at the end.

    Its elastic addresses are `public_ip`. Yields its quotas of vCPUs by their codes, which tests may change.

    It also does what moto lacks: quotas of EC2; prices of spot instances that somebody could ask; subscribers, tags
    and changes of budgets; the forced deletion of groups, which ends protected machines and scheduled actions;
    conditions of bucket policies, since moto takes a denial of requests without TLS for a denial of all; the deletion
    of the last mark of a deleted object; the network interface that a machine leaves behind when it is terminated.
    """
    from moto.autoscaling.responses import AutoScalingResponse
    from moto.backends import get_backend
    from moto.budgets.responses import BudgetsResponse
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.ec2.models import elastic_ip_addresses
    from moto.ec2.models.amis import Ami
    from moto.ec2.models.instances import Instance
    from moto.ec2.responses.spot_instances import SpotInstances
    from moto.iam.access_control import IAMPolicyStatement, PermissionResult
    from moto.moto_api._internal.models import moto_api_backend
    from moto.s3.models import FakeDeleteMarker
    from moto.servicequotas.responses import ServiceQuotasResponse

    vcpus = dict.fromkeys(QUOTAS, 256.0)
    prices = SpotInstances.describe_spot_price_history
    terminated = Instance.terminate
    permitted, deleted = IAMPolicyStatement.is_action_permitted, AutoScalingResponse.delete_auto_scaling_group

    def subscribers(self: Any) -> str:
        budget = self.backend.budgets[self._get_param("AccountId")][self._get_param("BudgetName")]
        told = self._get_param("Notification")
        [found] = [each.subscribers for each in budget.notifications if each.details == told]
        return json.dumps({"Subscribers": found})

    def priced(self: Any) -> Any:
        answer = prices(self)
        for each in answer.result["SpotPriceHistory"]:
            each["SpotPrice"] = SPOT_USD_H
        return answer

    def forced(self: Any) -> Any:
        backend, name = self.autoscaling_backend, self._get_param("AutoScalingGroupName")
        if self._get_bool_param("ForceDelete"):
            for state in backend.autoscaling_groups[name].instance_states:
                state.protected_from_scale_in = False
            for action in backend.describe_scheduled_actions(name):
                backend.scheduled_actions.pop(action.scheduled_action_name)
        return deleted(self)

    def aware(self: Any, *given: Any, **named: Any) -> PermissionResult:
        if "aws:SecureTransport" in json.dumps(self._statement.get("Condition", {})):
            return PermissionResult.NEUTRAL
        return permitted(self, *given, **named)

    def detaching(self: Any) -> Any:
        before = terminated(self)
        for each in self.nics.values():
            each.instance, each.attachment_id, each.status = None, None, "available"
        return before

    def quota(self: Any) -> str:
        code = json.loads(self.body)["QuotaCode"]
        named = {"ServiceCode": "ec2", "ServiceName": "Amazon EC2", "QuotaCode": code, "QuotaName": QUOTAS[code]}
        arn = f"arn:aws:servicequotas:{region}:{DEFAULT_ACCOUNT_ID}:ec2/{code}"
        return json.dumps({"Quota": named | {"QuotaArn": arn, "Value": vcpus[code]}})

    with pytest.MonkeyPatch.context() as patch:
        for asked in ("get_service_quota", "get_aws_default_service_quota"):
            patch.setattr(ServiceQuotasResponse, asked, quota, raising=False)
        patch.setattr(BudgetsResponse, "describe_subscribers_for_notification", subscribers, raising=False)
        patch.setattr(BudgetsResponse, "list_tags_for_resource", lambda _: '{"ResourceTags": []}', raising=False)
        for change in ("tag_resource", "update_budget"):
            patch.setattr(BudgetsResponse, change, lambda _: "{}", raising=False)
        patch.setattr(IAMPolicyStatement, "is_action_permitted", aware)
        patch.setattr(Instance, "terminate", detaching)
        patch.setattr(SpotInstances, "describe_spot_price_history", priced)
        patch.setattr(AutoScalingResponse, "delete_auto_scaling_group", forced)
        patch.setattr(FakeDeleteMarker, "dispose", lambda *_, **__: None, raising=False)
        patch.setattr(elastic_ip_addresses, "random_ip", lambda: public_ip)
        moto_api_backend.reset()
        machines = get_backend("ec2")[DEFAULT_ACCOUNT_ID][region]
        for image in IMAGES:
            machines.amis[image["ami_id"]] = Ami(machines, **image, architecture="x86_64", public=True)
        yield vcpus
        moto_api_backend.reset()


def user_data(ec2: Any) -> dict[str, str]:  # Any: clients are made as the program runs
    """What each kind of machine runs at its first boot, as EC2 has it."""
    found = {}
    [[control]] = [each["Instances"] for each in ec2.describe_instances(Filters=[_named("control")])["Reservations"]]
    told = ec2.describe_instance_attribute(InstanceId=control["InstanceId"], Attribute="userData")
    found["control"] = told["UserData"]["Value"]
    for each in ec2.describe_launch_templates()["LaunchTemplates"]:
        [version] = ec2.describe_launch_template_versions(
            LaunchTemplateId=each["LaunchTemplateId"], Versions=["$Latest"]
        )["LaunchTemplateVersions"]
        kind = each["LaunchTemplateName"].split("-")[1]
        found[kind] = version["LaunchTemplateData"]["UserData"]
    return {kind: base64.b64decode(text).decode() for kind, text in found.items()}


def _named(kind: str) -> dict[str, Any]:
    return {"Name": "tag:Name", "Values": [f"marless-{kind}"]}
