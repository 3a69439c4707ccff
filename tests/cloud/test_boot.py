"""User data of deploy/terraform, run in containers that stand for machines: one apply, one submit, a job that ends.

moto stands for AWS, and the test for the part of EC2 that boots what an Auto Scaling group starts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cloud import boots, terraform
from tests.cloud.boots import Machine, Network
from tests.cloud.conftest import REGION
from tests.cloud.terraform import ROOT, Terraform, user_data
from tests.docs import transcripts
from tests.docs.blocks import Block, blocks
from tests.docs.workplace import Workplace

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(1800)]

SERVICES = ("param-store", "actor-pool", "learner-pool", "coordinator")
PARTS = {
    "actor-worker": {"actor", "authority.pem", "certificate.pem", "key.pem"},
    "learner-worker": {"learner", "authority.pem", "certificate.pem", "key.pem"},
    "client": {"client", "authority.pem"},
}
"""What each secret holds: no more than its reader needs."""


@dataclass
class Cloud:
    """A deployment, whose machines are containers."""

    terraform: Terraform
    inside: Network
    stack: ExitStack
    workplace: Workplace
    """Where the user types what the document has."""
    before: Mapping[str, Set[str]] = field(default_factory=dict)
    """What the account held before the deployment."""
    machines: dict[str, Machine] = field(default_factory=dict)
    """By the ids of their instances, and "control"."""

    @property
    def control(self) -> Machine:
        return self.machines["control"]

    def client(self, service: str) -> Any:  # Any: clients are made as the program runs
        import boto3

        session = boto3.Session("testing", "testing", region_name=REGION)
        return session.client(service, endpoint_url=self.terraform.endpoint)

    def inventory(self) -> Mapping[str, Set[str]]:
        from tests.cloud.inventory import inventory

        return inventory(self.terraform.endpoint, REGION)

    @property
    def scripts(self) -> dict[str, str]:
        """User data by kind of machine."""
        return user_data(self.client("ec2"))

    def machine(self, instance: str, kind: str, **how: str) -> AbstractContextManager[Machine]:
        """A machine that has run nothing yet."""
        buckets = tuple(each["Name"] for each in self.client("s3").list_buckets()["Buckets"])
        return boots.machine(self.inside, instance, kind, buckets=buckets, **how)

    def start(self, instance: str, kind: str, address: str = "") -> None:
        """Do what EC2 does with a new instance."""
        name = "control" if kind == "control" else instance
        self.machines[name] = self.stack.enter_context(self.machine(instance, kind, address=address))
        self.machines[name].boot(self.scripts[kind])

    def expect_as_shown(self, command: str) -> None:
        """Type the block of the document that has this command; its output must be what the document shows."""
        block = shown(command)
        seen = self.workplace.transcript(block)
        typed = [*zip(transcripts.parse(block.text), seen, strict=True)]
        said = "\n".join(line for each, lines in typed for line in (f"$ {each.command}", *lines))
        sys.stdout.write(f"{said}\n")  # `-rP` shows it
        differing = [each.command for each, lines in typed if not transcripts.same(each.output, lines)]
        assert differing == [], f"not what {block} shows:\n{said}"

    @contextmanager
    def doing_what_ec2_does(self) -> Iterator[None]:
        """Meanwhile, boot the machines that pools ask for, and switch off those that are terminated.

        Raises what one could not be booted by.
        """
        ended = threading.Event()

        def do() -> None:
            while not ended.wait(1):
                self._switch_off_what_is_terminated()
                self._start_control()
                self._start_what_groups_have()
            self._switch_off_what_is_terminated()

        with ThreadPoolExecutor(1) as thread:
            doing = thread.submit(do)
            try:
                yield
            finally:
                ended.set()
                doing.result()

    def _switch_off_what_is_terminated(self) -> None:
        """A control plane that outlived its instance would have groups grow again while they are destroyed."""
        gone = {"Name": "instance-state-name", "Values": ["shutting-down", "terminated"]}
        for reservation in self.client("ec2").describe_instances(Filters=[gone])["Reservations"]:
            for each in reservation["Instances"]:
                names = {tag["Value"] for tag in each.get("Tags", ()) if tag["Key"] == "Name"}
                machine = self.machines.get("control" if "marless-control" in names else each["InstanceId"])
                if machine and machine.is_on:
                    machine.switch_off()

    def _start_what_groups_have(self) -> None:
        groups = self.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
        for group in groups:
            kind = next(tag["Value"] for tag in group["Tags"] if tag["Key"] == "marless:role")
            for each in group["Instances"]:
                if each["InstanceId"] not in self.machines:
                    self.start(each["InstanceId"], kind)

    def _start_control(self) -> None:
        here = [
            {"Name": "tag:Name", "Values": ["marless-control"]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
        found = self.client("ec2").describe_instances(Filters=here)["Reservations"]
        if found and "control" not in self.machines:
            self.start("i-control", "control", self.inside.control)


def environment(made: Terraform) -> dict[str, str]:
    """What the user's programs need here that they do not need on AWS."""
    answers = "-auto-approve -parallelism=30"
    return {
        "AWS_ENDPOINT_URL": made.endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "CHECKPOINT_DISABLE": "1",
        "TF_CLI_CONFIG_FILE": "/dev/null",
        "TF_CLI_ARGS_apply": answers,
        "TF_CLI_ARGS_destroy": answers,
    }


def shown(command: str) -> Block:
    """The block of docs/deploying.md that has this command."""
    below = [each for each in blocks("docs/deploying.md", "text") if each.heading == "AWS with Terraform"]
    [block] = [each for each in below if f"$ {command}\n" in each.text]
    return block


def wheel(place: Path) -> Path:
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    subprocess.run((*command, "--wheel-dir", str(place), str(ROOT)), check=True, capture_output=True)
    [found] = place.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    if why := terraform.absent() or boots.refused():
        pytest.skip(why)
    pytest.importorskip("moto", reason="moto is not installed; `make test-cloud` installs it")
    from moto.server import ThreadedMotoServer

    place = tmp_path_factory.mktemp("boot")
    with ExitStack() as stack:
        server = ThreadedMotoServer(ip_address="0.0.0.0", port=0, verbose=False)
        server.start()
        stack.callback(server.stop)
        _, port = server.get_host_and_port()
        inside = stack.enter_context(boots.network(tmp_path_factory.mktemp("machines"), port, REGION))
        # The public address that moto gives leads nowhere: here it is the private one.
        stack.enter_context(terraform.account(REGION, public_ip=inside.control))
        # Machines here have no GPU.
        more = {"vpc_cidr": inside.vpc_cidr, "learner_instance_types": ["c7i.2xlarge"]}
        given = terraform.variables(wheel(place), REGION) | more
        made = Terraform(place / "terraform", f"http://127.0.0.1:{port}", given)
        made.furnish()
        workplace = Workplace(tmp_path_factory.mktemp("user"), small=False, variables=environment(made))
        workplace.furnish()
        (workplace.path / "deploy").mkdir()
        (workplace.path / "deploy" / "terraform").symlink_to(made.folder)
        running = Cloud(made, inside, stack, workplace)
        running.before = running.inventory()
        with running.doing_what_ec2_does():
            running.expect_as_shown("terraform -chdir=deploy/terraform apply")
        yield running


def alone(script: str) -> str:
    """User data of a worker, which dials in nowhere: its instance is in no group."""
    return re.sub(r"MARLESS_POOL=\S+", "MARLESS_POOL=127.0.0.1:9", script)


def until(seen: Callable[[], object], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_boot_that_fails_is_tried_again_and_a_machine_that_cannot_start_ends_itself(cloud):
    """Here, since a lock is not in the bucket at first. A timer of at most 20 minutes is left until it has started, and
    what it starts ends the machine."""
    script = alone(cloud.scripts["actor"]).replace("image-actors.txt", "late.txt")
    with cloud.machine("i-broken", "actor") as broken:
        broken.start(script)
        until(lambda: broken.tries)
        assert "Not Found" in broken.journal("marless-boot") and not broken.active("marless-host")
        left_s = broken.seconds_until("marless-boot-deadline.timer")
        assert 0 < left_s <= 20 * 60 < broken.seconds_until("marless-deadline.timer") <= 24 * 3600
        lock = (ROOT / "requirements" / "image-actors.txt").read_bytes()
        cloud.client("s3").put_object(Bucket=cloud.terraform.output("bucket"), Key="install/late.txt", Body=lock)
        until(lambda: broken.active("marless-host"), boots.BOOT_S)
        assert not broken.active("marless-boot-deadline.timer") and broken.is_on
        broken.run("systemctl", "start", "--no-block", "marless-deadline.service")  # as its timer does
        until(lambda: not broken.is_on)


def test_a_machine_of_an_image_that_has_everything_installs_nothing(cloud):
    """The image is made as image.sh has a machine do it, which then switches itself off."""
    with ExitStack() as stack:
        model = stack.enter_context(cloud.machine("i-model", "actor"))
        model.start(cloud.terraform.output("images")["actor"]["script"])
        until(lambda: not model.is_on, boots.BOOT_S)
        image = stack.enter_context(model.imaged())
        made = stack.enter_context(cloud.machine("i-made", "actor", image=image))
        assert made.run("ls", "/etc/marless", "/var/lib/marless-boot").stdout == "", "nothing secret is in an image"
        for tool in ("/usr/bin/apt-get", "/opt/marless/bin/python -m pip"):
            assert made.run("bash", "-c", f"{tool} --version").returncode == 0
        made.run("rm", "-r", "/usr/bin/apt-get", "/usr/lib/python3/dist-packages/pip")
        made.boot(alone(cloud.scripts["actor"]))
        assert made.active("marless-host") and made.tries == 0


def test_the_control_plane_boots(cloud):
    for service in SERVICES:
        until(lambda: "serving" in cloud.control.journal(f"marless@{service}"))  # noqa: B023  # called at once
        assert cloud.control.active(f"marless@{service}")
    assert cloud.terraform.resources, "which is what `terraform apply` has waited for"


def test_services_outlive_a_failure_to_make_credentials(cloud):
    """As when AWS does not answer during a reboot."""
    script, control = "/usr/local/sbin/marless-credentials", cloud.control
    assert control.run("mv", script, f"{script}.away").returncode == 0
    try:
        control.run("systemctl", "restart", "--no-block", "marless-credentials")
        until(lambda: "status=203" in control.journal("marless-credentials"))
        assert control.run("systemctl", "restart", "marless@coordinator").returncode == 0
        assert all(control.active(f"marless@{service}") for service in SERVICES)
    finally:
        control.run("mv", f"{script}.away", script)
    until(lambda: control.active("marless-credentials"))


def test_certificates_are_renewed_each_month_and_services_take_them(cloud):
    assert 0 < cloud.control.seconds_until("marless-renewal.timer") <= 32 * 24 * 3600
    own = "/etc/marless/credentials/coordinator/certificate.pem"
    asked = (
        f"openssl s_client -connect {cloud.inside.control}:7070 < /dev/null 2> /dev/null | openssl x509 -noout -serial"
    )

    def served() -> str:
        return cloud.control.run("bash", "-c", asked).stdout

    until(lambda: served().startswith("serial="))
    before, authority = served(), cloud.control.run("cat", "/etc/marless/credentials/authority.pem").stdout
    assert cloud.control.run("systemctl", "start", "marless-renewal").returncode == 0
    until(lambda: served().startswith("serial=") and served() != before)
    assert cloud.control.run("openssl", "x509", "-noout", "-serial", "-in", own).stdout == served()
    assert cloud.control.run("cat", "/etc/marless/credentials/authority.pem").stdout == authority, "clients know it"


def test_only_services_listen_and_redis_on_no_port(cloud):
    lines = cloud.control.run("ss", "-Hltn").stdout.splitlines()
    listening = {re.sub(r"\[::ffff:(.*)\]", r"\1", line.split()[3]) for line in lines}
    ours = {f"{cloud.inside.control}:{port}" for port in range(7070, 7074)}
    assert listening == ours | {"169.254.169.254:80", "127.0.0.2:443"}
    redis = cloud.control.run("pgrep", "--list-full", "redis-server").stdout
    assert len(redis.splitlines()) == 1, redis
    assert cloud.control.run("test", "-d", "/var/lib/marless/param-store/redis/appendonlydir").returncode == 0


def test_a_service_sees_its_own_key_and_is_no_root(cloud):
    for service in SERVICES:
        shown = cloud.control.run("systemctl", "show", "--property=MainPID", "--value", f"marless@{service}")
        pid = shown.stdout.strip()
        status = cloud.control.run("cat", f"/proc/{pid}/status").stdout
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE) and not re.search(r"^Uid:\s+0", status, re.MULTILINE)
        # As the service's own user, in what the service sees.
        entered = (
            "nsenter",
            "--target",
            pid,
            "--mount",
            "setpriv",
            "--reuid=marless",
            "--regid=marless",
            "--clear-groups",
        )
        assert cloud.control.run(*entered, "cat", "/run/marless/own/key.pem").returncode == 0
        assert cloud.control.run(*entered, "ls", "/etc/marless/credentials").returncode != 0
        assert cloud.control.run(*entered, "touch", "/opt/marless/x").returncode != 0


def test_each_secret_has_one_readers_part(cloud):
    secrets = cloud.client("secretsmanager")
    for part, files in PARTS.items():
        [found] = [each for each in secrets.list_secrets()["SecretList"] if each["Name"].startswith(f"marless-{part}-")]
        assert set(json.loads(secrets.get_secret_value(SecretId=found["ARN"])["SecretString"])) == files


def test_one_submit_trains_as_the_document_shows(cloud):
    """The pools find the groups that Terraform has made, and have them grow; machines boot, dial in and train."""
    with cloud.doing_what_ec2_does():
        cloud.expect_as_shown('eval "$(deploy/terraform/client.sh mine)"')
    assert (cloud.workplace.path / "mine").stat().st_mode & 0o077 == 0
    groups = cloud.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    machines = {each["AutoScalingGroupName"]: each["DesiredCapacity"] for each in groups}
    assert machines["marless-learners"] == 1
    # Containers have few cores: the worker of the random baseline may need a machine more.
    assert machines["marless-actors"] in (1, 2)
    assert all(machine["ProtectedFromScaleIn"] for each in groups for machine in each["Instances"])

    workers = [name for name in cloud.machines if name != "control"]
    assert len(workers) >= 2
    for name in workers:
        assert cloud.machines[name].active("marless-host")
        assert not cloud.machines[name].active("marless-boot-deadline.timer"), "it has started"
        assert cloud.machines[name].active("marless-deadline.timer")


def test_run_folders_are_in_the_bucket(cloud):
    """The control plane's disk has only working copies; a user reads policies from the bucket."""
    bucket = cloud.terraform.output("bucket")
    head = cloud.client("s3").get_object(Bucket=bucket, Key="runs/spread/head.json")["Body"].read()
    assert json.loads(json.loads(head)["status"])["state"] == "SUCCEEDED"
    command = (
        sys.executable,
        "-m",
        "marless",
        "evaluate",
        f"s3://{bucket}/runs/spread",
        "--episodes",
        "4",
        "-o",
        "json",
    )
    done = subprocess.run(
        command, env=os.environ | environment(cloud.terraform), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["round"] == 20


def leaks(machine: Machine, secrets: Iterable[str]) -> set[str]:
    """Where a machine shows a secret to others than its reader: in its journal, or on a command line."""
    shown = {"journal": ("journalctl", "--no-pager"), "command line": ("ps", "-ww", "-eo", "args")}
    said = {where: machine.run(*command).stdout for where, command in shown.items()}
    return {where for where, text in said.items() if any(each in text for each in (*secrets, "PRIVATE KEY"))}


def test_no_secret_is_in_a_log_or_a_command_line(cloud):
    secrets = cloud.client("secretsmanager")
    values = [
        json.loads(secrets.get_secret_value(SecretId=each["ARN"])["SecretString"])
        for each in secrets.list_secrets()["SecretList"]
    ]
    tokens = {files[role].strip() for files in values for role in ("actor", "learner", "client") if role in files}
    assert len(tokens) == 3 and len(cloud.machines) >= 3
    leaking = {name: found for name, machine in cloud.machines.items() if (found := leaks(machine, tokens))}
    assert leaking == {}
    # It sees one that is there.
    token = min(tokens)
    planted = ("systemd-run", "--quiet", "--unit=leak", "--description=leak", "bash", "-c", "sleep 600; true", token)
    assert cloud.control.run(*planted).returncode == 0
    assert leaks(cloud.control, tokens) == {"command line"}
    cloud.control.run("systemctl", "stop", "leak")
    cloud.control.run("logger", token)
    assert leaks(cloud.control, tokens) == {"journal"}


def test_destroy_ends_everything_as_the_document_shows(cloud):
    """Also the machines of both groups, which are protected, and what is in the bucket."""
    with cloud.doing_what_ec2_does():
        cloud.expect_as_shown("terraform -chdir=deploy/terraform apply -var force_destroy=true")
    assert [name for name, machine in cloud.machines.items() if machine.is_on] == []
    after = cloud.inventory()
    assert {kind: after[kind] - held for kind, held in cloud.before.items() if after[kind] - held} == {}
