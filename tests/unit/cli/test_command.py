"""The entry point: Ctrl-C is one sentence, even while the command is still being imported."""

import builtins
import signal

import pytest

from marless.cli import command


@pytest.fixture(autouse=True)
def handler():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_during_imports_is_a_sentence(monkeypatch, capsys):
    load = builtins.__import__

    def interrupted(name, *rest):
        if name == "marless.cli.main":
            raise KeyboardInterrupt
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as end:
        command()
    assert end.value.code == 130
    assert capsys.readouterr().err == "marless: interrupted\n"
    signal.raise_signal(signal.SIGINT)  # the interpreter's own end is not interrupted
