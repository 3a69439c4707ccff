"""Where a learner pool keeps its files: a place of this user's in the directory that it was given.

    <home>/marless-spool-<random>/    trajectories of one pool, until their update; it goes with the pool
    <home>/marless-replay-<store>/    what learners remember of past rounds; it outlives pools

The home is the directory itself if only this user may write to it; in a shared one, such as /dev/shm, it is a private
directory `marless-<uid>`. Earlier versions had no home there: what they have left is found, and moved or removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marless import private_files
from marless.errors import UnavailableError
from marless.private_files import Claim

_REPLAYS = "marless-replay-"
_TRAJECTORIES = "marless-spool-"


def claim(place: Path) -> Claim:
    """A directory for the trajectories of one pool; those of pools that were killed would hold memory for ever, and are
    removed. Raises UnavailableError if the spool cannot be used.
    """
    with _usable(place):
        for home in homes(place):
            private_files.sweep(home, f"{_TRAJECTORIES}*")
        return Claim.make(homes(place)[0] / f"{_TRAJECTORIES}{secrets.token_hex(4)}")


def replays(place: Path, owner: str) -> Path:
    """The directory for the replays of one pool, and of those that come after it under the same name. Raises
    UnavailableError if the spool cannot be used.
    """
    name = f"{_REPLAYS}{owner}"
    with _usable(place):
        home, *earlier = homes(place)
        for before in earlier:
            with suppress(OSError):  # there is none, or it is another user's, or a link
                private_files.check(before / name)
                (before / name).rename(home / name)
        return private_files.directory(home / name)


def all_replays(place: Path) -> Iterator[Path]:
    """The directories of this user's pools, of those that are gone too. Raises OSError."""
    for home in homes(place):
        for directory in home.glob(f"{_REPLAYS}*"):
            with suppress(OSError):  # another user's, or a link
                private_files.check(directory)
                yield directory


def homes(place: Path) -> list[Path]:
    """Where files of this user may be in a spool: the first place is for new ones. Raises OSError."""
    home = private_files.home(place)
    return [home] if home == place else [home, place]


@contextmanager
def _usable(place: Path) -> Iterator[None]:
    """Turns an OSError of the block into a sentence that names the spool."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"spool directory {error.filename or place}: {error.strerror}; choose another with --spool"
        ) from None
