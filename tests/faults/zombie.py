"""A writer to be paused: `python -m tests.faults.zombie ADDRESS JOB POLICY`.

For each line "EPOCH HEAD" on standard input it publishes with that epoch, from that head on, as fast as it can, and
says "published VERSION" each time, until it is refused: then it says why, and reads the next line.
"""

from __future__ import annotations

import asyncio
import os
import sys

from marless.core.errors import ConflictError, FencedError
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.security import Security

BLOB_BYTES = 300_000


async def main(address: str, job: str, policy: str) -> None:
    """Serve standard input."""
    peer = Peer(address, Security())
    store = ParamStore(peer)
    while line := await asyncio.to_thread(sys.stdin.readline):
        epoch, head = map(int, line.split())
        try:
            while True:
                write = PolicyWrite(policy, head, f"zombie/{epoch}/{head + 1}", {"acting": os.urandom(BLOB_BYTES)})
                head = (await store.publish(job, epoch, 0, [write]))[policy]
                _say(f"published {head}")
        except FencedError:
            _say("fenced")
        except ConflictError as error:
            _say(f"conflict: {error}")
    await peer.close()


def _say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
