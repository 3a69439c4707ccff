"""Measures the images of deploy/: how long builds take, at first and after a change of a source, and their sizes.

`python -m bench.images --json images.json`; it needs a container engine and MARLESS_PYTHON as `make test-containers`
does. A size is that above the base image. Packages are downloaded at first, and so times depend on the network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench import harness
from bench.harness import ROOT, Row

ADDED = {
    "services": ("MODULES",),
    "actors": ("MODULES", "KUBERNETES"),
    "learners": ("MODULES", "KUBERNETES"),
}
"""Images, and the arguments of their builds that add something."""
PYTHON = os.environ.get("MARLESS_PYTHON", "python:3.12-slim-bookworm")
LEFT_OUT = shutil.ignore_patterns(".venv*", ".git", "__pycache__", "runs", "site", "credentials", ".terraform")


def built(source: Path, image: str, *options: str, **arguments: str) -> float:
    """Seconds that the build of an image from a source folder takes; raises CalledProcessError."""
    given = [
        word for name, value in {"PYTHON": PYTHON, **arguments}.items() for word in ("--build-arg", f"{name}={value}")
    ]
    began_s = time.monotonic()
    command = (
        "docker",
        "build",
        "--file",
        "deploy/Dockerfile",
        "--target",
        image,
        "--tag",
        tag(image),
        *options,
        *given,
    )
    subprocess.run((*command, "."), cwd=source, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began_s


def tag(image: str) -> str:
    """The name of an image of this benchmark."""
    return f"marless-bench-{image}"


def size_mb(name: str) -> float:
    """The size of an image in MB (10⁶ bytes)."""
    command = ("docker", "image", "inspect", "--format", "{{.Size}}", name)
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1e6


def row(source: Path, image: str) -> Row:
    """Build one from nothing, after a change, and with what an argument of the build adds."""
    found: Row = {"image": image, "first build (s)": round(built(source, image, "--no-cache"))}
    found["MB"] = round(size_mb(tag(image)) - size_mb(PYTHON))
    built(source, image)  # its steps are kept now, as after the build before a change
    with (source / "marless" / "__init__.py").open("a", encoding="utf-8") as changed:
        changed.write("# Changed.\n")
    found["after a change (s)"] = round(built(source, image))
    for added in ADDED[image]:
        built(source, image, **{added: "1"})
        found[f"MB with {added}=1"] = round(size_mb(tag(image)) - size_mb(PYTHON))
    return found


def main() -> None:
    """Measure each image once."""
    args = harness.parser(__doc__, runs=1).parse_args()
    about = harness.machine()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        source = shutil.copytree(ROOT, Path(place, "source"), ignore=LEFT_OUT, symlinks=True)
        for image in ADDED:
            rows.append(row(source, image))
            harness.say(f"{rows[-1]}")
    headline: Mapping[str, float] = {f"{each['image']}_mb": each["MB"] for each in rows}
    harness.report("images", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
