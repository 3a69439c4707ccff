"""Detects a file or folder in the working directory that has the same name as a job."""

from __future__ import annotations

from pathlib import Path


def taken(name: str, runs: Path) -> str:
    """A note for the user if `name` is both a path in the working directory and a job in `runs`; else "".

    The path in the working directory takes precedence. A name with a slash is a path and never ambiguous.
    """
    here, there = Path(name), runs / name
    if here.name != name or not (here.exists() and there.exists()) or here.resolve() == there.resolve():
        return ""
    return (
        f"note: {name} is read from ./{name}, not from the job of that id; `{there}` names the job, and `./{name}` "
        "what is here"
    )
