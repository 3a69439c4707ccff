"""R14: the filesystem under Redis turns read-only. Publishes fail, none is acknowledged in vain, and it goes on once
the filesystem can be written again.

`remounted`: for Redis when it is started again; then the store recovers by itself. `aborted`: under the open log, as a
filesystem does that meets an error of its disk; whoever repairs that has to stop the store first. The filesystems are
in a mount namespace of the store's own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from tests.faults.disk_full import RECOVERS_S, REFUSALS, check, publish
from tests.faults.store_process import StoreProcess

PUBLISHED = 5
IMAGE_BYTES = 64 * 2**20
FREE_S = 10.0
_TMPFS = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
_IMAGE = 'mount -o loop "$1" "$0" && shift && exec "$@"'


def can_abort() -> bool:
    """True where this process may mount a filesystem that can be told to abort."""
    if os.geteuid() or not shutil.which("mkfs.ext4"):
        return False
    with tempfile.TemporaryDirectory() as place:
        probe = (*on_image(Path(place), Path(place)), "true")
        return subprocess.run(probe, check=False, capture_output=True).returncode == 0


def on_image(place: Path, disk: Path) -> tuple[str, ...]:
    """What runs a command with a filesystem of its own at `disk`, the same one each time; its image is in `place`."""
    image = place / "image"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    return ("unshare", "-m", "sh", "-c", _IMAGE, str(disk), str(image))


def abort(pid: int, disk: Path) -> None:
    """Have the filesystem of a process fail as if its disk had, under all files that are open."""
    _mount(pid, disk, "remount,abort")


async def remounted(seed: int, place: Path) -> dict[str, float]:
    """Raises AssertionError if an acknowledged version is lost, or the store does not come back; returns counts."""
    disk = place / "disk"
    disk.mkdir()
    async with StoreProcess(place, before=("unshare", "-Urm", "sh", "-c", _TMPFS, str(disk)), data=disk) as store:
        peer = Peer(store.address, Security())
        impatient, patient = ParamStore(peer, patience_s=0.0), ParamStore(peer, patience_s=RECOVERS_S)
        blobs: list[bytes] = []
        for _ in range(PUBLISHED):
            assert await publish(patient, seed, blobs)
        os.kill(store.pid, signal.SIGSTOP)  # or it starts Redis again before the filesystem is what it is to be
        try:
            _kill_redis(store.pid)
            _mount(store.pid, disk, "remount,bind,ro", "-U")
        finally:
            os.kill(store.pid, signal.SIGCONT)
        for _ in range(REFUSALS):
            assert not await publish(impatient, seed, blobs), "it was acknowledged on a read-only filesystem"
        _mount(store.pid, disk, "remount,bind,rw", "-U")
        writable_s = time.monotonic()
        assert await publish(patient, seed, blobs), "it can be written, and does not come back"
        recovery_s = time.monotonic() - writable_s
        await check(patient, blobs)
        await peer.close()
    return {"acknowledged": len(blobs), "refused": REFUSALS, "lost": 0, "recovery (s)": round(recovery_s, 2)}


async def aborted(seed: int, place: Path) -> dict[str, float]:
    """As `remounted`; the store is started again after the filesystem was mounted again."""
    disk = place / "disk"
    disk.mkdir()
    async with StoreProcess(place, before=on_image(place, disk), data=disk) as store:
        peer = Peer(store.address, Security())
        impatient, patient = ParamStore(peer, patience_s=0.0), ParamStore(peer, patience_s=RECOVERS_S)
        blobs: list[bytes] = []
        for _ in range(PUBLISHED):
            assert await publish(patient, seed, blobs)
        abort(store.pid, disk)
        for _ in range(REFUSALS):
            assert not await publish(impatient, seed, blobs), "it was acknowledged on an aborted filesystem"
        _kill_redis(store.pid)
        store.kill()
        started_s = time.monotonic()
        assert await publish(patient, seed, blobs), "it was mounted again, and the store does not come back"
        recovery_s = time.monotonic() - started_s
        await check(patient, blobs)
        await peer.close()
    return {"acknowledged": len(blobs), "refused": REFUSALS, "lost": 0, "recovery (s)": round(recovery_s, 2)}


def _mount(pid: int, disk: Path, options: str, *namespaces: str) -> None:
    """Change a mount; it is busy until a process that was killed has let go of its files."""
    command = ("nsenter", "-t", str(pid), "-m", *namespaces, "mount", "-o", options, str(disk))
    give_up_s = time.monotonic() + FREE_S
    while (done := subprocess.run(command, check=False, capture_output=True, text=True)).returncode:
        assert time.monotonic() < give_up_s, done.stderr
        time.sleep(0.02)


def _kill_redis(store: int) -> None:
    for process in psutil.Process(store).children():
        with suppress(psutil.NoSuchProcess):
            if "redis-server" in process.name() or "valkey-server" in process.name():
                process.kill()
