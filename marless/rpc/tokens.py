"""Token files: a directory with one file per role, named after it, with one token per line.

Servers accept every line, so that an old and a new token are both valid during a rotation; a process sends the first.
Files are reread when they change, so that a rotation needs no restart.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from marless.core.errors import SpecError, denied, shown
from marless.rpc.roles import Role

LOOK_S = 1.0
"""Seconds between two checks for changed files, at least; an unknown token causes an immediate check."""
_FILE_BYTES = 2**16
_TOKEN_BYTES = 32
_TOKEN = re.compile(r"[!-~]{16,512}")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Tokens:
    """The tokens of a directory, read on first use. Raises SpecError if they are invalid or not private then.

    If files become invalid or vanish later, a warning is logged and the last valid tokens stay in use.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: dict[Role, tuple[str, ...]] = {}
        self._seen: tuple[object, ...] = ()
        self._looked_s = -LOOK_S

    def check(self) -> None:
        """Raise SpecError now if the directory cannot be used."""
        self._look(time.monotonic())

    def of(self, role: Role) -> str:
        """The token that a process of this role sends; "" if the directory has none for it."""
        self._look(time.monotonic())
        return self._held.get(role, ("",))[0]

    def role_of(self, token: bytes) -> Role | None:
        """The role of a token; None if the token is unknown."""
        self._look(time.monotonic())
        role = self._match(token)
        if role is None and self._read_again():  # the caller may have read a new file earlier than this process
            role = self._match(token)
        return role

    def _match(self, token: bytes) -> Role | None:
        found = None  # compare with every token, in constant time, so that timing reveals nothing
        for role, accepted in self._held.items():
            for each in accepted:
                if hmac.compare_digest(each.encode(), token):
                    found = role
        return found

    def _look(self, now_s: float) -> None:
        if not self._held or now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._read_again()

    def _read_again(self) -> bool:
        """Reread the files if they have changed; returns whether they have."""
        # Before the files are read: what changes meanwhile is then found at the next look.
        seen = _signature(self._directory)
        if seen == self._seen:
            return False
        first = not self._held
        try:
            self._held = read(self._directory, self._held)
        except SpecError as error:
            if first:
                raise
            _warn(str(error))
        # Also after an error, so that it is logged once for each change, and not at every call.
        self._seen = seen
        return True


def read(directory: Path, before: Mapping[Role, tuple[str, ...]]) -> dict[Role, tuple[str, ...]]:
    """Read all tokens of a directory. A role whose file was valid `before` and is not now keeps its tokens, with a
    warning.

    Raises SpecError for files that were never valid, for a directory that others may write to, for one without any
    token, and for a token that occurs twice.
    """
    _check_directory(directory)
    held = dict(before)
    for role in Role:
        try:
            if tokens := _of_file(directory / role):
                held[role] = tokens
            elif role in before:
                _warn(f"{directory / role} no longer exists; its tokens stay valid until it exists again")
        except SpecError as error:
            if role not in before:
                raise
            _warn(f"{error}; its last tokens stay valid")
    if not held:
        raise SpecError(f"{directory} has no token; `marless tokens {directory}` makes them")
    every = [token for tokens in held.values() for token in tokens]
    if len(set(every)) < len(every):
        raise SpecError(f"{directory}: a token is given twice; each token has one role and one line")
    return held


def create(directory: Path) -> None:
    """Create the directory, and a token for every role that has none. Raises SpecError."""
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700, parents=True)
        _check_directory(directory)
        names = {path.name for path in directory.iterdir()}
        if names and names.isdisjoint(Role):  # with a mistyped path, tokens would go among other files
            raise SpecError(
                f"{directory} has other files in it, such as {shown(min(names))}; name a new directory for tokens"
            )
        for role in Role:
            if not (directory / role).exists():
                _write(directory / role, [secrets.token_urlsafe(_TOKEN_BYTES)])
    except OSError as error:
        raise SpecError(denied(error)) from None


def rotate(directory: Path, role: Role) -> None:
    """Give a role a new token, which its processes send from now on; the present one stays valid, older ones do not."""
    _replace(directory, role, lambda tokens: [secrets.token_urlsafe(_TOKEN_BYTES), *tokens[:1]])


def retire(directory: Path, role: Role) -> None:
    """Remove all tokens of a role but the one that its processes send."""
    _replace(directory, role, lambda tokens: list(tokens[:1]))


def _replace(directory: Path, role: Role, change: Callable[[tuple[str, ...]], list[str]]) -> None:
    _check_directory(directory)
    path, partial = directory / role, directory / f".{role}.{os.getpid()}"
    try:
        _write(partial, change(_of_file(path)))
        # In one step, because a service may read the file at any moment.
        partial.replace(path)
    except OSError as error:
        raise SpecError(denied(error)) from None


def _write(path: Path, tokens: list[str]) -> None:
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w", encoding="ascii") as file:
        file.writelines(f"{token}\n" for token in tokens)


def _signature(directory: Path) -> tuple[object, ...]:
    """A value that changes when a file of the directory changes."""
    seen: list[object] = []
    for path in (directory, *(directory / role for role in Role)):
        try:
            status = path.stat()
        except OSError as error:
            seen.append(error.errno)
        else:
            # Of the directory only owner and permissions matter; its time changes with whatever is made in it.
            size = 0 if path is directory else status.st_size
            changed = 0 if path is directory else status.st_mtime_ns
            seen.append((status.st_ino, status.st_mode, status.st_uid, size, changed))
    return tuple(seen)


def _check_directory(directory: Path) -> None:
    try:
        status = directory.stat()
    except OSError as error:
        raise SpecError(
            f"the directory of tokens {directory} cannot be read ({error.strerror}); "
            f"`marless tokens {directory}` makes it"
        ) from None
    if not stat.S_ISDIR(status.st_mode):
        raise SpecError(f"{directory} is no directory; `marless tokens DIR` makes one with a token a role")
    if status.st_uid not in (os.geteuid(), 0):
        raise SpecError(f"the directory of tokens {directory} belongs to another user; make one of your own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SpecError(f"others may write to the directory of tokens {directory}; `chmod 700 {directory}`")


def _of_file(path: Path) -> tuple[str, ...]:
    """The tokens of one file, which nobody else may access; none if there is no file. Raises SpecError."""
    try:
        # A named pipe in its place would make the service wait for a writer.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise SpecError(f"{path} cannot be read ({error.strerror})") from None
    try:
        # The open file is checked, because another one may lie at the path a moment later.
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _FILE_BYTES:
            raise SpecError(f"{path} is not a file of tokens")
        if status.st_uid not in (os.geteuid(), 0):
            raise SpecError(f"{path} belongs to another user, who knows its tokens; make a directory of your own")
        if status.st_mode & _OTHERS:
            raise SpecError(f"others may read or write {path}; `chmod 600 {path}`, and rotate its tokens")
        content = os.read(number, _FILE_BYTES).decode(errors="replace")
    finally:
        os.close(number)
    tokens = tuple(line for line in map(str.strip, content.splitlines()) if line)
    if not tokens:
        raise SpecError(f"{path} is empty; it needs a token")
    if not all(map(_TOKEN.fullmatch, tokens)):
        raise SpecError(f"{path} has a line that is not a token: 16 to 512 printable ASCII characters without a space")
    return tokens


def _warn(sentence: str) -> None:
    # here, because only servers log: a client starts in a quarter less time without it
    from marless.core.log import structlog

    structlog.get_logger("marless.tokens").warning("tokens.broken", reason=sentence)
