"""Ends a Redis whose store was killed: `python redis_guard.py HOME SOCKET GRACE_S`, as a child of the store.

A Redis outlives a store that was killed, so that the next store finds it with its data loaded. If no store follows
within the grace period, this process shuts Redis down. It imports only the standard library, to use little memory.
"""

import fcntl
import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

ANSWER_S = 5.0


def main() -> None:
    """Wait for the store's end, then for the grace period, then end Redis unless another store has taken it over."""
    home, address, grace_s = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sys.stdin.read()
    for _ in range(grace_s):
        time.sleep(1)
        if not _answers(address):
            return
    with os.fdopen(os.open(home / "lock", os.O_RDONLY | os.O_NOFOLLOW)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no store can adopt a Redis that is about to end
        except BlockingIOError:
            return  # another store has taken over, and has a guard of its own
        passwords = os.fdopen(os.open(home / "redis_passwords.json", os.O_RDONLY | os.O_NOFOLLOW))
        with passwords:
            _shut_down(address, json.load(passwords)["supervisor"])


def _answers(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as line:
        return line.connect_ex(address) == 0


def _shut_down(address: str, password: str) -> None:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        if line.connect_ex(address) == 0:
            line.settimeout(ANSWER_S)
            line.sendall(f"AUTH supervisor {password}\r\nSHUTDOWN NOSAVE\r\n".encode())
            while line.recv(4096):  # ends with the connection
                pass


if __name__ == "__main__":
    main()
