"""Network namespaces as hosts: each has an address of its own, and a link to a common switch that can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """A network namespace."""

    name: str
    address: str
    switch: str
    """The namespace of the switch that it is linked to."""

    @property
    def command(self) -> tuple[str, ...]:
        """What the command of a process on this host begins with."""
        return ("ip", "netns", "exec", self.name)

    def link(self, state: str) -> None:
        """Set its link "up" or "down"."""
        _ip("-n", self.switch, "link", "set", f"to-{self.address}", state)


@contextmanager
def network(hosts: int) -> Iterator[list[Host]]:
    """This many hosts, all linked to one switch."""
    switch = f"marless-{os.getpid()}"
    made: list[Host] = []
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number in range(1, hosts + 1):
            made.append(Host(f"{switch}-{number}", f"10.77.0.{number}", switch))
            _linked(made[-1])
        yield made
    finally:
        for name in (*(host.name for host in made), switch):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _linked(host: Host) -> None:
    port = f"to-{host.address}"
    _ip("netns", "add", host.name)
    _ip("-n", host.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.name)
    _ip("-n", host.switch, "link", "set", port, "master", "bridge")
    _ip("-n", host.switch, "link", "set", port, "up")
    _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", host.name, "link", "set", device, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def refused() -> str:
    """Why this machine has no network namespaces for us; empty if it has."""
    if shutil.which("ip") is None:
        return "there is no program `ip` (package iproute2)"
    if os.geteuid():
        return "only root makes network namespaces"
    try:
        with network(1):
            return ""
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}`: {error.stderr.strip()}"
