"""Jobs that can be left alone, as a user meets them: services that are killed, and commands that do not notice."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.e2e.test_train import JOB
from tests.e2e.test_up import Place

ROUNDS = 40
SOON_S = 30.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One stack for all tests; they keep apart by their jobs' ids."""
    place = Place(tmp_path_factory.mktemp("jobs"))
    for name in ("tmp", "spool"):
        (place.path / name).mkdir()
    (place.path / "job.yaml").write_text(yaml.safe_dump(JOB | {"stop": {"rounds": ROUNDS}}))
    try:
        assert place.type("up")[0] == 0
        yield place
    finally:
        place.type("down")


def coordinator_of(place: Place) -> psutil.Process:
    return next(each for each in place.family() if "marless.services.coordinator" in each.cmdline())


def lines(process: subprocess.Popen[str], at_least: int) -> list[str]:
    return [process.stdout.readline() for _ in range(at_least)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow  # test_metrics.py and test_job_api.py of tests/integration kill it, too
def test_nobody_notices_that_the_coordinator_was_killed(running):
    assert running.type("submit", "job.yaml", "--job", "one")[:2] == (0, "one")
    watching, reading = running.start("watch", "one", "-o", "jsonl"), running.start("logs", "one", "-f", "-o", "jsonl")
    seen = lines(watching, 20)
    killed = coordinator_of(running)
    killed.kill()
    code, job, _ = running.type("submit", "job.yaml", "--job", "two", "--set", "stop.rounds=1")  # while it is down
    assert (code, job) == (0, "two")
    assert coordinator_of(running).pid != killed.pid

    rest, said = watching.communicate(timeout=SOON_S)
    assert (watching.returncode, "Traceback" in said) == (0, False)
    assert [json.loads(line)["round"] for line in [*seen, *rest.splitlines()]] == list(range(ROUNDS))
    logged, _ = reading.communicate(timeout=SOON_S)
    folder = running.path / "runs" / "one"
    assert (reading.returncode, logged) == (0, (folder / "log.jsonl").read_text())
    assert "".join([*seen, rest]) == (folder / "rounds.jsonl").read_text()

    assert running.type("download", "one", "--to", "here")[:2] == (0, "here")
    kept = contents(folder)
    assert contents(running.path / "here") == {name: kept[name] for name in contents(running.path / "here")}
    assert {"job.json", "spec.yaml", "rounds.jsonl", "log.jsonl"} <= set(contents(running.path / "here"))


def test_who_watches_a_job_in_a_terminal_sees_its_curves_and_its_cost(running):
    assert running.type("submit", "job.yaml", "--job", "watched")[:2] == (0, "watched")
    drawn = running.seen("watch", "watched", columns=60, LANG="C.UTF-8", NO_COLOR="1")
    assert re.search(r"return  [▁▂▃▄▅▆▇█]+  -[\d.]+ → -[\d.]+", drawn)
    assert re.search(r"actors  ▄{20,}  (\d) → \1", drawn)
    assert re.search(r"cost    0\.\d{6} USD \(billed\)", drawn)
    assert "state" in drawn and "SUCCEEDED" in drawn
    assert "\x1b[3" not in drawn
    again = running.seen("watch", "watched", columns=60, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert re.search(r"return  [-_.:=+*#]+  -[\d.]+ -> -[\d.]+", again)
    _, records, _ = running.type("watch", "watched", "-o", "jsonl")
    assert records == (running.path / "runs" / "watched" / "rounds.jsonl").read_text().strip()
    assert running.seen("watch", "watched", "-o", "jsonl", columns=60).count("actors  ") == 0
    assert running.type("delete", "watched")[0] == 0


def test_a_job_from_submission_to_deletion(running):
    """Cancelled, resumed to an end of its own, deleted."""
    assert running.type("submit", "job.yaml", "--job", "third", *running.endless)[0] == 0
    code, out, _ = running.type("wait", "third", "--timeout", "0.1", "-o", "json")
    assert (code, json.loads(out)["state"] in ("PENDING", "RUNNING")) == (101, True)
    code, _, said = running.type("delete", "third")
    assert code == 1 and "has not ended" in said
    code, _, said = running.type("cancel", "third")
    assert code == 0
    assert said == "marless: job third is being cancelled; `marless wait third` waits for its end"
    assert running.type("wait", "third")[0] == 103
    rounds = json.loads(running.type("get", "third", "-o", "json")[1])["rounds"]

    code, _, said = running.type("resume", "third", "--set", "stop.steps=5")
    assert (code, said) == (
        2,
        "marless: resume: stop.steps: unknown field 'steps'; did you mean 'env_steps'? "
        "known: cost_usd, env_steps, return, rounds, wall_s",
    )
    code, out, said = running.type("resume", "third", "--set", f"stop.rounds={rounds + 8}", "--follow", "-o", "json")
    assert (code, json.loads(out)["rounds"], json.loads(out)["resumes"]) == (0, rounds + 8, 1)
    assert "third" in running.type("list", "-o", "name", "--state", "succeeded")[1].split()
    assert running.type("delete", "third")[0] == 0
    assert running.type("get", "third")[::2] == (102, "marless: there is no job 'third'")
    assert not (running.path / "runs" / "third").exists()


@pytest.mark.slow
def test_two_shells_with_one_sweep_and_a_third_that_is_killed_come_to_the_same_jobs(running):
    sweep = ("submit", "job.yaml", "--seeds", "2", "--sweep", "algorithm.lr=1e-3,2e-3", "--set", "stop.rounds=2")
    killed = running.start(*sweep, "--wait")
    killed.stderr.readline()  # submitted
    killed.kill()
    killed.communicate()
    shells = [running.start(*sweep, "--wait", "-o", "json") for _ in range(2)]
    tables = [json.loads(shell.communicate(timeout=60)[0]) for shell in shells]
    assert [shell.returncode for shell in shells] == [0, 0]
    assert tables[0] == tables[1]
    assert [(each["setting"], each["succeeded"]) for each in tables[0]["settings"]] == [("lr=1e-3", 2), ("lr=2e-3", 2)]
    ids = [job["job"] for job in tables[0]["jobs"]]
    assert running.type("list", "-o", "name", "--name", "tiny-lr*", "--sort", "job")[1].split() == sorted(ids)
    assert running.type("plot", *ids)[1] == "curves.png"
    assert running.type("delete", *ids)[0] == 0


def test_a_job_that_cannot_work_is_refused_with_its_file_and_a_failed_one_with_its_log(running):
    code, _, said = running.type("submit", "job.yaml", "--set", "env.options.agents=0")
    assert (code, said.splitlines()[0].startswith("marless: job.yaml: env: ")) == (2, True)
    code, out, said = running.type("submit", "job.yaml", "--set", "learner.device=cuda:7", "--wait", "-o", "json")
    assert (code, json.loads(out)["state"]) == (100, "FAILED")
    assert "failed: " in said and "`marless logs tiny-" in said
