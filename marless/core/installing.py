"""How what is missing is installed, or why it cannot be on this Python and machine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from packaging.markers import Marker

_INTEL_MAC = "sys_platform == 'darwin' and platform_machine == 'x86_64'"
_NO_INTEL = "it has no build for Macs with an Intel processor; use Linux, or a Mac with Apple silicon"
_TOO_NEW = "python_version >= '3.14'"
_NO_BOX2D = "its box2d has no build for this Python; use Python 3.13"
_WITHOUT_WHEELS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "torch": (_INTEL_MAC, _NO_INTEL),
        "ray": (_INTEL_MAC, _NO_INTEL),
        "pettingzoo.sisl": (_TOO_NEW, _NO_BOX2D),
        "gymnasium.envs.box2d": (_TOO_NEW, _NO_BOX2D),
    }
)
"""What cannot be installed everywhere: where not (PEP 508), and what to do there instead."""


def how_to_install(package: str, requirement: str, environment: Mapping[str, str] | None = None) -> str:
    """The command that installs a package, by its `requirement`, or what to do where it has no wheel.

    `environment` has other values of markers than this Python's.
    """
    where, instead = _WITHOUT_WHEELS.get(package, ("", ""))
    if where and Marker(where).evaluate(dict(environment or {})):
        return instead
    return f"pip install '{requirement}'"
