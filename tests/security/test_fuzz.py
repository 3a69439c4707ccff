"""Whatever readers of others' data are given, only domain errors come out; `make fuzz` tries ten million inputs."""

import subprocess
import sys
from pathlib import Path

import pytest

from marless.core.errors import CorruptError
from tests.fuzz.choices import Choices
from tests.fuzz.running import Findings, execute, plainly
from tests.fuzz.targets import TARGETS, Target

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("name", TARGETS)
def test_only_domain_errors_come_out(name):
    executions = min(max(40 * TARGETS[name].share, 150), 3000)
    found = plainly(name, executions, seed=0)
    assert found.executions == executions
    assert found.refused < executions, "nothing was accepted: the inputs are not almost right"
    assert found.refused > 0, "nothing was refused: the inputs are not wrong"
    assert found.uncaught == {}, "".join(trace for _, trace in found.uncaught.values())


def broken(choices: Choices) -> None:
    if choices.byte() == 7:
        raise CorruptError("a domain error")
    if choices.byte() == 8:
        raise KeyError("uncaught")


def test_what_is_uncaught_is_found_once_and_can_be_replayed():
    found, target = Findings(), Target(broken, 1, "a reader with a defect")
    for data in (b"\x07", b"\x00\x08", b"\x01\x08", b""):
        execute(target, data, found)
    assert (found.executions, found.refused) == (4, 1)
    [(kind, (data, trace))] = found.uncaught.items()
    assert kind.startswith("KeyError at test_fuzz.py:")
    assert data == b"\x00\x08"
    assert "uncaught" in trace


def test_the_same_seed_makes_the_same_inputs():
    seen: list[bytes] = []
    for _ in range(2):
        choices = Choices(bytes(range(40)))
        seen.append(bytes(choices.below(200) for _ in range(60)))
    assert seen[0] == seen[1]
    assert plainly("cursor", 500, 3).refused == plainly("cursor", 500, 3).refused


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_command_runs_and_counts():
    done = fuzz("cursor", "--executions", "1000", "--plain")
    assert done.returncode == 0, done.stderr
    assert "0 kinds of uncaught errors" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_guided_by_coverage():
    pytest.importorskip("atheris", reason="installed by `make fuzz`")
    done = fuzz("page_token", "--executions", "20000")
    assert done.returncode == 0, done.stderr
    assert "guided by coverage" in done.stdout
