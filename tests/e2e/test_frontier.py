"""`marless frontier` with real runs: interrupted, killed, resumed, and with one that fails."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.unit.cost.comparison.synthetic import JOB

FRONTIER = (
    *("frontier", "job.yaml", "--actors", "1,2", "--groups", "shared", "--schedules", "synchronous,pipelined"),
    *("--presets", "no-sharing", "--seeds", "1", "--processes", "2", "--to", "-100", "-o", "json"),
)
RUNS = {f"tiny-{actors}-shared-{schedule}-seed0" for actors in (1, 2) for schedule in ("synchronous", "pipelined")}
GONE_S = 100.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB | {"actors": {"count": 2, "envs": 4, "steps": 5}}))
    return tmp_path


def marless(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-m", "marless", *arguments),
        cwd=place,
        env={name: value for name, value in os.environ.items() if name != "MARLESS_COORDINATOR"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rounds(place: Path) -> dict[str, bytes]:
    return {
        path.parent.name: (path.parent / "rounds.jsonl").read_bytes()
        for path in (place / "runs/frontier-tiny/runs").glob("*/job.json")
        if json.loads(path.read_text())["state"] == "SUCCEEDED"
    }


def test_a_frontier_is_interrupted_goes_on_and_shows_every_setting(place):
    first = marless(place, *FRONTIER)
    assert first.stderr is not None
    for line in first.stderr:
        if "done in" in line:
            first.send_signal(signal.SIGINT)
            break
    out, said = first.communicate(timeout=GONE_S)
    assert (first.returncode, out) == (130, "")
    assert "interrupted; the same command with --resume --out runs/frontier-tiny continues" in said
    before = rounds(place)
    assert before and len(before) < 5

    again = marless(place, *FRONTIER, "--resume")
    out, said = again.communicate(timeout=GONE_S)
    assert again.returncode == 0, said
    assert f"{len(before)} of 5 runs exist already" in said
    assert before.items() <= rounds(place).items()
    assert rounds(place).keys() == RUNS | {"tiny-no-sharing-seed0"}
    found = json.loads(out)
    # 3 rounds of 2 actors, 4 copies and 5 steps: one actor takes twice as many rounds for as many env steps.
    assert found["env_steps"] == 120
    settings = found["settings"]
    assert [settings[f"{count} shared synchronous"]["runs"][0]["rounds"] for count in (1, 2)] == [6, 3]
    assert all(each["runs"][0]["to_the_end"]["env_steps"] == 120 for each in settings.values())
    for each in settings.values():
        run = each["runs"][0]["to_the_goal"]
        assert each["seeds_reached"] == 1 and run["env_steps"] in (20, 40)
        assert 0 < run["usd"]["paper"] < run["usd"]["billed"]
        assert each["own_machines"][0]["machine"] == "c6a.large"
    assert len(found["regrets"]) == 4
    assert (place / "runs/frontier-tiny/frontier.png").exists()


def test_a_run_that_is_killed_is_named_and_the_others_go_on(place):
    two = ("--actors", "1,2", "--groups", "shared", "--schedules", "pipelined", "--presets", "", "--seeds", "1")
    command = ("frontier", "job.yaml", *two, "--to", "-100")
    first = marless(place, *command)
    assert first.stderr is not None
    for line in first.stderr:
        if "run 1 of 2" in line:
            break
    [child] = children(first)
    os.kill(child, signal.SIGKILL)
    out, said = first.communicate(timeout=GONE_S)
    assert first.returncode == 100, said
    assert "run 1 of 2 failed: it was ended by SIGKILL" in said
    assert "1 of 2 runs failed: tiny-1-shared-pipelined-seed0" in said
    assert "- 1 shared pipelined is left out of the goal and of regrets" in out
    assert rounds(place).keys() == {"tiny-2-shared-pipelined-seed0"}
    again = marless(place, *command, "--resume")
    _, said = again.communicate(timeout=GONE_S)
    assert (again.returncode, "1 of 2 runs exist already" in said) == (0, True)


def test_runs_end_with_the_command_that_is_killed(place):
    long = ("--set", "stop.rounds=1000000", "--actors", "1", "--presets", "", "--seeds", "1")
    first = marless(place, "frontier", "job.yaml", *long, "--schedules", "synchronous", "--groups", "shared")
    log = place / "runs/frontier-tiny/runs/tiny-1-shared-synchronous-seed0/rounds.jsonl"
    while not (log.exists() and log.stat().st_size):  # before its first round, a job may end as one that never began
        assert first.poll() is None
        time.sleep(0.02)
    [child] = children(first)
    first.kill()
    first.wait()
    with subprocess.Popen(["tail", f"--pid={child}", "-f", "/dev/null"]) as gone:
        assert gone.wait(timeout=GONE_S) == 0
    assert json.loads(log.with_name("job.json").read_text())["state"] == "CANCELLED"


def children(command: subprocess.Popen[str]) -> list[int]:
    """The processes that a command has started, as soon as there are some."""
    while command.poll() is None:
        if found := Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split():
            return [int(each) for each in found]
        time.sleep(0.005)
    return []
