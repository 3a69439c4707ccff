"""What a reader has who makes a package by `marless new`: a virtual environment, and the package."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from marless.app.cli.new import ExtensionKind, write_package
from tests.docs.blocks import ROOT, blocks

PROGRAM = '#!/bin/sh\nexec "$(dirname "$0")/python" -m {} "$@"\n'
VARIABLES = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_DEPS": "1",
    "PIP_NO_BUILD_ISOLATION": "0",  # of pip's options that begin with no, 0 means that they are given
    "PIP_QUIET": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}
"""With them, `pip install` needs no network, as all that is asked for is there; and pytest has no plug-ins but its own,
as a reader's."""


def environment(place: Path) -> Path:
    """Make an environment with the wheel of marless below `place`; returns the folder of its programs.

    What marless depends on, pip and pytest are those of the tests.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "environment"], check=True)
    programs = place / "environment" / "bin"
    outer, [inner] = sysconfig.get_path("purelib"), (place / "environment").glob("lib/*/site-packages")
    (inner / "outer.pth").write_text(f"import site; site.addsitedir({outer!r})\n", "utf-8")
    for name in ("pip", "pytest"):
        (programs / name).write_text(PROGRAM.format(name), "utf-8")
        (programs / name).chmod(0o755)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    [wheel] = place.glob("*.whl")
    install = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed"]
    subprocess.run([programs / "python", *install, wheel], check=True)
    return programs


def name_of(page: str) -> str:
    """The name of the package that a page makes, in the first line of its first commands."""
    first, *_ = blocks(page, "sh")
    return first.text.split("\n")[0].split()[-1]


def install(kind: str, place: Path) -> str:
    """Install the package of a kind's page below `place`, which must be on the path; returns its name."""
    name = name_of(f"docs/extending/{kind}.md")
    write_package(ExtensionKind(kind), name, place)
    project = tomllib.loads((place / "pyproject.toml").read_text("utf-8"))["project"]
    [(group, [(entry, where)])] = [(group, list(each.items())) for group, each in project["entry-points"].items()]
    info = place / f"{name}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", "utf-8"
    )
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry} = {where}\n", "utf-8")
    return name
