"""`python -m marless_kubernetes.worker SECRETS COPIES MODULE ARGUMENTS`: the first process in a worker's container.

It starts the worker as a process, and hands it its ticket and token, which are files of mounted Secrets, through its
standard input, as every launcher does. A node renews a mounted file when the Secret with the role's token changes: then
the worker is handed the new token.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from marless.fleet.handover import Handover

CHECK_S = 1.0
"""Seconds between checks for a new token."""
_SIGNALS = 128
"""What shells add to the number of the signal that has ended a process."""


class HandedWorker:
    """A worker as a process below this one."""

    def __init__(self, command: Sequence[str], handover: Handover, token_file: Path | None) -> None:
        """`token_file` has the token of the worker's role, and may change."""
        self._handover = handover
        self._token_file = token_file
        self._seen = self._token()
        # In a session of its own, so that what ends this process's group leaves it to finish its task.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._hand_over()

    def wait(self) -> int:
        """Wait for its end, and for that of every other process, as the first of a container has to; returns its exit
        code, above 128 for a signal's.
        """
        threading.Thread(target=self._renew, daemon=True).start()
        while True:
            pid, status = os.wait()
            if pid == self._process.pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else _SIGNALS - code

    def _renew(self) -> None:
        ticks = threading.Event()
        while not ticks.wait(CHECK_S):
            token = self._token()
            if token and token != self._seen:
                self._seen = self._handover.token = token
                self._hand_over()

    def _hand_over(self) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(self._handover.to_line())
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # it has ended, and `wait` says how

    def _token(self) -> str:
        try:
            return self._token_file.read_text("utf-8").partition("\n")[0].strip() if self._token_file else ""
        except OSError:  # the Secret is gone; the worker keeps what it has
            return ""


def copy_private(files: Path, to: Path) -> None:
    """Copy the files of a mounted Secret, which belong to root: marless reads keys only from files of its own user."""
    for file in files.iterdir():
        if file.is_file():
            with os.fdopen(os.open(to / file.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as copy:
                copy.write(file.read_bytes())


def main() -> int:
    """Run the worker to its end; returns its exit code."""
    secrets, copies, module, *arguments = sys.argv[1:]
    # A node ends a container by SIGTERM, and by SIGKILL after a time in which the worker finishes its task: its pool
    # has seen the notice, too, and releases it. Not SIG_IGN, which the worker would inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)
    handover, credentials = Handover(), Path(secrets, "credentials")
    handover.take(Path(secrets, "handover", "handover").read_bytes())
    token_file = None
    if credentials.is_dir():
        copy_private(credentials, Path(copies))
        token_file = next((credentials / role for role in ("actor", "learner") if (credentials / role).exists()), None)
    return HandedWorker([sys.executable, "-P", "-m", module, *arguments], handover, token_file).wait()


if __name__ == "__main__":
    sys.exit(main())
