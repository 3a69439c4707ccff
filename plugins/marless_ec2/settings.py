"""Options of the launcher `ec2`."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass

from marless.core.errors import SpecError
from marless.core.limits import MAX_ACTORS
from marless.fleet.launchers.base import Options
from marless.fleet.launchers.registry import CONNECT_S, above_0, check_names

NAME = "ec2"
_OPTIONS = ("group", "region", "slots", "idle_s", "boot_s", "poll_s", "lease_s", "aws_s", CONNECT_S)
_ROLE = re.compile(r"marless\.services\.(actor|learner)_pool\b")


@dataclass(frozen=True)
class Ec2Settings:
    """Options of the launcher."""

    group: str
    """Name of the Auto Scaling group."""
    region: str
    """"": as the SDK finds it, in its configuration."""
    role: str = ""
    """What the workers are: "actor" or "learner"; "" for a program of tests."""
    slots: int = 0
    """Workers on a machine that does not say its number; 0: as many as its vCPUs have threads for."""
    idle_s: float = 300.0
    """Seconds without a worker after which a machine is ended."""
    boot_s: float = 600.0
    """Seconds that a machine may take until its host program dials in, also again after it was lost."""
    poll_s: float = 10.0
    """Seconds between two looks at the group."""
    lease_s: float = 900.0
    """Seconds after which AWS sets the desired capacity to 0 if the pool is gone."""
    aws_s: float = 15.0
    """Seconds that a call of AWS may take."""
    connect_s: float = 60.0
    """Seconds that a worker may take from its order until it is connected."""

    @property
    def where(self) -> str:
        """The group, for people."""
        return f"group {self.group} in {self.region or 'the default region'}"


def check_installed() -> None:
    """Raise SpecError if the SDK of AWS is not installed."""
    if importlib.util.find_spec("boto3") is None:
        raise SpecError(f"launcher {NAME}: the package `boto3` is missing: pip install 'marless[aws]'")


def read(module: str, options: Options) -> Ec2Settings:
    """The launcher's options, for workers of this module; raises SpecError."""
    check_names(NAME, options, _OPTIONS)
    role = found[1] if (found := _ROLE.match(module)) else ""
    group = options.get("group", "").replace("{role}", role)
    if not group:
        raise SpecError(
            f"launcher {NAME}: give the Auto Scaling group of the pool: {NAME},group=NAME,region=eu-central-1"
        )
    default = Ec2Settings("", "")
    seconds = {
        key: above_0(NAME, options, key, getattr(default, key), "seconds")
        for key in ("idle_s", "boot_s", "poll_s", "lease_s", "aws_s", CONNECT_S)
    }
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")
    return Ec2Settings(group, region, role, _slots(options), **seconds)


def _slots(options: Options) -> int:
    text = options.get("slots", "0")
    if not text.isdecimal() or int(text) > MAX_ACTORS:
        raise SpecError(
            f"launcher {NAME}: slots={text}: give the workers of a machine, up to {MAX_ACTORS}; 0: by its vCPUs"
        )
    return int(text)
