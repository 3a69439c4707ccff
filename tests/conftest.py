"""Fixtures for tests that need a parameter store: a real Redis, and real gRPC on a unix socket."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from marless.rpc.client import Peer
from marless.rpc.own_redis import find_binary
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.services.param_store.__main__ import ParamStoreConfig, build
from marless.services.param_store.redis_server import RedisOptions
from tests import certificates
from tests.templates import SCRIPTED, Templates, shared_templates

KEEP = 3

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background with SIGINT ignored, and all processes below inherit that: Ctrl-C would
    # end none of those that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A landing must not hang on luck: CI tries the same examples each time, everyone else explores new ones. Nor on time:
# a machine may be busy with other things.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("anywhere", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "anywhere")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Each worker of pytest-xdist has its own directory for sockets and temporary files; subprocesses inherit it.

    Paths in it are no longer than without workers: a socket's may have 107 bytes.
    """
    if _worker():
        directory = tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True)
        config.add_cleanup(directory.cleanup)
        config.option.basetemp = f"{directory.name}/tests"
        os.environ["TMPDIR"] = directory.name
        tempfile.tempdir = None


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option of suites that are for one tool, such as `make test-cloud`: without that, they must not pass."""
    parser.addoption("--nothing-skipped", action="store_true", help="a test that would be skipped fails, and says why")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn what is skipped into a failure, if asked to."""
    report = yield
    if item.config.getoption("--nothing-skipped") and report.skipped and not hasattr(report, "wasxfail"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else f"{report.longrepr}"
        report.outcome, report.longrepr = "failed", f"this suite cannot run here: {why.removeprefix('Skipped: ')}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Fail a test that leaves Ctrl-C ignored: the commands that later tests start would inherit that."""
    yield
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pytest.fail("this test leaves a handler of SIGINT behind; restore the one before it")


LONGEST = (
    "tests/docs/test_newcomers.py",
    "tests/docs/test_commands.py",
    "tests/faults/test_processes.py",
    "tests/e2e/test_train.py",
    "tests/e2e/test_up.py",
    "tests/faults",
    "tests/e2e",
    "tests/integration",
    "tests/plugins/docker",
)
"""Where tests start many processes and wait for them; each of the files takes a minute or more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have pytest-xdist hand out the longest files first, so that none is left for the end."""
    if _worker():
        items.sort(key=lambda item: [not item.nodeid.startswith(place) for place in LONGEST])


def pytest_collection_finish() -> None:
    """Leave 7,000 collected tests, and torch, out of every later garbage collection: they stay until the end."""
    gc.collect()
    gc.freeze()


def _worker() -> str:
    """The name of this worker of pytest-xdist; empty when tests run one after another."""
    return os.environ.get("PYTEST_XDIST_WORKER", "")


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One Redis for all tests, which lets everybody in; they keep apart by their job names."""
    home = tmp_path_factory.mktemp("redis")
    options = {"port": "0", "unixsocket": f"{home}/redis.sock", "dir": f"{home}", "save": "", "appendonly": "yes"}
    command = [word for name, value in options.items() for word in (f"--{name}", value)]
    with (home / "redis.log").open("wb") as log, subprocess.Popen([find_binary(), *command], stdout=log) as server:
        with Redis(unix_socket_path=options["unixsocket"], retry=Retry(ConstantBackoff(0.05), 200)) as redis:
            redis.ping()
        yield f"unix://{home}/redis.sock"
        server.terminate()


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A job name of this test's own."""
    return "job-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


@pytest.fixture
def store_config(redis_url: str, tmp_path: Path) -> ParamStoreConfig:
    """How the store of this test is run."""
    server = ServerOptions(f"unix:{tmp_path}/store.sock", Security())
    return ParamStoreConfig(server, RedisOptions(url=redis_url), keep=KEEP, intake_bytes=2**26)


@pytest.fixture
async def store_address(store_config: ParamStoreConfig) -> AsyncIterator[str]:
    """Address of a parameter store in this process."""
    async with serving(store_config.server, lambda address: build(store_config, address)) as address:
        yield address


@pytest.fixture
async def store(store_address: str) -> AsyncIterator[ParamStore]:
    """A client of it, which gives up at once."""
    peer = Peer(store_address, Security())
    yield ParamStore(peer, patience_s=0.0)
    await peer.close()


@pytest.fixture(scope="session")
def templates() -> Iterator[Templates]:
    """Templates of workers for pools in this process, which start the workers of later tests within milliseconds.

    They know the scripted policies and environments of the fault tests.
    """
    with shared_templates(PYTHONPATH=str(SCRIPTED)) as shared:
        yield shared


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An authority, and certificates for 127.0.0.1, right and wrong ones, with keys; paths of PEM files by name."""
    return certificates.made(tmp_path_factory.mktemp("tls"), "127.0.0.1")
