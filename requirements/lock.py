"""Resolve pyproject.toml into the lock files of this directory: `make lock`; `make lock UPGRADE=1` for newer versions.

One resolution serves all locks of the project's own environment, so that they never disagree about a version.
- train.txt: what `make train` installs; dev.txt, cloud.txt, sinks.txt, ray.txt, browser.txt and fuzz.txt: what
  `make test`, `make test-cloud`, `make test-slow`, `make test-ray`, `make test-browser` and `make fuzz` add.
- torch has two locks, of which one is installed: torch-cpu.txt names a build without CUDA packages that only some
  indexes have; torch.txt names PyPI's build, with the CUDA packages that it needs on Linux.
- security.txt: the tools of `make lock`, `make audit` and `make sbom`; docs.txt: those of `make docs`; release.txt:
  that of `make release`; kubernetes.txt: that of `make test-kubernetes`; localstack.txt: a server of S3 for
  `make test-cloud`; peer-*.txt: the peers of bench/.
  These are installed in environments of their own.
- image-*.txt: what the images and machines of deploy/ install, at the versions of the locks above.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.utils import canonicalize_name

from bench.peers.install import REQUIREMENTS as PEERS
from requirements.pins import Pin, parse, read, write

HERE = Path(__file__).parent
PYPROJECT = HERE.parent / "pyproject.toml"
OLDEST_PYTHON = "3.11"

OWN = {
    "train": ("learner", "embedded", "plot"),
    "dev": ("mpe", "dev"),
    "cloud": ("cloud-tests",),
    "sinks": ("sink-tests",),
    "ray": ("ray",),
    "browser": ("browser-tests",),
}
"""Locks of the project's own environment in the order in which they are installed, and the extras that each serves."""
IMAGES = {
    "actors": ("docker", "otel"),
    "services": ("sharing", "otel"),
    "learners": ("learner", "docker", "otel"),
    "control": ("sharing", "aws", "otel"),
    "modules": ("onnx",),
    "kubernetes": ("kubernetes",),
}
"""Images of deploy/Dockerfile, and the extras that each serves; "control" is the control plane of deploy/terraform,
"modules" what images have besides, if they are asked to, for nets that are modules of torch, "kubernetes" what pools'
images have whose workers are Pods.

"build" is what builds marless's own wheel.
"""

NEEDLESS = frozenset({"tailer"})
"""Without a wheel, and never imported by what requires it (LocalStack): left out."""
CUDA = ("cuda-", "nvidia-", "triton")
"""How the names begin of what only PyPI's build of torch for Linux needs."""
TORCH_CPU = Pin(
    name="torch",
    version="2.13.0+cpu",
    marker="",
    hashes=("sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",),
)
"""The CPU build for Python 3.11 on x86-64 Linux. PyPI cannot be asked for it: a hash more is a line more here."""


def resolve(
    *,
    extras: tuple[str, ...] = (),
    requirements: tuple[str, ...],
    known: tuple[Pin, ...],
    options: tuple[str, ...] = (),
) -> tuple[Pin, ...]:
    """Pins for all platforms and Pythons from the oldest on; versions in `known` are kept where they still fit.

    Raises:
        subprocess.CalledProcessError: the resolver found no solution, or no index answered; it has said why on stderr.
    """
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "more.in").write_text("\n".join(requirements))
        write(folder / "lock.txt", known)
        command = [
            *(
                sys.executable,
                "-m",
                "uv",
                "pip",
                "compile",
                "--quiet",
                "--universal",
                "--generate-hashes",
                "--no-header",
            ),
            *("--no-annotate", "--python-version", OLDEST_PYTHON, "--output-file", str(folder / "lock.txt"), *options),
            *(word for extra in extras for word in ("--extra", extra)),
            *([str(PYPROJECT)] if extras else []),
            str(folder / "more.in"),
        ]
        subprocess.run(command, check=True)
        return parse((folder / "lock.txt").read_text())


def own_locks(options: tuple[str, ...]) -> dict[str, tuple[Pin, ...]]:
    """The locks of the project's own environment, no package in two of them."""
    tables = tomllib.loads(PYPROJECT.read_text())
    build, fuzz = tuple(tables["build-system"]["requires"]), tuple(tables["dependency-groups"]["fuzz"])
    every_extra = tuple(extra for extras in OWN.values() for extra in extras)
    union = resolve(
        extras=every_extra, requirements=(*build, *fuzz), known=_known(*OWN, "fuzz", "torch"), options=options
    )
    locks = {"torch": tuple(pin for pin in union if _of_torch(pin)), "torch-cpu": (TORCH_CPU,)}
    placed = {pin.name for pin in locks["torch"]}
    for name, extras in OWN.items():
        needed = {pin.name for pin in resolve(extras=extras, requirements=build, known=union)} - placed
        locks[name] = tuple(pin for pin in union if pin.name in needed)
        placed |= needed
    locks |= _image_locks(union, tuple(tables["project"]["dependencies"]), build)
    locks["fuzz"] = tuple(pin for pin in union if pin.name not in placed)
    return locks


def _image_locks(
    union: tuple[Pin, ...], dependencies: tuple[str, ...], build: tuple[str, ...]
) -> dict[str, tuple[Pin, ...]]:
    """The locks of the images, which repeat pins of the project's own environment."""
    resolved = {name: resolve(extras=extras, requirements=dependencies, known=union) for name, extras in IMAGES.items()}
    resolved["build"] = resolve(requirements=build, known=union)
    return {
        f"image-{name}": tuple(pin for pin in union if pin.name in {each.name for each in pins} and not _of_torch(pin))
        for name, pins in resolved.items()
    }


def locks_apart(options: tuple[str, ...]) -> dict[str, tuple[Pin, ...]]:
    """The locks of environments that marless itself is not in: tools of make targets, and each peer of bench/."""
    groups = tomllib.loads(PYPROJECT.read_text())["dependency-groups"]
    wanted = {name: tuple(groups[name]) for name in ("security", "docs", "release", "kubernetes", "localstack")}
    wanted |= {f"peer-{peer}": requirements for peer, requirements in PEERS.items()}
    locks = {}
    for name, requirements in wanted.items():
        pins = resolve(requirements=requirements, known=_known(name, "torch"), options=options)
        locks[name] = tuple(pin for pin in pins if not _of_torch(pin) and pin.name not in NEEDLESS)
    return locks


def _known(*names: str) -> tuple[Pin, ...]:
    return tuple(pin for name in names if (HERE / f"{name}.txt").exists() for pin in read(HERE / f"{name}.txt"))


def _of_torch(pin: Pin) -> bool:
    return pin.name == "torch" or pin.name.startswith(CUDA)


def main() -> int:
    """Write every lock file; the options go to the resolver."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that pyproject.toml allows")
    parser.add_argument("--upgrade-package", action="append", default=[], metavar="NAME", help="only of this package")
    given = parser.parse_args()
    options = (
        *(["--upgrade"] if given.upgrade else []),
        *(f"--upgrade-package={canonicalize_name(name)}" for name in given.upgrade_package),
    )
    locks = own_locks(options) | locks_apart(options)
    for name, pins in locks.items():
        write(HERE / f"{name}.txt", pins)
        print(f"requirements/{name}.txt: {len(pins)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
