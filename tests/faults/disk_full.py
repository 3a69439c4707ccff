"""R14: the disk under Redis and the store's log is full, and Redis is killed. Publishes fail, none is acknowledged in
vain, and once there is room all goes on: what could not be written into the log does not matter.

The disk is a tmpfs in a mount namespace of the store's own; this process reaches into it through /proc.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from marless.core.errors import UnavailableError
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.security import Security
from tests.faults.store_process import StoreProcess

JOB, POLICY = "job", "p"
DISK_BYTES = 64 * 2**20
FILLER_BYTES = 40 * 2**20
BLOB_BYTES = 500_000
REFUSALS = 10
RECOVERS_S = 30.0
DOWN_S = 3.0
"""Seconds for which Redis cannot be started again."""
_MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$0" && fallocate -l "$2" "$0/filler" && shift 2 && exec "$@" 2>>"$0/log"'


def possible() -> bool:
    """True where a process may have mounts of its own."""
    unshare = shutil.which("unshare")
    return bool(unshare) and subprocess.run([unshare, "-Urm", "true"], check=False, capture_output=True).returncode == 0


async def run(seed: int, place: Path) -> dict[str, float]:
    """Raises AssertionError if an acknowledged version is lost, or the store does not come back; returns counts."""
    disk = place / "disk"
    disk.mkdir()
    mount = ("unshare", "-Urm", "sh", "-c", _MOUNT, str(disk), str(DISK_BYTES), str(FILLER_BYTES))
    async with StoreProcess(place, before=mount, data=disk) as store:
        peer = Peer(store.address, Security())
        impatient, patient = ParamStore(peer, patience_s=0.0), ParamStore(peer, patience_s=RECOVERS_S)
        blobs: list[bytes] = []
        assert await publish(patient, seed, blobs)
        while await publish(impatient, seed, blobs):
            pass
        for _ in range(REFUSALS):
            assert not await publish(impatient, seed, blobs), "it was acknowledged on a full disk"
        _fill_the_rest(store.pid, disk)
        await _kill_redis(store.pid)
        assert not await publish(impatient, seed, blobs), "it was acknowledged without Redis"
        await asyncio.sleep(DOWN_S)
        _remove_filler(store.pid, disk)
        roomy_s = time.monotonic()
        assert await publish(patient, seed, blobs), "there is room, and it does not come back"
        recovery_s = time.monotonic() - roomy_s
        await check(patient, blobs)
        await peer.close()
    return {"acknowledged": len(blobs), "refused": REFUSALS, "lost": 0, "recovery (s)": round(recovery_s, 2)}


def _fill_the_rest(pid: int, disk: Path) -> None:
    """So that not even one line of a log can be written."""
    with suppress(OSError), _of(pid, disk, "rest").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def _kill_redis(pid: int) -> None:
    """Kill what is left of Redis, which ends by itself when it cannot write."""
    for each in psutil.Process(pid).children():
        if "redis-server" in each.name() or "valkey" in each.name():
            each.kill()


def _of(pid: int, disk: Path, name: str) -> Path:
    """A file of the disk, as this process reaches it."""
    return Path(f"/proc/{pid}/root", disk.relative_to("/"), name)


def _remove_filler(pid: int, disk: Path) -> None:
    for name in ("filler", "rest"):
        _of(pid, disk, name).unlink()


async def check(store: ParamStore, blobs: list[bytes]) -> None:
    """Raise AssertionError unless every acknowledged version is there as it was published."""
    for version, blob in enumerate(blobs, 1):
        read = await store.get(JOB, {POLICY: version}, ["acting"])
        assert bytes(read[POLICY].blobs["acting"]) == blob, f"version {version} is not what was acknowledged"


async def publish(store: ParamStore, seed: int, blobs: list[bytes]) -> bool:
    """Publish the next version, whenever asked of the same bytes; False if it is refused."""
    version = len(blobs) + 1
    blob = random.Random(f"{seed}/{version}").randbytes(BLOB_BYTES)
    try:
        published = await store.publish(JOB, 0, 0, [PolicyWrite(POLICY, version - 1, f"{version}", {"acting": blob})])
    except UnavailableError:
        return False
    assert published == {POLICY: version}
    blobs.append(blob)
    return True
