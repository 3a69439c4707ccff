"""LocalStack's server of S3, which shares no code with moto, on this machine: `make .venv/.localstack` installs it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.certificates import made

PYTHON = Path(__file__).parents[2] / ".venv" / "localstack" / "bin" / "python"
END_S = 10.0
START_S = 120.0


def absent() -> str:
    """Why it cannot run here; "" if it can."""
    return "" if PYTHON.exists() else "LocalStack is not installed; `make test-cloud` installs it"


@contextmanager
def localstack(place: Path) -> Iterator[str]:
    """A running server, with all its files in a folder; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            (PYTHON, "-m", "localstack.runtime.main"), env=_environment(place, address), stdout=log, stderr=log
        )
    try:
        _wait(f"http://{address}/_localstack/health", process, place / "log")
        yield f"http://{address}"
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:  # it waits for a thread of its own at times
            process.kill()
            process.wait()


def _environment(place: Path, address: str) -> dict[str, str]:
    tls = made(place, "localhost")  # it would make or download certificates of its own
    both = place / "both.pem"
    both.write_text("".join(Path(tls[name]).read_text() for name in ("server.key", "server.pem")))
    own = {
        "SERVICES": "s3",
        "EAGER_SERVICE_LOADING": "1",
        "GATEWAY_LISTEN": address,
        "GATEWAY_SERVER": "hypercorn",
        "CUSTOM_SSL_CERT_PATH": str(both),
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "DISABLE_EVENTS": "1",
        "DNS_ADDRESS": "0",
        "OVERRIDE_IN_DOCKER": "0",
        "FILESYSTEM_ROOT": str(place),
        "TMPDIR": str(place),
        "HOME": str(place),
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | own


def _wait(health: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(health) as answer:
                if b'"s3": "running"' in answer.read():
                    return
        except urllib.error.URLError:
            pass
        time.sleep(0.1)
