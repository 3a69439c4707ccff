"""Settings of `marless up` that are refused before anything starts."""

import os

import pytest


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
