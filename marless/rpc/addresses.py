"""Addresses of services: host:port, [IPv6]:port or unix:PATH; where a service listens, and what others dial."""

from __future__ import annotations

import ipaddress
import socket

from marless.core.errors import SpecError

UNIX = "unix:"


def host_of(address: str) -> str:
    """The host of an address, without brackets; "" for a unix socket."""
    return "" if address.startswith(UNIX) else address.rpartition(":")[0].strip("[]")


def is_local(address: str) -> bool:
    """True for unix sockets and loopback addresses."""
    if address.startswith(UNIX):
        return True
    return is_loopback(host_of(address))


def is_loopback(host: str) -> bool:
    """True for localhost and loopback addresses, without a port."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_everywhere(address: str) -> bool:
    """True for an address such as 0.0.0.0:7070 or [::]:7070: all interfaces to listen on, and none to dial."""
    if address.startswith(UNIX):
        return False
    try:
        return ipaddress.ip_address(host_of(address)).is_unspecified
    except ValueError:
        return not host_of(address)


def advertised(bound: str, advertise: str = "") -> str:
    """The address that others dial to reach a service.

    Args:
        bound: The address that it listens on, with its port.
        advertise: What its operator set: an address, or a host, to which the port of `bound` is added. "": `bound`, or
            this machine's name if `bound` means all interfaces.

    Raises:
        SpecError: if `advertise` is not an address that can be dialled.
    """
    if not advertise:
        return f"{socket.gethostname()}:{bound.rpartition(':')[2]}" if is_everywhere(bound) else bound
    port = "" if bound.startswith(UNIX) else bound.rpartition(":")[2]
    has_port = ":" in advertise and not advertise.endswith("]")
    address = advertise if has_port or advertise.startswith(UNIX) else f"{advertise}:{port}"
    if not can_be_dialled(address):
        raise SpecError(
            f"--advertise {advertise}: give the host and port that others dial, e.g. gpu1.example.org:7070, "
            "[2001:db8::1]:7070 or unix:PATH"
        )
    return address


def can_be_dialled(address: str) -> bool:
    """True for host:port with a port above 0 and a host that names one machine, and for unix:PATH."""
    if address.startswith(UNIX):
        return address != UNIX
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 2**16) or is_everywhere(address):
        return False
    if any(character.isspace() or character in "/," for character in host):
        return False
    return ":" not in host or (host.startswith("[") and host.endswith("]"))
