"""Measures many readers who all ask the parameter store for the same new version at once.

`python -m bench.pulls --json pulls.json`. Each reader has a connection of its own, and does not ask
again if it is refused.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from bench import harness
from bench.harness import Row, percentile, spread
from bench.stack import peak_mb, serving
from marless.core.errors import MarlessError
from marless.rpc.client import Peer, allow_many_files
from marless.rpc.concurrency import gather
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.security import Security

JOB = "pulls"
START_S, READ_S = 30.0, 120.0


async def pull(address: str, readers: int, size_bytes: int, version: int) -> tuple[list[float], int]:
    """Publish a version, and have all read it: the seconds that each read took, and how many were refused."""
    blob = os.urandom(size_bytes)
    writer = Peer(address, Security())
    await ParamStore(writer, patience_s=START_S).publish(
        JOB, 0, version, [PolicyWrite("policy", version, f"{version}", {"acting": blob})]
    )
    peers = [Peer(address, Security()) for _ in range(readers)]
    took_s: list[float] = []
    refused = 0

    async def read(peer: Peer) -> None:
        nonlocal refused
        began_s = time.perf_counter()
        try:
            got = await ParamStore(peer, patience_s=0.0, transfer_s=READ_S).get(
                JOB, {"policy": version + 1}, ["acting"]
            )
        except MarlessError as error:
            harness.say(str(error))
            refused += 1
        else:
            assert bytes(got["policy"].blobs["acting"]) == blob
            took_s.append(time.perf_counter() - began_s)

    await gather(read(peer) for peer in peers)
    for peer in (writer, *peers):
        await peer.close()
    return took_s, refused


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--readers", type=int, default=2000, help="readers of a version")
    parser.add_argument("--bytes", type=int, default=2**20, help="its size")
    args = parser.parse_args()
    about = harness.machine()
    allow_many_files()
    with tempfile.TemporaryDirectory(prefix="marless-") as name:
        place, address = Path(name), f"unix:{name}/store.sock"
        command = ("marless.services.param_store", "--listen", address, "--data-dir", f"{name}/data")
        with serving(place / "log", *command) as process:
            runs = [asyncio.run(pull(address, args.readers, args.bytes, run)) for run in range(args.runs)]
            memory = peak_mb(process.pid)
    row: Row = {
        "readers": args.readers,
        "KiB": args.bytes >> 10,
        "refused": sum(refused for _, refused in runs),
        "last read after s": spread([max(took_s) for took_s, _ in runs]).cell(2),
        "half of them after s": spread([percentile(took_s, 50) for took_s, _ in runs]).cell(2),
        "param_store MB": round(memory),
    }
    harness.report("pulls", about, [row], {"refused": row["refused"]}, args.json)


if __name__ == "__main__":
    main()
