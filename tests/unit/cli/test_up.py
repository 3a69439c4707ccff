"""Settings of `marless up` that are refused before anything starts."""

import pytest


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--advertise", "gpu1:7070"], "--advertise gpu1:7070: set --listen, too"),
        (["--listen", "127.0.0.1:7070", "--advertise", "bad host"], "--advertise bad host: give the host and port"),
        (["--launcher", "locl"], "unknown launcher 'locl'; did you mean 'local'?"),
        (["--launcher", "local,connect_s"], "'local,connect_s': 'connect_s' is no further option"),
    ],
)
def test_what_no_client_could_use_is_refused(marless, tmp_path, monkeypatch, given, sentence):
    monkeypatch.chdir(tmp_path)
    code, out, said = marless("up", *given)
    assert (code, out) == (2, "")
    assert said.startswith(f"marless: {sentence}")
    assert list(tmp_path.iterdir()) == []
