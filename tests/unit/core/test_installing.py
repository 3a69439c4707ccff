"""What is advised to install can be installed where it is advised."""

import pytest

from marless.core.installing import how_to_install

LINUX = {"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.13"}
INTEL_MAC = LINUX | {"sys_platform": "darwin"}
NEW_MAC = INTEL_MAC | {"platform_machine": "arm64"}
NEWEST = LINUX | {"python_version": "3.14"}
INTEL = "it has no build for Macs with an Intel processor; use Linux, or a Mac with Apple silicon"
BOX2D = "its box2d has no build for this Python; use Python 3.13"


@pytest.mark.parametrize(
    ("package", "environment", "how"),
    [
        ("torch", LINUX, "pip install 'marless[x]'"),
        ("torch", NEW_MAC, "pip install 'marless[x]'"),
        ("torch", INTEL_MAC, INTEL),
        ("ray", INTEL_MAC, INTEL),
        ("ray", NEWEST, "pip install 'marless[x]'"),
        ("pettingzoo.sisl", LINUX, "pip install 'marless[x]'"),
        ("pettingzoo.sisl", NEWEST, BOX2D),
        ("gymnasium.envs.box2d", NEWEST, BOX2D),
        ("pettingzoo.butterfly", NEWEST, "pip install 'marless[x]'"),
    ],
)
def test_a_command_is_advised_where_it_can_work(package, environment, how):
    assert how_to_install(package, "marless[x]", environment) == how
