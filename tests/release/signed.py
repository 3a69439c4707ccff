"""Says what a release still lacks, and signs it with the key that git has been told of."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from packaging.version import Version

NAMESPACE = "file"
"""What a signature by ssh-keygen is for; verifying it takes the same."""


def lacking(root: Path, version: str) -> list[str]:
    """What a release of this version must have and this checkout lacks."""
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    tags = _git(root, "tag", "--points-at", "HEAD").split()
    others = f", which has {', '.join(tags)}" if tags else ""
    found = [
        ("a version in pyproject.toml that is no pre-release", not Version(version).is_prerelease),
        ("a section of CHANGELOG.md", _section(changelog, version)),
        ("an end of the section Unreleased of CHANGELOG.md", not _section(changelog, "Unreleased")),
        (f"a tag v{version} at this commit{others}", f"v{version}" in tags),
        ("a checkout without changes", not _git(root, "status", "--porcelain")),
    ]
    return [what for what, is_there in found if not is_there]


def _section(changelog: str, name: str) -> str:
    """What stands in a section, also below smaller headings; "": nothing does, or there is no such section."""
    found = re.search(rf"^## {re.escape(name)}[ \t]*$(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    return found[1].strip() if found else ""


def sign(file: Path) -> Path | None:
    """Sign a file beside it with the key of git's `user.signingkey`; None if no key is named. Makes no key.

    Raises subprocess.CalledProcessError if the key cannot sign; the program has said why.
    """
    key = _git(file.parent, "config", "--default", "", "--get", "user.signingkey").strip()
    if not key:
        return None
    if _git(file.parent, "config", "--default", "openpgp", "--get", "gpg.format").strip() == "ssh":
        return _by_ssh(file, key)
    signature = file.with_name(f"{file.name}.asc")
    subprocess.run(
        ["gpg", "--yes", "--armor", "--local-user", key, "--output", str(signature), "--detach-sign", str(file)],
        check=True,
    )
    return signature


def _by_ssh(file: Path, key: str) -> Path:
    with tempfile.NamedTemporaryFile("w", suffix=".pub") as public:
        # As git reads it: the key itself, which an agent then holds, or the name of its file.
        literal = key.removeprefix("key::")
        is_key = literal != key or key.startswith("ssh-")
        public.write(literal + "\n" if is_key else "")
        public.flush()
        named = public.name if is_key else str(Path(key).expanduser())
        agent = ["-U"] if is_key else []
        signature = file.with_name(f"{file.name}.sig")
        signature.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-Y", "sign", *agent, "-n", NAMESPACE, "-f", named, str(file)], check=True)
    return signature


def _git(place: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=place, check=True, stdout=subprocess.PIPE, text=True).stdout
