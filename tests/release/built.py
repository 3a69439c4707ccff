"""Builds sdist and wheel, and checks what is in them."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
PACKED = ("marless", "services", "examples", "plugins/marless_*")
"""What a wheel has of the checkout: paths of git, each of whose files must be there."""
_OURS = re.compile(r"marless(_\w+)?|marless-[^-]+\.dist-info")
"""What may stand in the root of a wheel: plain names such as `services` would shadow other people's packages."""
_ABOUT = re.compile(r"marless-[^-/]+\.dist-info/.+")


class ReleaseError(Exception):
    """What was built must not be published; the message says why."""


def build() -> tuple[Path, Path]:
    """Build sdist and wheel of this checkout into an empty dist/, and their SHA-256 sums; returns sdist and wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    _hatchling(ROOT, DIST)
    [sdist], [wheel] = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    sums = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in (sdist, wheel)]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    return sdist, wheel


def check(sdist: Path, wheel: Path) -> None:
    """Raise ReleaseError unless the wheel has all of ours, nothing else, and is what its sdist gives."""
    names = contents(wheel).keys()
    if foreign := foreign_names(names):
        raise ReleaseError(f"{wheel.name} would install {', '.join(foreign)} beside marless")
    known = _of_checkout()
    if lacking := known - names:
        raise ReleaseError(f"{wheel.name} lacks {', '.join(sorted(lacking))}")
    if unknown := unknown_files(names, known):
        raise ReleaseError(f"{wheel.name} has what git does not know: {', '.join(unknown)}; add or remove it")
    with tempfile.TemporaryDirectory(prefix="sdist-") as place:
        again = from_sdist(sdist, Path(place))
        if differing := differences(contents(wheel), contents(again)):
            raise ReleaseError(f"the wheel of {sdist.name} differs from {wheel.name} in {', '.join(differing)}")


def contents(wheel: Path) -> dict[str, str]:
    """The SHA-256 of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def foreign_names(names: Iterable[str]) -> list[str]:
    """What a wheel with these files has in its root besides marless and its plug-ins."""
    return sorted({root for name in names if not _OURS.fullmatch(root := name.partition("/")[0])})


def unknown_files(names: Iterable[str], known: Collection[str]) -> list[str]:
    """The files of a wheel that are neither `known` nor about the wheel.

    Git calls a checkout unchanged also with files that a person's own settings ignore, which the build packs.
    """
    return sorted(name for name in names if name not in known and not _ABOUT.fullmatch(name))


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """The files that only one of two wheels has, or that differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def from_sdist(sdist: Path, place: Path) -> Path:
    """Build a wheel in `place` from what is in an sdist alone."""
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    [source] = place.iterdir()
    _hatchling(source, place / "dist", "-t", "wheel")
    return next((place / "dist").glob("*.whl"))


def _of_checkout() -> set[str]:
    """The files of the checkout that a wheel must have, by their names there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *PACKED], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    files = (name for name in listed.split("\0") if name and not (ROOT / name).is_symlink())
    return {re.sub(r"^(services|examples)/", r"marless/\1/", name.removeprefix("plugins/")) for name in files}


def _hatchling(source: Path, into: Path, *options: str) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", *options, "-d", str(into)], cwd=source, check=True)


def version() -> str:
    """The version that pyproject.toml names."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"])
