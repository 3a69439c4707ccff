"""A folder in the working directory that has the name of a job: which of the two a name is taken for."""

from __future__ import annotations

from pathlib import Path


def taken(name: str, runs: Path) -> str:
    """A sentence for people if `name` is both a folder or file here and a job in `runs`; "" if it is not.

    What is here is taken. With a slash in it, a name is a path, and nothing is in doubt.
    """
    here, there = Path(name), runs / name
    if here.name != name or not (here.exists() and there.exists()) or here.resolve() == there.resolve():
        return ""
    return (
        f"note: {name} is read from ./{name}, not from the job of that id; `{there}` names the job, and `./{name}` "
        "what is here"
    )
