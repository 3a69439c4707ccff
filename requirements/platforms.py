"""Asks the index whether the locks of images can be installed on x86-64 and arm64: the end of `make lock`.

Each pin needs a wheel there; locks have the hashes of all files of a version. Nothing is installed, and nothing
downloaded but what wheels say of themselves.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
LOCKS = ("torch", *sorted(path.stem for path in HERE.glob("image-*.txt")))
"""Those of images; torch.txt has PyPI's build, with CUDA."""
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
PYTHONS = ("3.11", "3.12", "3.13")


def missing(lock: Path, platform: str, python: str) -> str:
    """What the resolver says if a lock cannot be installed there; "" if it can."""
    with tempfile.TemporaryDirectory() as target:
        command = [
            *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--dry-run", "--no-deps"),
            *("--only-binary", ":all:", "--python-platform", platform, "--python-version", python),
            *("--target", target, "--requirement", str(lock)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def main() -> int:
    """Print one line per platform and Python, and what is missing."""
    failed = False
    for platform in PLATFORMS:
        for python in PYTHONS:
            found = {name: said for name in LOCKS if (said := missing(HERE / f"{name}.txt", platform, python))}
            print(f"{platform}, Python {python}: {len(LOCKS) - len(found)} of {len(LOCKS)} locks can be installed")
            for name, said in found.items():
                print(f"requirements/{name}.txt: {said}", file=sys.stderr)
            failed = failed or bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
