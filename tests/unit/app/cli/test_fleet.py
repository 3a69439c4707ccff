"""`marless fleet list` and `fleet reap`: what dead pools have left, and nothing else."""

import dataclasses
import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import pytest

from marless.core import orphans
from marless.core.errors import UnavailableError
from marless.core.orphans import Orphan
from marless_docker import containers
from tests.plugins.docker.engine_server import Fault, engine

NAMESPACE = "1"
"""As if this test ran in a PID namespace of its own: pools that other tests start reap in theirs."""
WORKER = "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], env={}).pid, flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    monkeypatch.setattr(orphans, "namespace", lambda: NAMESPACE)
    for name in ("DOCKER_HOST", "MARLESS_LAUNCHER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("marless_docker.engine.DEFAULT", "unix:///nowhere/engine.sock")


@pytest.fixture
def worker():
    """Starts a worker of a pool, which has started a process without its mark; answers it, and that process's id."""
    started = []

    def start(pool: int, namespace: str = NAMESPACE) -> tuple[subprocess.Popen[bytes], int]:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            env={orphans.MARK: f"{namespace}/{pool}/0123456789abcdef"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # by which everything below it is found at the end
        )
        started.append(worker)
        return worker, int(worker.stdout.readline())

    yield start
    for each in started:
        orphans.end_below(each.pid, f"{NAMESPACE}/none")
        each.kill()
        each.communicate()


@pytest.fixture
def dead() -> int:
    """The process id of a pool that has ended."""
    pool = subprocess.Popen(["true"])
    pool.wait()
    return pool.pid


def test_what_a_dead_pool_left_is_listed_and_ended(marless, worker, dead):
    left, below = worker(dead)
    others = [worker(os.getpid())[0], worker(dead, namespace="2")[0]]
    code, out, said = marless("fleet", "list", "-o", "json")
    assert (code, said) == (0, "")
    found = {each["id"]: each for each in json.loads(out)}
    assert found.keys() == {f"{left.pid}", f"{below}"}
    assert {(each["launcher"], each["pool"]) for each in found.values()} == {("local", f"{dead}")}
    assert found[f"{below}"]["what"] == "sleep 600"
    assert all(0 <= each["age_s"] < 120 for each in found.values())
    table = marless("fleet", "list")[1]
    assert "sleep 600" in table and f"{dead}" in table
    code, out, said = marless("fleet", "reap", "-o", "name")
    assert (code, said) == (0, "")
    assert set(out.split()) == found.keys()
    assert left.wait(10) < 0
    assert all(each.poll() is None for each in others)
    code, out, said = marless("fleet", "list")
    assert (code, out) == (0, "")
    assert "nothing is left of pools that have ended" in said
    assert json.loads(marless("fleet", "reap", "-o", "json")[1]) == []


def test_what_cannot_be_ended_is_said(marless, worker, dead, monkeypatch):
    left, below = worker(dead)
    monkeypatch.setattr(orphans, "end_of_dead_pools", lambda: None)
    code, out, said = marless("fleet", "reap", "-o", "name")
    assert (code, out) == (1, "")
    assert f"{left.pid}" in said and f"{below}" in said and "could not be ended" in said


class Rented:
    """What an entry point of another package finds: a machine that nobody uses any more."""

    what = "rented machines"
    fails = ""

    def __init__(self, options):
        self._left = [] if options is None else [Orphan("theirs", f"m-{options['zone']}", "7", "a machine", 3.0)]

    def of_dead_pools(self):
        if self.fails:
            raise UnavailableError(self.fails)
        return list(self._left)

    def end(self, found):
        self._left = [each for each in self._left if each not in found]


@pytest.fixture
def theirs(monkeypatch):
    """As if a package had declared what its launcher leaves behind, and another one cannot be imported."""
    entries = EntryPoints(
        [
            EntryPoint("theirs", "their_package:Rented", "marless.leftovers"),
            EntryPoint("broken", "not_there:find", "marless.leftovers"),
        ]
    )
    monkeypatch.setitem(sys.modules, "their_package", SimpleNamespace(Rented=Rented))
    monkeypatch.setattr("marless.core.registry.entry_points", lambda group: entries.select(group=group))


def test_what_another_packages_launcher_left_is_listed_and_ended(marless, theirs, monkeypatch):
    broken = "what is left of launcher broken: not_there:find of the package not_there cannot be loaded: "
    code, out, said = marless("fleet", "list", "-o", "json")
    assert (code, json.loads(out)) == (0, [])
    assert broken in said and "Traceback" not in said
    monkeypatch.setenv("MARLESS_LAUNCHER", "theirs,zone=b")
    assert [each["id"] for each in json.loads(marless("fleet", "list", "-o", "json")[1])] == ["m-b"]
    assert marless("fleet", "reap", "-o", "name")[:2] == (0, "m-b\n")
    monkeypatch.setattr(Rented, "fails", "the zone is on fire")
    code, out, said = marless("fleet", "list", "-o", "name")
    assert (code, out) == (0, "") and "rented machines are left out: the zone is on fire" in said


@pytest.mark.parametrize("variable", ["DOCKER_HOST={}", "MARLESS_LAUNCHER=docker,network=host,engine={}"])
def test_containers_of_dead_pools_are_listed_and_removed(marless, dead, tmp_path, monkeypatch, variable):
    here = dataclasses.replace(containers.Pool.here(), container="")
    with engine(tmp_path) as server:
        monkeypatch.setenv(*variable.format(server.address).split("=", 1))
        server.add("left", **{containers.POOL: str(dataclasses.replace(here, pid=dead))})
        server.add("running", **{containers.POOL: str(here)})
        [found] = json.loads(marless("fleet", "list", "-o", "json")[1])
        assert (found["launcher"], found["id"], found["pool"]) == ("docker", "left", f"{dead}")
        server.faults["list"].append(Fault(500, "the disk is broken"))
        code, out, said = marless("fleet", "list", "-o", "name")
        assert (code, out) == (0, "")
        assert "containers are left out: cannot list containers with label marless.pool: the disk is broken" in said
        assert marless("fleet", "reap", "-o", "name")[:2] == (0, "left\n")
        assert server.containers.keys() == {"running"}
