"""deploy/terraform against moto: what it promises, and that nothing is left of it. Its tests run in order."""

from __future__ import annotations

import base64
import copy
import fnmatch
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.cloud import guarantees, permissions, terraform
from tests.cloud.conftest import REGION, Aws
from tests.cloud.terraform import CLIENT_CIDR, SOURCE, Terraform, user_data

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(600)]

PORT = 7070
POLICY_CHARACTERS = 6144
"""Limit of IAM for a managed policy, without white space."""
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
    # Nothing boots here, for which an apply would wait.
    made = Terraform(place, endpoint, terraform.variables(wheel, REGION) | {"wait_for_boot": False})
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
        running.resources = made.resources
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

    kinds = {each.partition(".")[0] for each in deployed.planned} - {"terraform_data"}
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
    ("aws_autoscaling_group", ["capacity_rebalance"], True, "its pool replaces, too"),
    ("aws_s3_bucket", ["lifecycle_rule", 0, "enabled"], False, "uploads that were broken off"),
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
    ("readers", "s3:GetObject", "{bucket}/runs/spread/head.json", True),
    ("readers", "s3:ListBucket", "{bucket}", True),
    ("readers", "s3:GetObject", "{bucket}/install/image-control.txt", False),
    ("readers", "s3:PutObject", "{bucket}/runs/spread/head.json", False),
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


def test_the_control_plane_has_its_lasting_address_before_it_boots(deployed, keys):
    """It installs from its first second on, and a change of address would cut that off."""
    state = json.loads(deployed.terraform.state.read_text())
    [control] = [each for each in state["resources"] if (each["type"], each["name"]) == ("aws_instance", "control")]
    assert "aws_eip_association.control" in control["instances"][0]["dependencies"]
    ec2 = client(deployed, "ec2")
    [[machine]] = [
        each["Instances"]
        for each in ec2.describe_instances(InstanceIds=[deployed.terraform.output("control")])["Reservations"]
    ]
    [interface] = machine["NetworkInterfaces"]
    assert f"{interface['Association']['PublicIp']}:{PORT}" == deployed.terraform.output("coordinator")
    assert interface["PrivateIpAddress"] == "10.77.0.10"


def test_machines_with_gpus_make_their_devices_before_workers_start(deployed, keys):
    scripts = user_data(client(deployed, "ec2"))
    begins = [line for line in scripts["learner"].splitlines() if line.startswith("ExecStart")]
    assert [line.split()[0] for line in begins[:3]] == [
        "ExecStartPre=+/usr/bin/nvidia-smi",
        "ExecStartPre=+/usr/bin/nvidia-modprobe",
        "ExecStart=/opt/marless/bin/python",
    ]
    assert begins[1].endswith("--unified-memory --create-nvidia-device-file=0")
    assert "nvidia" not in scripts["actor"]


def test_waiting_for_the_boot_has_an_end_that_says_where_to_look(deployed, monkeypatch):
    """As `terraform apply` and client.sh wait: until the client's secret is written, as the control plane does."""
    made = deployed.terraform
    told = {"MARLESS_REGION": REGION, "MARLESS_INSTANCE": "i-1", "MARLESS_WAIT_S": "-1"}
    told["MARLESS_SECRET"] = made.output("client_secret")
    wait = partial(subprocess.run, (made.folder / "boot" / "wait.sh",), env=made.environment | told, check=False)
    late = wait(capture_output=True, text=True)
    assert late.returncode == 1 and "has not booted within" in late.stderr, late.stderr
    assert f"aws ec2 get-console-output --latest --output text --region {REGION} --instance-id i-1" in late.stderr
    secrets = client(deployed, "secretsmanager")
    secrets.put_secret_value(SecretId=told["MARLESS_SECRET"], SecretString="{}")
    assert wait(capture_output=True).returncode == 0
    unknown = wait(env=made.environment | told | {"MARLESS_SECRET": "none"}, capture_output=True, text=True)
    assert unknown.returncode == 1 and "ResourceNotFoundException" in unknown.stderr, unknown.stderr


def test_image_sh_makes_an_image_of_a_machine_of_which_nothing_is_left(deployed, keys):
    """The test switches the machine off, as its script does once everything is installed."""
    made, ec2 = deployed.terraform, client(deployed, "ec2")
    command = (made.folder / "image.sh", "actor")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=made.environment, text=True, **pipes) as process:
        told = iter(process.stderr.readline, "")
        machine = re.search(r"i-\w+", next(line for line in told if "switches itself off" in line))[0]
        [[found]] = [each["Instances"] for each in ec2.describe_instances(InstanceIds=[machine])["Reservations"]]
        script = ec2.describe_instance_attribute(InstanceId=machine, Attribute="userData")["UserData"]["Value"]
        ec2.stop_instances(InstanceIds=[machine])
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    wanted = made.output("images")["actor"]
    assert (
        base64.b64decode(script).decode().strip() == wanted["script"].strip() and "exchange get" not in wanted["script"]
    )
    [interface] = found["NetworkInterfaces"]
    assert (interface["SubnetId"], interface["Groups"][0]["GroupId"]) == (wanted["subnet"], wanted["group"])
    image = re.fullmatch(r'actor_ami_id = "(ami-\w+)"\n', said)[1]
    assert ec2.describe_images(ImageIds=[image])["Images"][0]["Name"].startswith("marless-actor-")
    [[left]] = [each["Instances"] for each in ec2.describe_instances(InstanceIds=[machine])["Reservations"]]
    assert left["State"]["Name"] == "terminated"


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


def test_destroy_ends_nothing_while_there_are_runs_that_it_may_not_delete(deployed, keys):
    """Also if only old versions of them are left, with which a bucket cannot be deleted."""
    made, bucket = deployed.terraform, deployed.terraform.output("bucket")
    before = deployed.inventory()
    for _ in range(2):
        done = made.tried("destroy", "-auto-approve")
        said = " ".join(done.stderr.split())
        assert done.returncode == 1 and f"the bucket {bucket} has run folders" in said, done.stderr
        assert "terraform apply -var force_destroy=true" in said
        assert deployed.inventory() == before
        client(deployed, "s3").delete_object(Bucket=bucket, Key="runs/spread/head.json")


def test_a_bucket_that_is_gone_does_not_keep_a_destroy_back(deployed):
    made = deployed.terraform
    told = {"MARLESS_REGION": REGION, "MARLESS_BUCKET": "no-such-bucket", "MARLESS_MAY_BE_DELETED": "false"}
    look = partial(subprocess.run, (made.folder / "boot" / "before_destroy.sh",), capture_output=True, text=True)
    assert look(env=made.environment | told, check=False).returncode == 0
    unseen = look(env=made.environment | told | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, check=False)
    assert unseen.returncode == 1 and "Nothing was destroyed, since it cannot be seen" in unseen.stderr


def test_destroy_leaves_nothing(deployed, keys):
    """Of what terraform has made, and of what machines and pools have made since."""
    made = deployed.terraform
    made.run("apply", "-auto-approve", "-var=force_destroy=true")
    assert managed(made.plan("-destroy"), "delete") == deployed.planned
    made.run("destroy", "-auto-approve", "-parallelism=30")
    assert made.resources == []
    after = deployed.inventory()
    assert {kind: after[kind] - before for kind, before in deployed.before.items() if after[kind] - before} == {}


def test_the_list_of_permissions_is_what_it_takes(deployed):
    """An apply and a destroy call nothing that the list lacks, and the list has nothing that is not called or told."""
    called, listed = permissions.called(deployed.terraform.log), permissions.allowed()
    assert len(called) > 100, "the log of the provider has its calls"
    assert [action for action in sorted(called) if not permissions.covered(action, listed)] == []
    told = called | {action for actions in permissions.UNCALLED.values() for action in actions}
    assert [each for each in listed if not any(fnmatch.fnmatchcase(action, each) for action in told)] == []
    assert len("".join((SOURCE / "permissions.json").read_text().split())) <= POLICY_CHARACTERS


REFUSED = [
    ({"client_cidrs": ["0.0.0.0/0"]}, "the port is not for"),
    ({"client_cidrs": ["0.0.0.0/1", "128.0.0.0/1"]}, "the port is not for"),
    ({"client_cidrs": []}, "the port is not for"),
    ({"wheel": "nowhere.whl"}, "There is no such wheel"),
    ({"packages": ["pettingzoo"]}, "NAME==VERSION"),
    ({"name": "My_Team"}, "lower-case letters"),
    ({"port": 7072}, "other than 7071 to 7073"),
    ({"actor_instance_types": ["z9.huge"]}, "offers z9.huge: choose other types"),
    ({"learner_instance_types": ["g5.xlarge", "c7i.2xlarge"]}, "c7i.2xlarge has 0"),
    ({"learner_instance_types": ["g5.xlarge", "g5.12xlarge"]}, "g5.12xlarge has 4"),
]


@pytest.fixture(scope="module")
def quotas() -> Iterator[dict[str, float]]:
    """Those of an account in which nothing is deployed, in vCPUs; tests may change them."""
    with terraform.account(REGION) as vcpus:
        yield vcpus


@pytest.fixture(scope="module")
def unapplied(_aws: Aws, quotas, tmp_path_factory: pytest.TempPathFactory) -> Terraform:
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


def told(terraform: Terraform, **given: object) -> subprocess.CompletedProcess[str]:
    """What a plan with these variables says."""
    (terraform.folder / "terraform.tfvars.json").write_text(json.dumps(terraform.variables | given))
    return terraform.tried("plan", "-out=plan.bin")


def test_a_quota_that_allows_no_machine_is_named_before_anything_is_made(unapplied, quotas, monkeypatch):
    """As new accounts have it: no vCPU of machines with GPUs, and none of spot instances."""
    monkeypatch.setitem(quotas, "L-DB2E81BA", 0.0)
    monkeypatch.setitem(quotas, "L-34B43A08", 5.0)
    done = told(unapplied)
    said = " ".join(done.stderr.replace("\n│", "").split())
    assert done.returncode == 1
    assert (
        "No learner machine can be started: 'Running On-Demand G and VT instances' (L-DB2E81BA) allows 0 vCPUs" in said
    )
    assert 'such as ["c7i.2xlarge"] for learners on CPUs' in said
    assert "No actor machine can be started: 'All Standard (A, C, D, H, I, M, R, T, Z) Spot" in said
    assert "allows 5 vCPUs, and one c7i.4xlarge has 16" in said
    assert told(unapplied, check_quotas=False).returncode == 0


def test_a_quota_for_fewer_machines_than_asked_for_is_a_warning(unapplied, quotas, monkeypatch):
    monkeypatch.setitem(quotas, "L-34B43A08", 32.0)
    done = told(unapplied, actor_instance_types=["c7i.4xlarge"])
    assert done.returncode == 0, done.stderr
    assert "(L-34B43A08) allows 32 vCPUs, and 4 c7i.4xlarge have 64" in " ".join(done.stdout.split())


def test_learners_may_have_cpus_alone(unapplied, quotas, monkeypatch):
    """They need neither a quota of GPUs nor an image with a driver."""
    monkeypatch.setitem(quotas, "L-DB2E81BA", 0.0)
    done = told(unapplied, learner_instance_types=["c7i.2xlarge"])
    assert done.returncode == 0, done.stderr
    plan = json.loads(unapplied.run("show", "-json", "plan.bin"))
    resources = plan["planned_values"]["root_module"]["resources"]
    found = {each["address"]: each["values"] for each in resources if each["type"] == "aws_launch_template"}
    template = found['aws_launch_template.of["learner"]']
    assert template["image_id"] == found['aws_launch_template.of["actor"]']["image_id"]
    assert template["block_device_mappings"][0]["ebs"][0]["volume_size"] == 30


def test_zones_are_those_that_offer_the_types(unapplied, quotas, monkeypatch):
    """Here the first zone has no GPUs, and the second no machine for the control plane."""
    from moto.ec2.models.instance_types import InstanceTypeOfferingBackend as Offerings

    lacking = {"eu-central-1a": "g", "eu-central-1b": "m7i.xlarge"}
    real = Offerings.describe_instance_type_offerings

    def some(self, *given, **named):
        return [
            each
            for each in real(self, *given, **named)
            if not each["InstanceType"].startswith(lacking.get(each["Location"], "none"))
        ]

    monkeypatch.setattr(Offerings, "describe_instance_type_offerings", some)
    (unapplied.folder / "terraform.tfvars.json").write_text(json.dumps(unapplied.variables))
    asked = "jsonencode([local.zones, local.control_zone, local.zones_of])"
    said = unapplied.tried("console", "-plan", given=asked).stdout
    zones, control, offered = json.loads(json.loads(said.strip().splitlines()[-1]))
    a, b, c = (f"eu-central-1{letter}" for letter in "abc")
    assert zones == [c, a, b] and control == c
    assert offered == {"control": [a, c], "actor": [a, b, c], "learner": [b, c]}


def test_state_may_be_in_a_bucket_with_a_lock(unapplied, keys, _aws, tmp_path):
    import boto3

    s3 = boto3.client("s3", endpoint_url=_aws.endpoint, region_name=REGION)
    s3.create_bucket(Bucket="state", CreateBucketConfiguration={"LocationConstraint": REGION})
    remote = Terraform(tmp_path, _aws.endpoint, unapplied.variables)
    remote.furnish()
    example = (remote.folder / "remote_state.tf.example").read_text().replace('"BUCKET"', '"state"')
    path_style = example.replace("encrypt ", "use_path_style = true\n encrypt ")  # names of hosts that only AWS has
    (remote.folder / "remote_state.tf").write_text(path_style)
    remote.run("init", "-reconfigure")
    targets = ("-auto-approve", "-target=aws_budgets_budget.monthly")
    remote.run("apply", *targets)
    assert [each["Key"] for each in s3.list_objects_v2(Bucket="state")["Contents"]] == ["marless/terraform.tfstate"]
    s3.put_object(Bucket="state", Key="marless/terraform.tfstate.tflock", Body=json.dumps({"ID": "1", "Who": "ann"}))
    refused = remote.tried("apply", *targets)
    assert refused.returncode == 1 and "Error acquiring the state lock" in refused.stderr, refused.stderr
    s3.delete_object(Bucket="state", Key="marless/terraform.tfstate.tflock")
    remote.run("destroy", "-auto-approve")
