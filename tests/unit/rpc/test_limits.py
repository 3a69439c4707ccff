"""A process that may open too few files, or take too little memory, says so in one sentence before it starts gRPC."""

import subprocess
import sys
from pathlib import Path

import pytest

from marless.rpc import client

SERVICE = "-m marless.services.param_store --listen unix:{}/store.sock"
CLIENT = f"{Path(sys.executable).with_name('marless')} list --coordinator unix:{{}}/coordinator.sock"


@pytest.mark.parametrize(
    ("program", "limit", "said"),
    [
        (SERVICE, "-n 20", "is allowed 20 open files (`ulimit -n`), and needs 256; raise the limit: `ulimit -n 256`"),
        (CLIENT, "-n 20", "is allowed 20 open files (`ulimit -n`), and needs 64; raise the limit: `ulimit -n 64`"),
        (SERVICE, "-v 900000", "is allowed 900,000 KiB of address space (`ulimit -v`), and needs 1,048,576; raise"),
    ],
)
def test_too_low_a_limit_is_one_sentence(tmp_path, program, limit, said):
    command = f"ulimit {limit}; exec {sys.executable} {program.format(tmp_path)}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode > 0  # and no signal
    [sentence] = [" ".join(ended.stderr.split())]
    assert said in sentence


def test_what_is_enough_is_taken():
    client.check_process_limits(files=client.SERVICE_FILES, address_bytes=client.LEARNER_BYTES)
