"""A process of StarCraft II: starts it, waits until it answers, and ends it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marless.core.errors import told
from marless_smac.starcraft.connection import GameError, GameSocket
from marless_smac.starcraft.installation import Installation
from marless_smac.starcraft.packages import websocket

_RETRY_S = 0.1
_NOT_FOUND = 404
_SHOWN_OUTPUT = 300


@dataclass(frozen=True)
class Limits:
    """How many seconds a game may take; after that it has failed."""

    launch_s: float = 120.0
    """From its start until it answers."""
    answer_s: float = 60.0
    """For any request; creating a game takes the longest, some ten."""
    quit_s: float = 3.0
    """To end when it was asked to; then it is killed."""


class GameProcess:
    """A running game. Everything it writes goes into a temporary folder, which `close` removes."""

    def __init__(self, installation: Installation, limits: Limits) -> None:
        """Start the game and connect to it; raises GameError if it ends, or does not answer in time."""
        self._limits = limits
        self._folder = Path(tempfile.mkdtemp(prefix="marless-sc2-"))
        self._output = self._folder / "output.txt"
        port = _free_port()
        try:
            self._process = self._start(installation, port)
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise GameError(f"cannot start {installation.program}: {told(error)}") from error
        try:
            self.connection = GameSocket(self._connect(port, limits.launch_s), limits.answer_s)
        except BaseException:
            # Whatever it is, also a Ctrl-C, the game must not go on without anybody who ends it.
            self._end()
            raise

    def close(self) -> None:
        """Ask the game to quit, then kill it."""
        self.connection.close()
        self._end()

    def _start(self, installation: Installation, port: int) -> subprocess.Popen[bytes]:
        scratch = self._folder / "scratch"
        scratch.mkdir()
        command = [str(installation.program), "-listen", "127.0.0.1", "-port", str(port)]
        command += ["-dataDir", f"{installation.root}/", "-tempDir", f"{scratch}/"]
        with self._output.open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_with_libraries(installation),
            )

    def _connect(self, port: int, launch_s: float) -> Any:  # Any: websocket-client has no types
        """The socket. The game listens before its end point exists: until then, connecting is refused or gives 404."""
        deadline = time.monotonic() + launch_s
        while True:
            try:
                return websocket.create_connection(f"ws://127.0.0.1:{port}/sc2api", timeout=launch_s)
            except websocket.WebSocketBadStatusException as error:
                if error.status_code != _NOT_FOUND:
                    raise GameError(f"StarCraft II refused the connection: {told(error)}") from error
            except (websocket.WebSocketException, OSError):
                pass
            if (code := self._process.poll()) is not None:
                raise GameError(f"StarCraft II ended with exit code {code} while it started{self._said()}")
            if time.monotonic() > deadline:
                raise GameError(f"StarCraft II did not answer within {launch_s:g} s of its start{self._said()}")
            time.sleep(_RETRY_S)

    def _said(self) -> str:
        """The end of what the game has printed, for an error message."""
        text = " ".join(self._output.read_text("utf-8", errors="replace").split())
        return f"; it printed: …{text[-_SHOWN_OUTPUT:]}" if text else ""

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(self._limits.quit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _with_libraries(installation: Installation) -> dict[str, str]:
    """The environment of the game, which needs its own libraries."""
    known = os.environ.get("LD_LIBRARY_PATH", "")
    libraries = str(installation.root / "Libs")
    return dict(os.environ) | {"LD_LIBRARY_PATH": f"{libraries}:{known}" if known else libraries}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
