"""The actor that runs one worker on a node of Ray, as a process below its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from marless.core import orphans, process_environment
from marless.fleet.launchers.forking import how

_FILES = ("--tls-cert", "--tls-key", "--tls-ca")
_OF_RAY = ("RAY_", "_RAY_")
"""Variables of Ray that a worker does not need; one of them may be a token of the cluster."""


class WorkerHost:
    """A place for a worker. When one has ended, another may be started in the same actor.

    All methods run in one event loop. What they take and return is text, of JSON where it has a structure.
    """

    def __init__(self) -> None:
        self._worker = "none"
        self._mark = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        """What Ray's log prefixes to what the worker prints."""
        return f"marless worker {self._worker}"

    async def look(self, arguments: str) -> str:
        """What a worker with these arguments would find here, after what dead actors have left here was ended."""
        await asyncio.to_thread(orphans.end_of_dead_pools)
        return json.dumps(found_for(json.loads(arguments)))

    async def start(self, order: str, handover: str) -> None:
        """Start a worker; `handover` is its secret line, which goes through a pipe. Raises OSError."""
        told = json.loads(order)
        self._worker, self._mark = told["worker"], orphans.new_mark()
        inherited = process_environment.inherited(without_ray(os.environ))
        self._process = subprocess.Popen(  # noqa: ASYNC220  # milliseconds, in the thread that outlives the worker
            [
                *(sys.executable, "-P", "-m", "marless_ray.worker", f"{os.getpid()}"),
                *(told["module"], *told["arguments"]),
            ],
            stdin=subprocess.PIPE,
            env=inherited | told["settings"] | {orphans.MARK: self._mark},
            start_new_session=True,
        )
        self._write(handover)

    async def hand_over(self, handover: str) -> None:
        """Send the running worker a new token."""
        if self._process and self._process.poll() is None:
            self._write(handover)

    async def wait(self) -> str:
        """Wait until the worker has ended, and end what it has left; returns how it ended."""
        if self._process is None:
            return "not started"
        code = await asyncio.to_thread(self._process.wait)
        await asyncio.to_thread(orphans.end_below, self._process.pid, self._mark)
        if self._process.stdin:
            self._process.stdin.close()
        return how(code)

    async def end(self) -> None:
        """Kill the worker and all that it has started."""
        if self._process:
            self._process.kill()
            await self.wait()

    def _write(self, handover: str) -> None:
        if self._process and self._process.stdin:
            try:
                os.write(self._process.stdin.fileno(), handover.encode())  # some hundred bytes: a pipe has room
            except BrokenPipeError:
                return  # it has ended, and `wait` says how


def found_for(arguments: list[str]) -> dict[str, object]:
    """Facts of this node: marless's version, its names, and which files of a worker's command line it lacks."""
    pool = dict(pairwise(arguments)).get("--pool", "")
    sockets = [pool.removeprefix("unix:")] if pool.startswith("unix:") else []
    files = [path for flag, path in pairwise(arguments) if flag in _FILES]
    return {
        "marless": version("marless"),
        "python": sys.executable,
        "host": os.uname().nodename,
        "boot": boot(),
        "missing": [path for path in (*sockets, *files) if not Path(path).exists()],
    }


def boot() -> str:
    """Identifies this machine since its start."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def without_ray(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables but those of Ray."""
    return {name: value for name, value in variables.items() if not name.startswith(_OF_RAY)}
