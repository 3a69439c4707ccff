"""Each check of the doctor: what makes it fail, what makes it warn, and that it says what to do."""

import json
import os
import socket
import sys
import time
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from marless.app.cli.background import RunningStack
from marless.app.cli.doctor import machine, services
from marless.app.cli.doctor.verb import Finding, Level
from marless.app.cli.main import app
from marless.app.cli.recorded import Unfinished
from marless.app.client import Info, Service
from marless.core.errors import SpecError, UnavailableError
from marless.fleet.launchers.external import ExternalLauncher
from marless.jobs import spec
from marless.jobs.job import prepare
from marless.rpc import own_redis
from tests import tokens
from tests.plugins.docker.engine_server import engine

OK, WARN, FAIL = Level.ok, Level.warn, Level.fail
NEEDS = ["PyYAML>=6", "grpcio>=1.76,!=1.83.0,!=1.83.1,<2", "numpy>=2.1,<3", "torch==2.13.0; extra == 'learner'"]
GOOD = {"pyyaml": "6.0.2", "grpcio": "1.85.1", "numpy": "2.2.0"}


def check(finding: Finding, level: Level, *parts: str) -> None:
    assert finding.level is level, finding
    assert bool(finding.advice) == (level is not OK)
    for part in parts:
        assert part in f"{finding.found} → {finding.advice}"


@pytest.mark.parametrize(("version", "level"), [((3, 10, 14), FAIL), ((3, 11, 0), OK), ((4, 0, 0), OK)])
def test_python(version, level):
    check(machine.python(version), level, ".".join(map(str, version)))


@pytest.mark.parametrize(
    ("installed", "level", "part"),
    [
        (GOOD, OK, "all 3, grpcio 1.85.1"),
        (GOOD | {"grpcio": "1.83.1"}, FAIL, "grpcio 1.83.1 does not work"),
        (GOOD | {"numpy": "3.0"}, FAIL, "numpy 3.0 does not work"),
        ({"grpcio": "1.85.1", "pyyaml": "6.0.2"}, FAIL, "numpy is missing"),
    ],
)
def test_packages(installed, level, part):
    check(machine.packages(NEEDS, installed), level, part)


def test_learners():
    check(machine.learners("2.13.0+cpu"), OK, "torch 2.13.0+cpu")
    check(machine.learners(None), WARN, "pip install 'marless[learner]'")


@pytest.mark.parametrize(
    ("name", "version", "level"),
    [("Redis", (6, 0, 16), FAIL), ("Redis", (6, 2, 0), OK), ("Redis", (7, 4, 1), OK), ("Valkey", (8, 0, 1), OK)],
)
def test_redis_version(name, version, level):
    check(machine.redis_version(name, version, "/usr/bin/redis-server"), level, name, "/usr/bin/redis-server")


def test_redis_is_found_and_asked(monkeypatch, tmp_path):
    check(machine.redis(), OK)
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho 'Redis server v=5.0.7 sha=0:0'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check(machine.redis(), FAIL, f"Redis 5.0.7 ({program})")
    program.write_text("#!/bin/sh\necho hello\n")
    check(machine.redis(), FAIL, "does not print its version: 'hello'")


def test_without_any_redis(monkeypatch):
    def none() -> Path:
        raise UnavailableError("no Redis")

    monkeypatch.setattr(own_redis, "find_binary", none)
    check(machine.redis(), FAIL, "no Redis", "marless[embedded]")


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("OMP_NUM_THREADS", "64", OK),  # workers have their own
        ("OMP_PROC_BIND", "false", OK),
        ("OMP_PROC_BIND", "close", WARN),
        ("GOMP_CPU_AFFINITY", "0-1", WARN),
        ("OMP_WAIT_POLICY", "ACTIVE", WARN),
        ("KMP_BLOCKTIME", "infinite", WARN),
    ],
)
def test_threads(name, value, level):
    check(machine.threads({name: value}), level, name if level is not OK else "")


def test_secrets_are_checked_and_never_shown(tmp_path):
    check(machine.secrets({}), OK, "token not set")
    key, ca = tmp_path / "key.pem", tmp_path / "ca.pem"
    secret = {"MARLESS_TOKEN": "canary", "MARLESS_TLS_CA": str(ca)}
    check(machine.secrets(secret), FAIL, "$MARLESS_TLS_CA", str(ca))
    ca.touch()
    found = machine.secrets(secret)
    check(found, OK, "token set", "MARLESS_TLS_CA")
    assert "canary" not in repr(found)
    check(machine.secrets({"MARLESS_TLS_CA": str(ca)}), WARN, "set MARLESS_TOKENS")
    held = tmp_path / "tokens"
    services = {"MARLESS_TOKENS": str(held), "MARLESS_TLS_CA": str(ca)}
    check(machine.secrets(services), FAIL, str(held), "`marless tokens")
    tokens.made(held)
    found = machine.secrets(services)
    check(found, OK, f"tokens {held}")
    assert "canary" not in repr(found)
    (held / "actor").chmod(0o640)
    check(machine.secrets(services), FAIL, f"chmod 600 {held / 'actor'}")
    key.touch(mode=0o644)
    check(machine.secrets(secret | {"MARLESS_TLS_KEY": str(key)}), WARN, f"chmod 600 {key}")
    key.chmod(0o600)
    check(machine.secrets(secret | {"MARLESS_TLS_KEY": str(key)}), OK)


def test_cores():
    check(machine.cores(2, 2.0), OK, "2")
    check(machine.cores(64, 2.5), WARN, "2.5 of 64", "MARLESS_ACTOR_WORKERS=2", "MARLESS_LEARNER_THREADS=2")
    check(machine.cores(4, 0.5), WARN, "MARLESS_ACTOR_WORKERS=1")


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [("max 100000\n", None), ("200000 100000\n", 2.0), ("50000 100000", 0.5), ("-1 100000", None), ("", None)],
)
def test_quota(cpu_max, cores):
    assert machine.quota(cpu_max) == cores


@pytest.mark.parametrize(("available", "level"), [(0.6e9, FAIL), (0.8e9, WARN), (2e9, OK)])
def test_memory(available, level):
    check(machine.memory(available, actor_workers=2, versions_bytes=None), level, "2 actor workers", "policies × 3")


def test_memory_of_a_job():
    check(machine.memory(1e9, actor_workers=2, versions_bytes=0.8e9), FAIL, "take 1.5 GB")
    job = {"env": {"name": "mpe/simple_spread", "options": {"agents": 3}}, "algorithm": "ippo", "stop": {"rounds": 1}}
    small = machine.versions_bytes(prepare(spec.parse(job | {"model": {"hidden": [8]}}, "job")))
    # 3 policies × 3 versions × (policy and critic) × (weights and two moments) × 4 bytes × ((18+1)·8 + (8+1)·5)
    assert small == 3 * 3 * 2 * 3 * 4 * (19 * 8 + 9 * 5)


MEMINFO = "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:   10000 kB\n"


@pytest.mark.parametrize(
    ("limit", "used", "available"),
    [
        ("max\n", "5\n", 10000 * 1024),
        ("", "", 10000 * 1024),
        ("3000\n", "1000\n", 2000),
        (str(2**63), "0", 10000 * 1024),
    ],
)
def test_available_memory(limit, used, available):
    assert machine.available_memory(MEMINFO, limit, used) == available


def test_files_of_a_cgroup_are_found_in_both_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    names = ("memory.max", "memory.limit_in_bytes")
    assert machine.cgroup_file("0::/job/a\n", "memory", names) == ""
    (tmp_path / "job" / "a").mkdir(parents=True)
    (tmp_path / "memory.max").write_text("1")
    assert machine.cgroup_file("0::/job/a\n", "memory", names) == "1"  # a container sees its own group at the top
    (tmp_path / "job" / "a" / "memory.max").write_text("2")
    assert machine.cgroup_file("0::/job/a\n", "memory", names) == "2"
    (tmp_path / "memory" / "b").mkdir(parents=True)
    (tmp_path / "memory" / "b" / "memory.limit_in_bytes").write_text("3")
    assert machine.cgroup_file("5:cpu,cpuacct:/c\n4:memory:/b\n0::/\n", "memory", names) == "3"


def test_gpu():
    check(machine.gpu("", "", None), OK, "none")
    check(machine.gpu("H200, 141 GB\n", "", 1), OK, "H200")
    check(machine.gpu("H200, 141 GB\n", "", 0), WARN, "torch cannot use it")
    check(machine.gpu("", "Failed to initialize NVML\nmore", None), WARN, "Failed to initialize NVML →")


@pytest.mark.parametrize(("limit", "level"), [(64, FAIL), (512, WARN), (1024, OK)])
def test_files(limit, level):
    check(machine.files(limit), level, str(limit))


def test_clock():
    now_s = time.time()
    check(machine.clock(now_s, monotonic=True, skew_s=None), OK)
    check(machine.clock(now_s, monotonic=True, skew_s=-0.5), OK, "0.50 s behind the coordinator")
    check(machine.clock(now_s, monotonic=True, skew_s=7.0), WARN, "7.00 s ahead of the coordinator", "NTP")
    check(machine.clock(0.0, monotonic=True, skew_s=None), WARN, "1970-01-01", "NTP")
    check(machine.clock(now_s, monotonic=False, skew_s=None), FAIL)


@pytest.mark.parametrize(
    ("free", "fsync_s", "level"), [(1e6, 1e-3, FAIL), (5e8, 1e-3, WARN), (5e9, 0.1, WARN), (5e9, 1e-3, OK)]
)
def test_disk(free, fsync_s, level):
    check(services.disk(Path("/runs"), free, fsync_s), level, "/runs", "GB free", "ms")


def test_the_disk_is_measured(tmp_path):
    assert services.existing(tmp_path / "not" / "there") == tmp_path
    assert 0 < services.fsync_s(tmp_path) < 10
    with pytest.raises(OSError):
        services.fsync_s(tmp_path / "not")
    check(
        services.unusable_disk(Path("/runs"), "Read-only file system"), FAIL, "/runs: Read-only file system", "--runs"
    )


@pytest.mark.parametrize(
    ("free", "memory", "level"), [(1e6, True, FAIL), (1e9, True, WARN), (5e9, False, WARN), (5e9, True, OK)]
)
def test_spool(free, memory, level):
    check(services.spool(Path("/dev/shm"), free, memory_backed=memory), level, "/dev/shm")


def test_where_the_spool_is(monkeypatch, tmp_path):
    assert services.spool_directory(tmp_path / "not") == Path(os.environ.get("TMPDIR", "/tmp"))
    assert services.spool_directory(tmp_path) == tmp_path
    monkeypatch.setenv("MARLESS_SPOOL", "/spool")
    assert services.spool_directory(tmp_path) == Path("/spool")


def refuse(*_: str) -> None:
    raise PermissionError(13, "Permission denied")


def test_sockets(monkeypatch):
    check(services.sockets(Path("/data"), services.bind_unix), OK, "of 107 bytes")
    check(services.sockets(Path("/data"), refuse), FAIL, "Permission denied", "TMPDIR")
    monkeypatch.setattr(services, "SOCKET_PATH_BYTES", 20)
    check(services.sockets(Path("/data"), services.bind_unix), FAIL, "of 20", "TMPDIR")


def test_ports():
    check(services.loopback(services.bind_loopback), OK)
    check(services.loopback(refuse), WARN, "Permission denied")


UP = RunningStack(pid=7, coordinator="unix:/c.sock", version="0.1.0")


@pytest.mark.parametrize(
    ("noted", "supervisor", "words", "level", "part"),
    [
        (None, None, "", OK, "not up"),
        (UP, 7, "", OK, "up: unix:/c.sock"),
        (None, 7, "", WARN, "process 7 is starting or stopping it"),
        (UP, 8, "", WARN, "process 8 is starting or stopping it"),
        (UP, None, "", WARN, "process 7, was killed → `marless up`"),
        (None, None, "no Redis", WARN, "gave up: no Redis"),
    ],
)
def test_stack(noted, supervisor, words, level, part):
    check(services.stack(noted, supervisor, words), level, part)


def info(*, serving: bool) -> Info:
    services = (Service(name="actor_pool", address="unix:/a", serving=serving),)
    return Info(version="0.1.0", now_s=0.0, runs="/runs", services=services)


def test_coordinator():
    check(services.coordinator("unix:/c", info(serving=True), ""), OK, "unix:/c", "/runs")
    check(services.coordinator("unix:/c", info(serving=False), ""), FAIL, "cannot use actor_pool")
    check(services.coordinator("unix:/c", None, "nobody answers"), FAIL, "unix:/c: nobody answers", "`marless up`")


def left(name: str, *, attached: bool = False, run: bool = False) -> Unfinished:
    return Unfinished(job=name, attached=attached, cancelling=False, run_by_somebody=run)


@pytest.mark.parametrize(
    ("unfinished", "is_up", "level", "part"),
    [
        ([], False, OK, "none"),
        ([left("a", run=True)], True, OK, "1 running"),
        ([left("a")], False, WARN, "interrupted: a → `marless up`"),
        ([left("a")], True, WARN, "`marless list`"),
        ([left("a", attached=True)], True, WARN, "interrupted: a → `marless train --resume a`"),
        ([left("a", attached=True), left("b")], False, WARN, "a, b → `marless train --resume a`; `marless up`"),
    ],
)
def test_jobs(unfinished, is_up, level, part):
    check(services.jobs(unfinished, is_up=is_up), level, part)


# The verb


@pytest.fixture
def alone(monkeypatch, tmp_path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARLESS_COORDINATOR", raising=False)
    monkeypatch.delenv("MARLESS_RUNS", raising=False)
    return tmp_path


def test_this_machine_can_run_the_tests_and_nothing_is_left(alone):
    result = CliRunner().invoke(app, ["doctor", "-o", "json"])
    assert result.exit_code == 0, result.output
    checks = [finding["check"] for finding in json.loads(result.stdout)]
    assert len(checks) == len(set(checks))
    assert "coordinator" not in checks  # there is none, and nobody has named one
    assert list(alone.iterdir()) == []
    table = CliRunner().invoke(app, ["doctor"]).stdout
    assert all(any(name in line.split()[:2] for line in table.splitlines()) for name in checks)


@pytest.mark.parametrize(
    ("chosen", "level", "found", "advice"),
    [
        ("docker,network=host", "ok", "Engine 25.0, API 1.44 at ", ""),
        ("docker,image=none,network=host", "fail", "cannot inspect image none: No such image: none", "build the image"),
        ("docker,colour=red", "fail", "no option 'colour'; it has image", "correct $MARLESS_LAUNCHER"),
        ("external", "fail", "workers that dial in need the token", "`marless tokens DIR`"),
        ("local", "ok", "workers can be forked from a template", ""),
        ("locl", "fail", "unknown launcher 'locl'; did you mean 'local'", "correct $MARLESS_LAUNCHER"),
        ("their", "ok", "it has no check of its own", ""),
        ("bare", "fail", "the package `bare` is missing", "pip install 'marless[bare]'"),
        ("sick", "fail", "its check failed: ZeroDivisionError", "tell its author"),
    ],
)
def test_the_chosen_launcher_is_checked(alone, monkeypatch, chosen, level, found, advice):
    with engine(alone) as server:
        server.images["marless-actors"] = "marless"
        monkeypatch.setenv("DOCKER_HOST", server.address)
        monkeypatch.setenv("MARLESS_LAUNCHER", chosen)
        monkeypatch.delenv("MARLESS_TOKENS", raising=False)
        theirs = {"their": lambda *_: Silent(), "sick": lambda *_: Sick(), "bare": bare}
        monkeypatch.setitem(sys.modules, "their_package", SimpleNamespace(**theirs))
        entries = EntryPoints(EntryPoint(each, f"their_package:{each}", "marless.launchers") for each in theirs)
        monkeypatch.setattr("marless.core.registry.entry_points", lambda group: entries.select(group=group))
        findings = {each.check: each for each in services.launchers()}
    assert {"launcher-docker", "launcher-ec2", "launcher-external", "launcher-local", "launcher-ray"} <= findings.keys()
    name = chosen.partition(",")[0]
    mine = findings.pop(f"launcher-{name}")
    assert (mine.level, mine.found[: len(found)], mine.advice[: len(advice)]) == (level, found, advice)
    assert bool(mine.advice) == (level == "fail")
    assert {each.level for each in findings.values()} == {"ok"}
    assert all(each.found.startswith("not chosen") for each in findings.values())


class Silent(ExternalLauncher):
    """A launcher of another package, without a check."""

    check = None


def bare(*_):
    """One that needs another package."""
    raise SpecError("launcher bare: the package `bare` is missing: pip install 'marless[bare]'")


class Sick(ExternalLauncher):
    """One whose check has a bug."""

    async def check(self):
        return 1 / 0


def test_what_fails_is_told_and_gives_exit_code_1(alone, monkeypatch):
    monkeypatch.setenv("MARLESS_TLS_CA", "/not/there")
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "$MARLESS_TLS_CA names /not/there" in result.stdout


def test_a_number_of_workers_is_read_as_the_actor_pool_reads_it(alone, monkeypatch):
    monkeypatch.setenv("MARLESS_ACTOR_WORKERS", "1e1")
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0
    monkeypatch.setenv("MARLESS_ACTOR_WORKERS", "many")
    refused = CliRunner().invoke(app, ["doctor"])
    assert isinstance(refused.exception, SpecError)
    assert "$MARLESS_ACTOR_WORKERS is 'many'" in str(refused.exception)


def test_a_coordinator_that_is_named_and_silent_fails(alone, monkeypatch):
    monkeypatch.setattr("marless.app.cli.doctor.examination.CONTACT_S", 0.1)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MARLESS_COORDINATOR", f"127.0.0.1:{closed.getsockname()[1]}")
    result = CliRunner().invoke(app, ["doctor", "-o", "jsonl"])
    assert result.exit_code == 1
    [finding] = [each for line in result.stdout.splitlines() if (each := json.loads(line))["level"] == "fail"]
    assert finding["check"] == "coordinator"
