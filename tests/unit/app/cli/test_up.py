"""Settings of `marless up` that are refused before anything starts; stacks that `down` must find, or leave alone."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from marless.app.cli import background

STRANGER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """The working directory; nothing is set for the command."""
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith("MARLESS_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--advertise", "gpu1:7070"], "--advertise gpu1:7070: set --listen, too"),
        (["--listen", "127.0.0.1:7070", "--advertise", "bad host"], "--advertise bad host: give the host and port"),
        (["--launcher", "locl"], "unknown launcher 'locl'; did you mean 'local'?"),
        (["--launcher", "local,connect_s"], "'local,connect_s': 'connect_s' is no further option"),
    ],
)
def test_what_no_client_could_use_is_refused(marless, empty, given, sentence):
    code, out, said = marless("up", *given)
    assert (code, out) == (2, "")
    assert said.startswith(f"marless: {sentence}")
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("listen", ["7070", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_that_cannot_be_found_again_is_refused(marless, empty, listen):
    code, out, said = marless("up", "--listen", listen)
    assert (code, out) == (2, "")
    assert said.startswith(f"marless: --listen {listen}: give the host and a fixed port for clients")
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("listen", ["0.0.0.0:7070", "[::]:7070", ":7070"])
def test_clients_are_told_which_of_all_addresses_they_dial(marless, empty, listen):
    code, _, said = marless("up", "--listen", listen)
    assert code == 2
    assert said.startswith(
        f"marless: --listen {listen} means all addresses: set --advertise to the one that clients dial"
    )
    code, _, said = marless("up", "--listen", listen, "--advertise", "[::]")
    assert code == 2
    assert said.startswith(f"marless: {listen} is not a loopback address: set --tokens DIR")
    assert list(empty.iterdir()) == []


def test_beyond_this_machine_it_needs_tls_and_a_token(marless, empty):
    code, _, said = marless("up", "--listen", "192.0.2.1:7070")
    assert code == 2
    assert said.startswith("marless: 192.0.2.1:7070 is not a loopback address: set --tokens DIR")
    assert list(empty.iterdir()) == []


def _supervisor(runs) -> subprocess.Popen:
    """A process with the command line of a supervisor, and its stack.json; without the lock, as if it was deleted."""
    settings = background.StackSettings(runs=runs).to_json()
    process = subprocess.Popen([sys.executable, "-c", "input()", background.MODULE, settings], stdin=subprocess.PIPE)
    stack = runs / ".stack"
    stack.mkdir(parents=True)
    standing = {"pid": process.pid, "coordinator": "unix:/none.sock", "version": "1"}
    (stack / "stack.json").write_text(json.dumps(standing))
    return process


def test_a_stack_whose_store_was_deleted_is_found_and_stopped(marless, empty):
    process = _supervisor(empty / "runs")
    try:
        code, out, said = marless("up")
        assert (code, out) == (0, "unix:/none.sock\n") and f"up already (process {process.pid})" in said
        code, _, said = marless("down")
        assert (code, said) == (0, "marless: down\n")
        assert process.wait() == -signal.SIGTERM
        assert marless("down")[2] == "marless: no services were running\n"
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_only_has_the_number_of_a_supervisor_is_not_stopped(marless, empty):
    process = _supervisor(empty / "other")
    try:
        (empty / "other").rename(empty / "runs")  # so its command line names another directory
        assert marless("down")[2] == "marless: no services were running\n"
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _another_user() -> Iterator[None]:
    os.setresuid(STRANGER, STRANGER, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@as_root
@pytest.mark.parametrize(
    ("mode", "sentence"),
    [(0o700, "Permission denied; is it another user's? choose another --runs"), (0o755, "is another user's")],
)
def test_the_services_of_another_user_are_left_alone_in_one_sentence(marless, empty, mode, sentence):
    data = empty / "runs" / ".stack" / "store"
    data.mkdir(parents=True)
    for parent in (empty, *empty.parents[:2]):
        parent.chmod(0o755)
    marless("down")  # imports what it needs: another user may not read every package
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (data / "owner").write_text(f"{process.pid}")
        data.chmod(mode)
        with (data / "owner").open("a") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            with _another_user():
                code, _, said = marless("down")
        assert code == 1 and said.count("\n") == 1 and sentence in said
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


@as_root
def test_a_stack_file_of_another_user_is_not_removed(marless, empty):
    for parent in (empty, *empty.parents[:2]):
        parent.chmod(0o755)
    marless("down")
    (empty / "runs" / ".stack").mkdir(parents=True, exist_ok=True)
    (empty / "runs" / ".stack" / "stack.json").write_text("{}")
    with _another_user():
        code, _, said = marless("down")
    assert code == 1 and said.count("\n") == 1 and "stack.json is another user's" in said
