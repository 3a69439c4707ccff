"""R14 for run folders: their disk is full, or fails and turns read-only. The job ends with that as its reason, what was
recorded is whole, and it goes on once the disk is well.

The coordinator has the disk in a mount namespace of its own; this process reaches into it through /proc.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from marless.app.client import AsyncClient
from marless.core.errors import JobStateError
from marless.jobs.record import RoundRecord
from marless.storage.round_file import read
from tests.faults.pools import DOCUMENT, RunningPools, running_pools
from tests.faults.read_only import abort, on_image

JOB = "small"
DISK_BYTES = 4 * 2**20
ROUNDS_BEFORE, ROUNDS_AFTER = 10, 5
PATIENCE_S = 60.0
_TMPFS = 'mount -t tmpfs -o size="$1" tmpfs "$0" && shift && exec "$@"'


async def full(_seed: int, place: Path) -> dict[str, float]:
    """Raises AssertionError if a recorded round is lost or torn, or the job cannot be resumed; returns counts."""
    runs = place / "runs"
    mount = ("unshare", "-Urm", "sh", "-c", _TMPFS, str(runs), str(DISK_BYTES))
    async with running_pools(place, actor_workers=1) as pools, _coordinator(pools, place, mount) as (pid, client):
        inside = _inside(pid, runs)
        await _train(client)
        _fill(inside / "filler")
        rounds = await _failed(client, "No space left on device", _records(inside))
        (inside / "filler").unlink()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(JobStateError):  # its end is not on the disk yet
                    await client.resume(JOB, stop={"rounds": rounds + ROUNDS_AFTER})
                    break
                await asyncio.sleep(0.05)
            job = await client.wait(JOB)
        assert job.state == "SUCCEEDED", job.reason
        _check_whole(_records(inside), rounds + ROUNDS_AFTER)
    return {"rounds before": rounds, "rounds after": ROUNDS_AFTER, "lost or torn": 0}


async def aborted(_seed: int, place: Path) -> dict[str, float]:
    """As `full`, for a disk that fails; the coordinator is started again once it was mounted again."""
    runs = place / "runs"
    runs.mkdir()
    mount = on_image(place, runs)
    async with running_pools(place, actor_workers=1) as pools:
        async with _coordinator(pools, place, mount) as (pid, client):
            await _train(client)
            abort(pid, runs)
            rounds = await _failed(client, r"Read-only file system|Input/output error", _records(_inside(pid, runs)))
        async with _coordinator(pools, place, mount) as (pid, client):
            await _until(client, rounds + ROUNDS_AFTER)  # its end could not be written: it goes on by itself
            await client.cancel(JOB)
            job = await client.wait(JOB)
            _check_whole(_records(_inside(pid, runs)), job.rounds)
    return {"rounds before": rounds, "rounds after": job.rounds - rounds, "lost or torn": 0}


@asynccontextmanager
async def _coordinator(
    pools: RunningPools, place: Path, mount: tuple[str, ...]
) -> AsyncIterator[tuple[int, AsyncClient]]:
    """A coordinator on a disk of its own: its process, and a client of it."""
    (place / "runs").mkdir(exist_ok=True)
    address = f"unix:{place}/coordinator.sock"
    process = await asyncio.create_subprocess_exec(
        *mount,
        sys.executable,
        "-m",
        "marless.services.coordinator",
        "--listen",
        address,
        "--exit-with-stdin",
        "--runs",
        str(place / "runs"),
        "--param-store",
        pools.store_address,
        "--learner-pool",
        pools.learner_address,
        "--actor-pool",
        pools.actors.address,
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with AsyncClient(address, token="", tls_ca="", contact_s=PATIENCE_S, patience_s=PATIENCE_S) as client:
            await client.info()
            yield process.pid, client
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _train(client: AsyncClient) -> None:
    await client.submit(DOCUMENT | {"stop": {"rounds": 10**6}}, job=JOB)
    await _until(client, ROUNDS_BEFORE)


async def _until(client: AsyncClient, rounds: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (job := await client.get(JOB)).rounds < rounds:
            assert not job.state.ended, job.reason
            await asyncio.sleep(0.02)


async def _failed(client: AsyncClient, reason: str, records: Callable[[], list[RoundRecord]]) -> int:
    """Wait for the end that is due; returns how many rounds were recorded, all of them whole."""
    job = await client.wait(JOB, timeout_s=PATIENCE_S)
    assert job.state == "FAILED", job.state
    assert re.search(reason, job.reason), job.reason
    _check_whole(records, job.rounds)
    return job.rounds


def _check_whole(records: Callable[[], list[RoundRecord]], rounds: int) -> None:
    """Raise AssertionError unless each round is recorded once, and has made one version of each policy."""
    found = records()
    assert [record.round for record in found] == list(range(rounds))
    made = [dict(record.versions) for record in found]
    assert made == [dict.fromkeys(made[0], 2 + round_) for round_ in range(rounds)]


def _records(inside: Path) -> Callable[[], list[RoundRecord]]:
    return lambda: list(read(inside / JOB / "rounds.jsonl"))


def _inside(pid: int, runs: Path) -> Path:
    """The run folders as the coordinator sees them."""
    return Path(f"/proc/{pid}/root", runs.relative_to("/"))


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
