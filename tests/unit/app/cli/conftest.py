"""The command, run in this process."""

import sys
from collections.abc import Callable

import pytest
import yaml

from marless.app.cli.main import main
from tests.scripted_coordinator import ScriptedCoordinator

JOB = {"name": "tiny", "seed": 5, "env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 3}}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def marless(monkeypatch, capsys) -> Run:
    """Runs the command in this process; answers its exit code, its data, and what it said."""

    monkeypatch.setattr("marless.app.cli.working.QUIET_S", 60.0)  # however slow this machine is

    def run(*argv: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["marless", *map(str, argv)])
        with pytest.raises(SystemExit) as end:
            main()
        out, said = capsys.readouterr()
        assert "Traceback (most" not in out + said
        return int(end.value.code or 0), out, said

    return run


@pytest.fixture
def coordinator(tmp_path, monkeypatch):
    """A coordinator that the command finds by itself, started from an empty working directory."""
    with ScriptedCoordinator(tmp_path) as running:
        monkeypatch.setenv("MARLESS_COORDINATOR", running.address)
        monkeypatch.chdir(tmp_path)
        yield running


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB))
    return path
