"""Builds a release and tries it as a newcomer would: `python -m tests.release --python python3.12 --python python3.13`.

Sdist and wheel go to dist/, with their SHA-256. The wheel is installed in an empty environment of each Python, with an
empty HOME, and trains there from an empty folder. Nothing is uploaded: `twine upload dist/*` is for a person.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from bench.harness import Row, say, table

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TRAIN = ("train", "mpe/simple_spread", "--set", "stop.env_steps=40000", "-o", "json")


def build() -> Path:
    """Build sdist and wheel of this checkout; returns the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(DIST)], cwd=ROOT, check=True)
    sums = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    return next(DIST.glob("*.whl"))


def problems() -> list[str]:
    """What a release must have and this checkout lacks."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    said = [
        ("a section of CHANGELOG.md", re.search(rf"^## {re.escape(version)}\b", changelog, re.M)),
        ("the version in CITATION.cff", f"version: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")),
        (f"a tag v{version} at this commit", f"v{version}" in _git("tag", "--points-at", "HEAD").split()),
        ("a checkout without changes", not _git("status", "--porcelain")),
    ]
    return [f"release {version} lacks {what}" for what, there in said if not there]


def tried(wheel: Path, python: str, place: Path) -> Row:
    """Install the wheel in an empty environment of this Python, train, and load the policies."""
    home, environment, work = place / "home", place / "environment", place / "work"
    for each in (home, work):
        each.mkdir(parents=True)
    ours = ("PYTHON", "MARLESS_", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {"HOME": str(home)}

    def run(*command: str) -> str:
        return subprocess.run(command, cwd=work, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout

    run(python, "-m", "venv", str(environment))
    own = str(environment / "bin" / "python")
    begun_s = time.monotonic()
    run(own, "-m", "pip", "install", "--quiet", f"{wheel}[train]")
    installed_s = time.monotonic() - begun_s
    ended = json.loads(run(own, "-m", "marless", *TRAIN).splitlines()[-1])
    if ended["state"] != "SUCCEEDED":
        raise RuntimeError(f"{python}: the job ended {ended['state']}: {ended['reason']}")
    run(own, "-c", f"import marless; assert len(marless.load_policy({ended['job']!r}).policies) == 3")
    size = sum(path.lstat().st_size for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    version = run(own, "-c", "import platform; print(platform.python_version())").strip()
    return {
        "Python": version,
        "install, s": round(installed_s),
        "on disk, GB": round(size / 1e9, 1),
        "greedy return": round(ended["return"], 2),
        "random": round(ended["random_return"], 2),
    }


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> int:
    """Build, and try the wheel under each Python; exit code 1 if the checkout is not ready for a release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="PROGRAM", help="may be given several times")
    pythons = parser.parse_args().python or [sys.executable]
    wheel = build()
    rows = []
    for python in pythons:
        with tempfile.TemporaryDirectory(prefix="release-") as place:
            rows.append(tried(wheel, python, Path(place)))
    say(table(rows))
    missing = problems()
    for each in missing:
        say(each)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
