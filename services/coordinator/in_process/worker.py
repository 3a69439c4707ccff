"""`python -m marless.services.coordinator.in_process.worker FD`: plays for the process at a socket's other end."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from marless.core.errors import MarlessError, contained, told
from marless.learning.data.player import EnvKey, Mode, Player
from marless.learning.nets.acting import ActingState
from marless.learning.nets.serial import decode_acting
from marless.services.coordinator.in_process.tasks import ActorTask, Message, perform, receive, send

_PR_SET_PDEATHSIG = 1
Version = tuple[str, int]


class _Worker:
    """Plays one task after the other; keeps the policies that it was sent for as long as tasks name them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._player = Player()
        self._policies: dict[Version, ActingState] = {}

    def serve(self) -> None:
        """Play until the other side has ended."""
        while True:
            message = receive(self._sock)
            try:
                self._play(message)
            except MarlessError as error:
                send(self._sock, {"error": type(error).__name__, "text": str(error), "detail": error.detail})
            except Exception as error:  # noqa: BLE001  # third-party code may raise anything
                send(self._sock, {"error": "", "text": told(error), "detail": traceback.format_exc()})

    def _play(self, message: Message) -> None:
        task = task_of(message.facts["task"])
        at = 0
        for name, version, size in message.facts["policies"]:
            self._policies[name, version] = decode_acting(bytes(message.data[at : at + size]))
            at += size
        kept = {tuple(each) for each in message.facts["kept"]}
        self._policies = {version: policy for version, policy in self._policies.items() if version in kept}
        acting = {agent: self._policies[version] for agent, version in task.acting.items()}
        done = contained(partial(perform, task, self._player, acting, bytes(message.data[at:])))
        facts = {
            "stats": asdict(done.stats),
            **{"played_s": done.played_s, "start_s": done.start_s, "end_s": done.end_s},
            **{"vcpu_s": done.vcpu_s, "memory_bytes": done.memory_bytes},
        }
        send(self._sock, facts, [done.carry], done.trajectory.arrays if done.trajectory else None)


def task_of(facts: Mapping[str, Any]) -> ActorTask:  # Any: JSON
    """A task from its fields."""
    acting = {agent: (name, version) for agent, (name, version) in facts["acting"].items()}
    return ActorTask(**{**facts, "mode": Mode(facts["mode"]), "env": EnvKey(*facts["env"]), "acting": acting})


def main() -> None:
    """Play until the process that has started this one ends, however it ends."""
    # A game that hangs reads no socket, and would outlive a killed parent.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        if os.getppid() == 1:
            return  # it has ended already
        try:
            _Worker(sock).serve()
        except (EOFError, ConnectionError):
            return


if __name__ == "__main__":
    main()
