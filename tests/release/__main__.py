"""Builds a release and tries it as a newcomer would: `python -m tests.release --python python3.12 --python python3.13`.

Sdist and wheel go to dist/, with their SHA-256, and are checked. The wheel is installed in an empty environment of each
Python, with an empty HOME, and trains there from an empty folder. All this can be done at any commit; only one that has
the tag of its version is signed. Nothing is uploaded: the command is printed, for a person.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.harness import Row, say, table
from tests.release.built import DIST, ROOT, build, check, version
from tests.release.signed import lacking, sign

TRAIN = ("train", "mpe/simple_spread", "--set", "stop.env_steps=40000", "-o", "json")
TWINE = ROOT / ".venv/release/bin/twine"


def tried(wheel: Path, python: str, place: Path) -> Row:
    """Install the wheel in an empty environment of this Python, train, load the policies, and make an environment."""
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
    run(own, "-m", "marless", "new", "environment", "meeting")
    run(own, "-m", "pip", "install", "--quiet", "-e", "./meeting[test]")
    run(own, "-m", "pytest", "--quiet", "meeting")
    return {
        "Python": run(own, "-c", "import platform; print(platform.python_version())").strip(),
        "marless": ended["marless_version"],
        "install, s": round(installed_s),
        "on disk, GB": round(size / 1e9, 1),
        "greedy return": round(ended["return"], 2),
        "random": round(ended["random_return"], 2),
    }


def main() -> int:
    """Build, check, try the wheel under each Python, sign; exit code 1 if the checkout is not ready for a release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="PROGRAM", help="may be given several times")
    pythons = parser.parse_args().python or [sys.executable]
    missing = lacking(ROOT, version())
    if missing:
        say(f"a rehearsal of {version()}, which is not to be published: it lacks {'; '.join(missing)}")
    sdist, wheel = build()
    subprocess.run([str(TWINE), "check", "--strict", str(sdist), str(wheel)], check=True)
    check(sdist, wheel)
    say(f"{wheel.name} has marless and its plug-ins alone, and is what {sdist.name} gives")
    rows = []
    for python in pythons:
        with tempfile.TemporaryDirectory(prefix="release-") as place:
            rows.append(tried(wheel, python, Path(place)))
    say(table(rows))
    if missing:
        say(f"not signed: {version()} lacks {'; '.join(missing)}")
        return 1
    _finish(sdist, wheel)
    return 0


def _finish(sdist: Path, wheel: Path) -> None:
    """Sign, and print how to publish."""
    signature = sign(DIST / "SHA256SUMS")
    say(f"signed: {signature.relative_to(ROOT)}" if signature else "not signed: no signing key (git's user.signingkey)")
    files = " ".join(str(each.relative_to(ROOT)) for each in (sdist, wheel))
    say(f"to publish: {TWINE.relative_to(ROOT)} upload {files}")


if __name__ == "__main__":
    sys.exit(main())
