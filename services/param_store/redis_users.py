"""Who may do what in a Redis of our own: its users, with the least that each needs, and their passwords.

The default user is off, so that a connection without a password may do nothing. Redis is told the users by a file that
holds hashes; the passwords are in another file beside it. Both are made when a store starts, in the private directory
of its data, and the passwords are in no command line, no variable and no log.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from marless import private_files

STORE, SUPERVISOR = "store", "supervisor"
PASSWORDS_FILE = "redis_passwords.json"  # a name of a file
ACL_FILE = "users.acl"
_PASSWORD_BYTES = 32
_TRANSACTIONS = "ping info multi exec discard eval"
_HASHES = "hset hget hdel hmget hgetall hkeys hincrby"
_SETS = "zadd zrange zrem zscore sadd srem sismember smembers"
_KEYS = "expire persist exists rename unlink xadd xread"
RULES = {
    # What `services.param_store.store` and its scripts call, on the keys that `services.param_store.keys` describes.
    STORE: "~marless:* resetchannels -@all "
    + " ".join(f"+{name}" for name in f"{_TRANSACTIONS} {_HASHES} {_SETS} {_KEYS}".split()),
    # Looks after the process: neither reads nor writes a key.
    SUPERVISOR: "resetkeys resetchannels -@all +ping +shutdown",
}


_DEFAULT = "user default off resetpass ~* &* +@all"
"""Nobody can be this user. But Redis 7.0 reads its log as this user at each start, and leaves out the transactions that
the user's rules do not allow.
"""


@dataclass(frozen=True)
class RedisUsers:
    """The users of one Redis; `passwords` by user."""

    acl_file: Path
    passwords: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, home: Path) -> RedisUsers:
        """Those of a data directory; what is missing or damaged is made anew. Raises OSError."""
        passwords = _read(home / PASSWORDS_FILE)
        if passwords is None:
            passwords = {user: secrets.token_urlsafe(_PASSWORD_BYTES) for user in RULES}
            _replace(home / PASSWORDS_FILE, json.dumps(passwords))
        users = (f"user {name} on #{_digest(passwords[name])} {rules}\n" for name, rules in RULES.items())
        _replace(home / ACL_FILE, f"{_DEFAULT}\n" + "".join(users))
        return cls(home / ACL_FILE, passwords)


def _digest(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


def _read(path: Path) -> dict[str, str] | None:
    with suppress(FileNotFoundError, ValueError), os.fdopen(private_files.open_own(path, os.O_RDONLY)) as file:
        found = json.load(file)
        if isinstance(found, dict) and all(isinstance(found.get(user), str) and found[user] for user in RULES):
            os.fchmod(file.fileno(), 0o600)
            return {user: found[user] for user in RULES}
    return None


def _replace(path: Path, text: str) -> None:
    """Whole or not at all; only this user can read it, from the beginning."""
    partial = path.with_suffix(f".{secrets.token_hex(4)}.partial")
    with os.fdopen(private_files.open_own(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
