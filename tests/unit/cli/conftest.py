"""The command, run in this process."""

import sys
from collections.abc import Callable

import pytest

from marless.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def marless(monkeypatch, capsys) -> Run:
    """Runs the command in this process; answers its exit code, its data, and what it said."""

    monkeypatch.setattr("marless.cli.working.QUIET_S", 60.0)  # however slow this machine is

    def run(*argv: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["marless", *map(str, argv)])
        with pytest.raises(SystemExit) as end:
            main()
        out, said = capsys.readouterr()
        assert "Traceback (most" not in out + said
        return int(end.value.code or 0), out, said

    return run
