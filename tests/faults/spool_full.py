"""R14 for the spool: its disk is full. Uploads and replays are refused, nothing is half there, and once there is room
they are taken. `run` starts this module in a mount namespace of its own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from marless.core.errors import UnavailableError
from marless.services.learner_pool.replays import Replays
from tests.contract.test_trajectory_buffer import TINY, blank, opened, upload

DISK_BYTES = 2**16
REPLAY_BYTES = 2**14
_TMPFS = 'mount -t tmpfs -o size="$1" tmpfs "$0" && shift && exec "$@"'


def run(place: Path) -> dict[str, float]:
    """Raises AssertionError, with what was said, if something of it is not so; returns counts."""
    disk = place / "disk"
    disk.mkdir()
    mount = ("unshare", "-Urm", "sh", "-c", _TMPFS, str(disk), str(DISK_BYTES))
    child = (sys.executable, "-m", "tests.faults.spool_full", str(disk))
    done = subprocess.run([*mount, *child], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {"refused": 2, "half written": 0}


async def inside(disk: Path) -> None:
    buffer = opened(disk, TINY)
    replays = Replays(disk, "unix:/store", buffer, keep_s=60.0)
    before = _files(disk)
    with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    for refused in (upload(buffer, blank(TINY)), asyncio.to_thread(replays.open, "job", {"team": REPLAY_BYTES})):
        try:
            await refused
        except UnavailableError as error:
            assert "No space left on device; give it room" in str(error), error
        else:
            raise AssertionError("it was taken on a full disk")
    assert _files(disk) == before | {disk / "filler"}, "something of it is left"
    (disk / "filler").unlink()
    assert await upload(buffer, blank(TINY))
    replays.open("job", {"team": REPLAY_BYTES})


def _files(disk: Path) -> set[Path]:
    return {path for path in disk.rglob("*") if path.is_file()}


if __name__ == "__main__":
    asyncio.run(inside(Path(sys.argv[1])))
