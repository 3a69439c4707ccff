"""deploy/terraform/: what its sources say, read without terraform. tests/cloud applies them, and boots its machines."""

import re
from pathlib import Path

import pytest

from marless.services.coordinator.config import PEERS

ROOT = Path(__file__).parents[2]
TERRAFORM = ROOT / "deploy" / "terraform"
TEXT = "\n".join(path.read_text("utf-8") for path in sorted(TERRAFORM.glob("*.tf")))
RESOURCES = {
    f"{kind}.{name}": body
    for kind, name, body in re.findall(r'^resource "(\w+)" "(\w+)" \{\n(.*?)^\}', TEXT, re.MULTILINE | re.DOTALL)
}
MACHINES = [name for name in RESOURCES if name.startswith(("aws_instance.", "aws_launch_template."))]
SECRET_IN_STATE = {
    "aws_iam_access_key",
    "aws_secretsmanager_secret_version",
    "aws_ssm_parameter",
    "random_password",
    "tls_private_key",
}
"""Types whose values are in terraform's state."""


def variable(name: str) -> str:
    [body] = re.findall(rf'^variable "{name}" \{{\n(.*?)^\}}', TEXT, re.MULTILINE | re.DOTALL)
    return body


def test_everybody_is_only_where_machines_go_out_to():
    open_to_all = {name for name, body in RESOURCES.items() if "0.0.0.0/0" in body or "::/0" in body}
    assert open_to_all == {"aws_route_table.public", "aws_vpc_security_group_egress_rule.fetch"}
    assert "default" not in variable("client_cidrs")


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_requires_imdsv2_and_encrypts_its_disk(machine):
    assert len(MACHINES) == 2
    assert re.search(r'http_tokens\s+= "required"', RESOURCES[machine])
    assert re.search(r"encrypted\s+= true", RESOURCES[machine])


def test_no_secret_can_be_in_the_state():
    assert {name.partition(".")[0] for name in RESOURCES} & SECRET_IN_STATE == set()
    # An output may be kept off the terminal because it is long, and says so.
    assert set(re.findall(r"sensitive\b.*", TEXT)) <= {"sensitive   = true # not a secret, but long"}


def test_what_scales_is_the_pools():
    assert not [name for name in RESOURCES if name.startswith(("aws_autoscaling_policy", "aws_autoscaling_schedule"))]
    assert "ignore_changes = [desired_capacity]" in RESOURCES["aws_autoscaling_group.of"]


def test_the_provider_is_one_version():
    lock = (TERRAFORM / ".terraform.lock.hcl").read_text("utf-8")
    assert re.findall(r'provider "(.*)"', lock) == ["registry.terraform.io/hashicorp/aws"]
    (version,) = re.findall(r'version\s+= "(\d+\.\d+\.\d+)"', lock)
    assert lock.count('"h1:') >= 1
    assert int(version.partition(".")[0]) in (5, 6)


def test_machines_set_what_processes_read_and_install_what_is_locked():
    scripts = "".join(path.read_text("utf-8") for path in (TERRAFORM / "boot").glob("*.tftpl"))
    sources = "".join(
        path.read_text("utf-8") for top in ("marless", "services", "plugins") for path in (ROOT / top).rglob("*.py")
    )
    set_here = set(re.findall(r"\bMARLESS_\w+(?==)", scripts))
    assert len(set_here) > 10
    options = {name: name.removeprefix("MARLESS_").lower() for name in set_here}
    unread = {
        name
        for name, option in options.items()
        if f'"--{option.replace("_", "-")}"' not in sources and option not in PEERS
    }
    assert unread == set()
    locks = re.findall(r'"([\w-]+\.txt)"', TEXT)
    assert locks and all((ROOT / "requirements" / lock).is_file() for lock in locks)
    assert "--require-hashes --only-binary :all:" in scripts
