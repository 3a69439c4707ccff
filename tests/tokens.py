"""Directories of tokens for tests: each role's token says whose it is."""

from __future__ import annotations

from pathlib import Path

from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.tokens import Tokens


def token_of(role: Role, number: int = 1) -> str:
    """A token that nobody would guess, and everybody recognises."""
    return f"canary-of-the-{role}-{number}"


def write(directory: Path, role: Role, *tokens: str) -> None:
    """Put the tokens of a role into its file, at once."""
    partial = directory / f".{role}.partial"
    partial.touch(mode=0o600)
    partial.write_text("".join(f"{token}\n" for token in tokens))
    partial.replace(directory / role)


def made(directory: Path) -> Tokens:
    """A directory with one token of each role."""
    directory.mkdir(mode=0o700)
    for role in Role:
        write(directory, role, token_of(role))
    return Tokens(directory)


def client(role: Role, number: int = 1, *, tls_ca: str = "") -> Security:
    """What a process of this role shows."""
    return Security(token_of(role, number), tls_ca=tls_ca)
