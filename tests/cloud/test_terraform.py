"""deploy/terraform against moto: what it promises, and that nothing is left of it. Its tests run in order."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cloud import guarantees, terraform
from tests.cloud.conftest import REGION, Aws
from tests.cloud.terraform import CLIENT_CIDR, Terraform, user_data

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(600)]

PORT = 7070
LONGEST_S = 60.0
"""Of apply and destroy together."""
ACTORS = 'aws_autoscaling_group.of["actor"]'
CANARY = "canary-that-only-machines-may-know"
SECRET = re.compile(r"-----BEGIN|(?<![0-9A-Za-z/+_-])(AKIA[0-9A-Z]{16}|[A-Za-z0-9_-]{43})(?![0-9A-Za-z/+=_-])")
"""A PEM file, a key of AWS, or a token of marless."""


@dataclass
class Deployed:
    """A deployment, and what its account held before."""

    terraform: Terraform
    before: dict[str, frozenset[str]]
    planned: list[str]
    """Addresses of the resources of the plan that was applied."""
    resources: list[guarantees.Resource]
    """What it made."""
    applied_s: float = 0.0

    def inventory(self) -> dict[str, frozenset[str]]:
        from tests.cloud.inventory import inventory

        return inventory(self.terraform.endpoint, REGION)


def managed(plan: dict, action: str) -> list[str]:
    """Addresses of the resources on which a plan does this."""
    changes = [each for each in plan["resource_changes"] if each["mode"] == "managed"]
    return sorted(each["address"] for each in changes if each["change"]["actions"] == [action])


def prepared(place: Path, endpoint: str) -> Terraform:
    if why := terraform.absent():
        pytest.skip(why)
    wheel = place / "marless-0.1.0-py3-none-any.whl"
    wheel.touch()
    made = Terraform(place, endpoint, terraform.variables(wheel, REGION) | {"force_destroy": True})
    made.furnish()
    return made


@pytest.fixture(scope="module")
def deployed(_aws: Aws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with terraform.account(REGION):
        made = prepared(tmp_path_factory.mktemp("terraform"), _aws.endpoint)
        running = Deployed(made, {}, [], [])
        running.before = running.inventory()
        running.planned = managed(made.plan(), "create")
        made.run("apply", "-parallelism=30", "plan.bin")
        running.resources, running.applied_s = made.resources, made.took_s["apply"]
        yield running


def client(deployed: Deployed, service: str):
    import boto3

    return boto3.client(service, endpoint_url=deployed.terraform.endpoint, region_name=REGION)


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


def test_sources_are_formatted_and_valid(deployed):
    for command in (("fmt", "-check", "-recursive"), ("validate",)):
        done = deployed.terraform.tried(*command)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_everything_of_the_plan_is_there(deployed):
    from tests.cloud.inventory import PART_OF

    kinds = {each.partition(".")[0] for each in deployed.planned}
    now = deployed.inventory()
    for kind in kinds:
        owner = PART_OF.get(kind, kind)
        assert now[owner] > deployed.before[owner], f"{kind} cannot be seen"
    assert len(deployed.planned) == len([each for each in deployed.resources if each["mode"] == "managed"])


def test_its_promises_are_kept(deployed):
    assert guarantees.breaches(deployed.resources, [CLIENT_CIDR], PORT) == []


BROKEN = [
    ("aws_launch_template", ["metadata_options", 0, "http_tokens"], "optional", "IMDSv1"),
    ("aws_launch_template", ["block_device_mappings", 0, "ebs", 0, "encrypted"], "false", "not encrypted"),
    ("aws_launch_template", ["instance_initiated_shutdown_behavior"], "stop", "costing"),
    ("aws_instance", ["root_block_device", 0, "encrypted"], False, "not encrypted"),
    ("aws_instance", ["metadata_options", 0, "http_put_response_hop_limit"], 2, "from afar"),
    ("aws_vpc_security_group_ingress_rule", ["cidr_ipv4"], "0.0.0.0/0", "lets others in"),
    ("aws_vpc_security_group_ingress_rule", ["to_port"], 65535, "more than one port"),
    ("aws_security_group", ["ingress"], [{"cidr_blocks": ["0.0.0.0/0"], "ipv6_cidr_blocks": []}], "everybody"),
    (
        "aws_iam_role_policy",
        ["policy"],
        '{"Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "x"}]}',
        "allows all of s3:*",
    ),
    (
        "aws_iam_role_policy",
        ["policy"],
        '{"Statement": [{"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": "*"}]}',
        "allows s3:GetObject on all",
    ),
    (
        "aws_iam_role",
        ["assume_role_policy"],
        '{"Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}}]}',
        "by others",
    ),
    ("aws_s3_bucket_public_access_block", ["block_public_policy"], False, "block_public_policy off"),
    ("aws_s3_bucket_versioning", ["versioning_configuration", 0, "status"], "Suspended", "no versions"),
    ("aws_s3_bucket_policy", ["policy"], '{"Statement": []}', "without TLS"),
    ("aws_autoscaling_group", ["protect_from_scale_in"], False, "ends machines"),
]


@pytest.mark.parametrize(("kind", "path", "value", "sentence"), BROKEN)
def test_a_broken_promise_is_seen(deployed, kind, path, value, sentence):
    [first, *_] = [each for each in deployed.resources if each["type"] == kind]
    broken = copy.deepcopy(first)
    *above, last = path
    at = broken["values"]
    for step in above:
        at = at[step]
    at[last] = value
    assert any(sentence in each for each in guarantees.breaches([broken], [CLIENT_CIDR], PORT))


RIGHTS = [
    ("control", "s3:GetObject", "{bucket}/runs/spread/head.json", True),
    ("control", "s3:PutObject", "{bucket}/runs/spread/head.json", True),
    ("control", "s3:DeleteObject", "{bucket}/runs/spread/head.json", True),
    ("control", "s3:ListBucket", "{bucket}", True),
    ("control", "s3:GetObject", "{bucket}/install/image-control.txt", True),
    ("control", "s3:PutObject", "{bucket}/install/image-control.txt", False),
    ("control", "s3:DeleteObject", "{bucket}/install/image-control.txt", False),
    ("control", "secretsmanager:PutSecretValue", "{actor-worker}", True),
    ("control", "secretsmanager:GetSecretValue", "{client}", False),
    ("control", "autoscaling:SetDesiredCapacity", "{actor}", True),
    ("control", "autoscaling:SetDesiredCapacity", "{learner}", True),
    ("control", "autoscaling:SetDesiredCapacity", "arn:aws:autoscaling:eu-central-1:1:autoScalingGroup:x:y/z", False),
    ("control", "autoscaling:UpdateAutoScalingGroup", "{actor}", False),
    ("control", "ec2:DescribeSpotPriceHistory", "*", True),
    ("control", "ec2:RunInstances", "*", False),
    ("control", "iam:PassRole", "*", False),
    *(
        (kind, action, resource, may)
        for kind, other in (("actor", "learner"), ("learner", "actor"))
        for action, resource, may in (
            ("secretsmanager:GetSecretValue", f"{{{kind}-worker}}", True),
            ("secretsmanager:GetSecretValue", f"{{{other}-worker}}", False),
            ("secretsmanager:GetSecretValue", "{client}", False),
            ("secretsmanager:PutSecretValue", f"{{{kind}-worker}}", False),
            ("s3:GetObject", "{bucket}/install/image-actors.txt", True),
            ("s3:GetObject", "{bucket}/runs/spread/head.json", False),
            ("s3:PutObject", "{bucket}/install/image-actors.txt", False),
            ("autoscaling:SetDesiredCapacity", f"{{{kind}}}", False),
            ("autoscaling:DescribeAutoScalingGroups", "*", False),
        )
    ),
]


@pytest.mark.parametrize(("role", "action", "resource", "may"), RIGHTS)
def test_a_role_may_do_what_it_needs_and_no_more(deployed, role, action, resource, may):
    resources = deployed.resources
    named = {}
    for each in resources:
        if each["type"] in ("aws_secretsmanager_secret", "aws_autoscaling_group"):
            named[each["index"]] = each["values"]["arn"]
        if each["type"] == "aws_s3_bucket":
            named["bucket"] = each["values"]["arn"]
    for name, arn in named.items():
        resource = resource.replace(f"{{{name}}}", arn)
    assert guarantees.allowed(guarantees.statements(resources, role), action, resource) is may


def test_user_data_is_a_script_without_a_secret(deployed, keys):
    scripts = user_data(client(deployed, "ec2"))
    assert set(scripts) == {"control", "actor", "learner"}
    for name, script in scripts.items():
        checked = subprocess.run(("bash", "-n"), input=script, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, f"{name}: {checked.stderr}"
        assert len(script.encode()) <= guarantees.USER_DATA_BYTES, name
        assert not SECRET.search(script), name
    assert SECRET.search("token=" + "a" * 43) and SECRET.search("-----BEGIN PRIVATE KEY-----")


def test_terraform_leaves_alone_what_machines_and_pools_do_and_reads_no_secret(deployed, keys):
    """Secrets are written, machines are started and protected, and run folders are kept."""
    secrets, groups = client(deployed, "secretsmanager"), client(deployed, "autoscaling")
    for each in secrets.list_secrets()["SecretList"]:
        secrets.put_secret_value(SecretId=each["ARN"], SecretString=json.dumps({"actor": CANARY}))
    name = deployed.terraform.output("groups")["actor"]
    groups.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=2)
    [group] = groups.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    assert [each["ProtectedFromScaleIn"] for each in group["Instances"]] == [True, True]
    groups.put_scheduled_update_group_action(
        AutoScalingGroupName=name, ScheduledActionName="marless-lease", DesiredCapacity=0, StartTime="2099-01-01"
    )
    bucket = deployed.terraform.output("bucket")
    for key in ("head.json", "old.json"):
        client(deployed, "s3").put_object(Bucket=bucket, Key=f"runs/spread/{key}", Body=b"{}")
    client(deployed, "s3").delete_object(Bucket=bucket, Key="runs/spread/old.json")  # its versions stay

    # moto does not keep all that it is told: whole plans, compared, would show its gaps.
    deployed.terraform.run("apply", "-refresh-only", "-auto-approve")
    again = deployed.terraform.plan()
    [change] = [each["change"] for each in again["resource_changes"] if each["address"] == ACTORS]
    assert change["before"]["desired_capacity"] == change["after"]["desired_capacity"] == 2
    for file in deployed.terraform.folder.glob("terraform.tfstate*"):
        assert CANARY not in file.read_text() and not re.search("-----BEGIN", file.read_text())
    assert CANARY not in json.dumps(again)


def test_a_machine_of_a_group_has_the_tags_that_pools_know(deployed, keys):
    machines = client(deployed, "ec2").describe_instances(Filters=[{"Name": "tag:marless:role", "Values": ["actor"]}])
    found = [each for reservation in machines["Reservations"] for each in reservation["Instances"]]
    assert len(found) == 2
    for each in found:
        tags = {tag["Key"]: tag["Value"] for tag in each["Tags"]}
        assert tags["marless:fleet"] == "marless" and tags["Name"] == "marless-actor"


def test_destroy_leaves_nothing(deployed, keys, record_property):
    """Of what terraform has made, and of what machines and pools have made since."""
    made = deployed.terraform
    applied_s = deployed.applied_s
    assert managed(made.plan("-destroy"), "delete") == deployed.planned
    made.run("destroy", "-auto-approve", "-parallelism=30")
    assert made.resources == []
    after = deployed.inventory()
    assert {kind: after[kind] - before for kind, before in deployed.before.items() if after[kind] - before} == {}
    record_property("apply, s", round(applied_s, 1))
    record_property("destroy, s", round(made.took_s["destroy"], 1))
    assert applied_s + made.took_s["destroy"] <= LONGEST_S, made.took_s | {"first apply": applied_s}


REFUSED = [
    ({"client_cidrs": ["0.0.0.0/0"]}, "the port is not for"),
    ({"client_cidrs": ["0.0.0.0/1", "128.0.0.0/1"]}, "the port is not for"),
    ({"client_cidrs": []}, "the port is not for"),
    ({"wheel": "nowhere.whl"}, "There is no such wheel"),
    ({"packages": ["pettingzoo"]}, "NAME==VERSION"),
    ({"name": "My_Team"}, "lower-case letters"),
    ({"port": 7072}, "other than 7071 to 7073"),
]


@pytest.fixture(scope="module")
def unapplied(_aws: Aws, tmp_path_factory: pytest.TempPathFactory) -> Terraform:
    return prepared(tmp_path_factory.mktemp("refused"), _aws.endpoint)


@pytest.mark.parametrize(("given", "sentence"), REFUSED)
def test_what_cannot_be_meant_is_refused_before_anything_is_made(unapplied, given, sentence):
    told = unapplied.folder / "terraform.tfvars.json"
    told.write_text(json.dumps(unapplied.variables | given))
    done = unapplied.tried("plan")
    assert done.returncode == 1 and sentence in " ".join(done.stderr.split()), done.stderr


def test_who_may_reach_the_coordinator_has_no_default(unapplied):
    told = unapplied.folder / "terraform.tfvars.json"
    told.write_text(json.dumps({name: value for name, value in unapplied.variables.items() if name != "client_cidrs"}))
    done = unapplied.tried("plan", "-input=false")
    assert done.returncode == 1 and 'variable "client_cidrs" is not set' in " ".join(done.stderr.split())
