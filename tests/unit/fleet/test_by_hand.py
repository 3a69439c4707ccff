"""What is said to people who start a worker by hand and make a mistake, before it dials anybody."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from marless.fleet.worker_process import worker_options
from marless.rpc.roles import Role
from tests import tokens

NOBODY = ["--pool", "127.0.0.1:1", "--param-store", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "argument --pool: not set: give the address to dial"),
        (["--pool", "127.0.0.1:7070"], "argument --param-store: not set: give the address to dial"),
        (["--pool", "bad host:7070"], "argument --pool: 'bad host:7070': give the address to dial"),
        (["--pool", "0.0.0.0:7070"], "argument --pool: '0.0.0.0:7070': give the address to dial"),
        (["--pool", "unix:"], "argument --pool: 'unix:': give the address to dial"),
        ([*NOBODY, "--env-modules", "../x"], "'../x' is not the name of a module"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(capsys, given, sentence):
    with pytest.raises(SystemExit) as end:
        worker_options("worker", Role.ACTOR, given)
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([*NOBODY, "--tokens", "/no/such"], "the directory of tokens /no/such cannot be read"),
        (["--pool", "10.0.0.1:70", "--param-store", "10.0.0.1:71"], "10.0.0.1:70 is not a loopback address: set --tls"),
    ],
)
def test_what_is_found_later_is_one_sentence_too(given, sentence):
    command = [sys.executable, "-m", "marless.services.actor_pool.worker", *given]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"python -m marless.services.actor_pool.worker: {sentence}")
    assert len(ended.stderr.splitlines()) == 1


def test_an_actor_that_starts_again_keeps_the_settings_of_its_environment(tmp_path):
    """As the workers of the compose file and of Kubernetes: their variables lead to secrets."""
    tokens.made(secrets := tmp_path / "tokens")
    kept = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-m", "marless.services.actor_pool.worker", *NOBODY]
    with subprocess.Popen(command, env=kept | {"MARLESS_TOKENS": str(secrets)}, stderr=subprocess.PIPE) as worker:
        shown = b""
        while b"GRPC_ENABLE_FORK_SUPPORT=0" not in shown and worker.poll() is None:
            shown = Path(f"/proc/{worker.pid}/environ").read_bytes()
        worker.kill()
    assert f"MARLESS_TOKENS={secrets}".encode() in shown.split(b"\0")
