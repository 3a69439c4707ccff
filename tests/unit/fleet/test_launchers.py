"""Launchers by name: ours, those of other packages, and what an operator may write."""

import sys
from contextlib import asynccontextmanager
from functools import partial
from importlib import metadata
from types import SimpleNamespace

import pytest

from marless.core.errors import SpecError
from marless.fleet.launchers.base import ACCEPTED, Condition, LaunchOrder, LaunchOutcome, WorkerProgram
from marless.fleet.launchers.external import ExternalLauncher
from marless.fleet.launchers.local import LocalLauncher
from marless.fleet.launchers.registry import Choice, launching, parse
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceServicer, add_ActorPoolServiceServicer_to_server
from marless.rpc.v1.common_pb2 import ListWorkersResponse, WorkerInfo
from marless.services.actor_pool import __main__ as actors
from marless.services.learner_pool import config as learners
from tests import tokens

PROGRAM = WorkerProgram("marless.services.actor_pool.worker", (), {}, lambda: "")


class Their(ExternalLauncher):
    def __init__(self, program, options):
        super().__init__(float(options["connect_s"]))
        self.closed = False

    async def launch(self, orders):
        return [ACCEPTED for _ in orders]

    async def close(self):
        self.closed = True


@pytest.fixture
def installed(monkeypatch):
    """As if a package had declared `their = "their_package:Their"` in the group `marless.launchers`."""
    entry = metadata.EntryPoint("their", "their_package:Their", "marless.launchers")
    monkeypatch.setitem(sys.modules, "their_package", SimpleNamespace(Their=Their))
    monkeypatch.setattr(
        "marless.core.registry.entry_points", lambda group: metadata.EntryPoints([entry]).select(group=group)
    )


async def test_ours_are_found_with_their_options():
    async with launching(parse("local,connect_s=7"), PROGRAM) as launcher:
        assert isinstance(launcher, LocalLauncher)
        assert (launcher.connect_s, launcher.capacity()) == (7.0, None)
    async with launching(parse("external"), PROGRAM) as launcher:
        assert launcher.capacity() == 0
        [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
        assert launch.outcome is LaunchOutcome.REFUSED
        await launcher.drain("one", 0.0)
        assert await launcher.observe("one") == "not started"


@pytest.mark.parametrize(("workers", "said"), [(3, "3"), (0, "none; docs/operating.md says how to start some")])
async def test_external_says_how_many_workers_are_attached(tmp_path, monkeypatch, workers, said):
    known = tokens.made(tmp_path / "tokens")
    monkeypatch.setenv("MARLESS_TOKENS", str(tmp_path / "tokens"))

    class Pool(ActorPoolServiceServicer):
        async def ListWorkers(self, request, context):  # noqa: N802  # named by the proto
            return ListWorkersResponse(workers=[WorkerInfo(worker=f"other-{each}") for each in range(workers)])

    @asynccontextmanager
    async def build(_address):
        yield ServedService(partial(add_ActorPoolServiceServicer_to_server, Pool()))

    options = ServerOptions("127.0.0.1:0", Security(known.of(Role.SERVICE), tokens=known))
    async with serving(options, build) as address:
        monkeypatch.setenv("MARLESS_ACTOR_POOL", address)
        assert await ExternalLauncher().check() == Condition(f"actor workers attached to the pool at {address}: {said}")
    unknown = await ExternalLauncher().check()
    assert unknown.found.startswith("workers dial in with a token; how many have is not known: actor_pool: ")
    assert unknown.advice == ""


async def test_entry_points_add_launchers_which_are_closed_at_the_end(installed):
    async with launching(parse("their,connect_s=3"), PROGRAM) as launcher:
        assert launcher.connect_s == 3.0
    assert launcher.closed
    with pytest.raises(SpecError, match=r"launcher their: cannot be made with these options: KeyError: 'connect_s'"):
        async with launching(parse("their"), PROGRAM):
            pass


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("locl", "launcher 'locl'"),
        ("local,speed=3", "launcher local: no option 'speed'; it has connect_s"),
        ("external,connect_s=soon", "launcher external: connect_s=soon: give a number of seconds above 0"),
        ("external,connect_s=0", "connect_s=0"),
        ("external,connect_s=inf", "connect_s=inf"),
    ],
)
async def test_what_cannot_be_is_said(text, said):
    with pytest.raises(SpecError, match=said):
        async with launching(parse(text), PROGRAM):
            pass


@pytest.mark.parametrize("text", ["local,", "local,connect_s", "local,=3", "local,a=1,a=2"])
def test_options_are_pairs(text):
    with pytest.raises(SpecError, match="write name,key=value,…"):
        parse(text)


@pytest.mark.parametrize(("module", "kind"), [(actors, "actor"), (learners, "learner")])
def test_a_pool_without_workers_of_its_own_needs_tokens(module, kind, capsys, tmp_path):
    store = ["--param-store", "unix:/nowhere"]
    none = [[*store, "--launcher", "external"], [*store, f"--{kind}-workers", "0"]]
    for options in none:
        with pytest.raises(SystemExit):
            module.parse(options)
        assert "give this pool --tokens, too" in capsys.readouterr().err
    (tmp_path / "tokens").mkdir(mode=0o700)
    for options in none:
        config = module.parse([*options, "--tokens", str(tmp_path / "tokens")])
        assert config.workers == 0
    assert module.parse(store).launcher == Choice("local", {})
