"""The four services as one stack: started again when they die, given up when that does not help, never left behind."""

import asyncio
import errno
import fcntl
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from marless.app.cli import supervision
from marless.app.cli.service_process import Start, Starter
from marless.app.cli.stack import SERVICES, LocalStack, StackOptions, owner_of, socket_directory
from marless.app.cli.supervision import Log, Patience, RestartLimits
from marless.core import private_files
from marless.core.errors import JobStateError, UnavailableError
from marless.core.private_files import Claim
from marless.rpc.security import SECRET_VARIABLES

SERVES_S = 30.0
CANARIES = dict.fromkeys(sorted(set(SECRET_VARIABLES) - {"MARLESS_REDIS_URL"}), "canary")


@pytest.fixture
def options() -> StackOptions:
    return StackOptions(restarts=RestartLimits(deaths=3, patience=Patience(question_s=0.5, silent_s=3.0)))


@pytest.fixture
def stack(tmp_path, monkeypatch, options) -> LocalStack:
    monkeypatch.setenv("MARLESS_SPOOL", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return LocalStack(runs=tmp_path / "runs", logs=tmp_path / "logs", data=tmp_path / "store", options=options)


@pytest.fixture(autouse=True)
def without_workers(monkeypatch):
    """What is tested of the services is as true of those that have started no worker yet."""
    monkeypatch.setenv("MARLESS_WARM_WORKERS", "0")


@pytest.fixture
def with_actors(stack):
    stack._options.environment["actor_pool"] = {"MARLESS_WARM_WORKERS": "1"}


@pytest.fixture
async def up(stack) -> AsyncIterator[LocalStack]:
    async with stack:
        async with asyncio.timeout(SERVES_S):
            await stack.serving()
        yield stack


def family() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


async def kill(stack: LocalStack, service: str) -> None:
    """Kill a service, and wait for the next one to serve at the same address."""
    killed = stack.pid(service)
    os.kill(killed, signal.SIGKILL)
    async with asyncio.timeout(SERVES_S):
        while stack.pid(service) == killed:  # noqa: ASYNC110  # to wait for the process would take its exit code
            await asyncio.sleep(0.02)
        async for status in supervision.statuses(stack.address(service), stack.security):
            if status == supervision.SERVING:
                return


async def test_every_service_is_started_again_at_the_same_address(up, stack):
    first = {name: stack.pid(name) for name in SERVICES}
    await asyncio.gather(*(kill(stack, name) for name in SERVICES))
    assert dict(stack.restarts) == dict.fromkeys(SERVICES, 1)
    assert all(stack.pid(name) != first[name] for name in SERVICES)
    assert sum("-server" in each.name() for each in family()) <= 1  # the old one, adopted


async def heard(stack: LocalStack) -> None:
    """Wait until each service has answered its supervisor once; until then it may take the time of a start."""
    async with asyncio.timeout(SERVES_S):
        while not all(each._answered for each in stack._services.values()):  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.02)


async def again(stack: LocalStack, service: str, before: int) -> None:
    """Wait until another process than `before` is this service, and the stack serves."""
    async with asyncio.timeout(SERVES_S):
        while stack.pid(service) == before:  # noqa: ASYNC110  # to wait for the process would take its exit code
            await asyncio.sleep(0.02)
        await stack.serving()


@pytest.mark.parametrize("service", ["param_store", "coordinator"])
async def test_a_service_that_runs_and_does_not_answer_is_replaced(up, stack, options, service):
    sentences: list[str] = []
    stack._services[service]._told = sentences.append
    await heard(stack)
    before = stack.pid(service)
    os.kill(before, signal.SIGSTOP)
    await again(stack, service, before)
    [said] = sentences
    assert (
        said.startswith(f"{service} did not answer for 3 s; it was started again") or "did not answer for 4 s" in said
    )
    assert sum(stack.restarts.values()) == 1


async def test_a_service_that_is_paused_for_a_moment_stays(up, stack):
    before = {name: stack.pid(name) for name in SERVICES}
    os.kill(before["actor_pool"], signal.SIGSTOP)
    await asyncio.sleep(1.0)
    os.kill(before["actor_pool"], signal.SIGCONT)
    await asyncio.sleep(2.0)
    assert {name: stack.pid(name) for name in SERVICES} == before


async def test_sockets_that_something_removes_are_made_anew(up, stack):
    sentences: list[str] = []
    for service in stack._services.values():
        service._told = sentences.append
    await heard(stack)
    before = {name: stack.pid(name) for name in SERVICES}
    shutil.rmtree(socket_directory(stack._data))
    for name in SERVICES:
        await again(stack, name, before[name])
    assert all("had lost its socket" in said for said in sentences)
    assert socket_directory(stack._data).stat().st_mode & 0o777 == 0o700


async def test_nothing_is_left_behind(stack):
    others = family()  # the Redis that tests share
    async with stack:
        async with asyncio.timeout(SERVES_S):
            await stack.serving()
        all_of_it = [process for process in family() if process not in others]
        sockets = socket_directory(stack._data)
        assert sockets.stat().st_mode & 0o777 == 0o700
    _, alive = psutil.wait_procs(all_of_it, timeout=SERVES_S)
    assert alive == []
    assert not sockets.exists()
    assert owner_of(stack._data) is None


async def test_the_socket_directories_of_stacks_that_were_killed_are_removed(stack, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    stack._sockets = socket_directory(stack._data)
    home = private_files.directory(stack._sockets.parent)
    used, left, half_made, strange = (home / (8 * digit) for digit in "abcd")
    living = Claim.make(used)
    left.mkdir()
    for name in ("lock", "coordinator.sock"):
        (left / name).touch()
    half_made.mkdir()
    strange.mkdir()
    (strange / "file").touch()
    await stack._claim_sockets()
    assert sorted(home.iterdir()) == sorted([used, strange, stack._sockets])
    living.release()
    await stack._held.aclose()
    assert list(home.iterdir()) == [strange]


async def test_the_sockets_of_a_stack_that_was_killed_stay_until_its_services_have_ended(up, stack):
    home = stack._sockets.parent
    os.dup2(2, stack._claimed)  # let go, as by a kill
    private_files.sweep(home, stack._sockets.name)
    assert len(list(stack._sockets.glob("*.sock"))) == len(SERVICES)


async def test_a_service_that_keeps_dying_is_given_up(up, stack):
    await kill(stack, "actor_pool")
    await kill(stack, "actor_pool")
    os.kill(stack.pid("actor_pool"), signal.SIGKILL)
    async with asyncio.timeout(SERVES_S):
        error = await stack.failed()
    assert str(error).startswith("actor_pool ended 3 times within ")
    assert "killed by signal 9" in str(error)


async def test_a_service_that_cannot_start_is_given_up_at_once(stack, tmp_path):
    stack._options.environment["learner_pool"] = {"MARLESS_LEARNER_WORKERS": "none"}
    async with stack, asyncio.timeout(SERVES_S):
        error = await stack.failed()
    assert str(error).startswith("learner_pool ended: ")
    assert "none" in str(error)
    assert stack.restarts["learner_pool"] == 1


@pytest.mark.parametrize("variable", ["MARLESS_FAILPOINT", "SEEN_ONCE"])
async def test_variables_can_be_set_for_one_start(with_actors, up, stack, variable):
    stack.prepare("actor_pool", **{variable: "actor.carry.before"})
    seen = []
    for _ in range(2):
        await kill(stack, "actor_pool")
        seen.append((await template_of_workers(stack)).environ().get(variable))
    assert seen == ["actor.carry.before", None]


async def template_of_workers(stack: LocalStack, pool: str = "actor_pool") -> psutil.Process:
    """What a pool forks workers from; it has the pool's environment."""
    async with asyncio.timeout(SERVES_S):
        while True:
            for each in psutil.Process(stack.pid(pool)).children():
                if f"--module=marless.services.{pool}.worker" in each.cmdline():
                    return each
            await asyncio.sleep(0.02)


async def test_a_stack_waits_for_what_a_killed_one_left(stack, tmp_path):
    (tmp_path / "store").mkdir()
    with (tmp_path / "store" / "services").open("w") as lease:
        fcntl.flock(lease, fcntl.LOCK_EX)
        left = await asyncio.create_subprocess_exec("sleep", "0.5", pass_fds=[lease.fileno()])
    async with stack:
        assert left.returncode == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole(tmp_path_factory) -> AsyncIterator[LocalStack]:
    """A stack with templates of both kinds of workers, for tests that only look at it."""
    place = tmp_path_factory.mktemp("whole")
    others = family()  # the Redis that tests share
    with pytest.MonkeyPatch.context() as patched:
        for name, value in (*CANARIES.items(), ("MARLESS_SPOOL", f"{place}"), ("OMP_NUM_THREADS", "1")):
            patched.setenv(name, value)
        stack = LocalStack(runs=place / "runs", logs=place / "logs", data=place / "store")
        async with stack:
            async with asyncio.timeout(SERVES_S):
                await stack.serving()
            for pool in ("actor_pool", "learner_pool"):
                await template_of_workers(stack, pool)
            yield stack
    _, alive = psutil.wait_procs([process for process in family() if process not in others], timeout=SERVES_S)
    assert alive == []


@pytest.mark.asyncio(loop_scope="module")
async def test_two_stacks_never_share_a_directory(whole, tmp_path):
    with pytest.raises(JobStateError, match=f"in use by the services of process {os.getpid()}"):
        async with LocalStack(runs=tmp_path, logs=tmp_path / "other", data=whole._data):
            pass


@pytest.mark.asyncio(loop_scope="module")
async def test_each_service_holds_the_lease_and_nothing_that_it_starts(whole):
    services = {whole.pid(name) for name in SERVICES}
    lease = str(whole._data / "services")
    holders = {each.pid for each in family() if lease in {file.path for file in each.open_files()}}
    assert holders == services


@pytest.mark.asyncio(loop_scope="module")
async def test_secrets_stay_off_private_sockets(whole):
    services = {whole.pid(name) for name in SERVICES}
    everything = [each for each in family() if each.name().startswith("python")]
    assert services < {each.pid for each in everything}
    for process in everything:
        assert [name for name, value in process.environ().items() if "canary" in value] == []


async def test_each_service_gets_the_secrets_that_it_needs_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setenv("MARLESS_REDIS_URL", "redis://:canary@127.0.0.1")
    options = StackOptions(listen="127.0.0.1:7070")
    stack = LocalStack(runs=tmp_path, logs=tmp_path / "logs", data=tmp_path / "store", options=options)
    held = {
        service: {name for name, value in stack._environment(service).items() if "canary" in value}
        for service in SERVICES
    }
    assert held == {
        "param_store": {"MARLESS_REDIS_URL"},
        "learner_pool": set(),
        "actor_pool": set(),
        "coordinator": {"MARLESS_TOKENS", "MARLESS_TLS_CERT", "MARLESS_TLS_KEY", "MARLESS_TLS_CLIENT_CA"},
    }


@pytest.fixture(autouse=True)
def token(monkeypatch):
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)


async def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="file/logs: Not a directory; the services cannot be started"):
        async with LocalStack(runs=tmp_path, logs=tmp_path / "file" / "logs", data=tmp_path / "store"):
            pass


async def test_a_machine_without_descriptors_is_named(stack, monkeypatch):
    async def start(_starter: Starter, _start: Start) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Starter, "start", start)
    with pytest.raises(UnavailableError, match=r"^Too many open files; the services cannot be started$"):
        await stack.__aenter__()


@pytest.fixture
def outlived(stack, tmp_path, monkeypatch) -> Claim:
    """The claim of services whose directory was deleted while they ran, and its locks with it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    stack._sockets = socket_directory(stack._data)
    private_files.directory(stack._sockets.parent)
    return Claim.make(stack._sockets)


async def test_services_that_outlive_their_directory_are_waited_for(stack, outlived):
    asyncio.get_running_loop().call_later(0.3, outlived.release)
    async with stack:
        assert outlived.lock == -1


async def test_services_that_outlive_their_directory_for_long_are_named(stack, outlived, monkeypatch):
    monkeypatch.setattr("marless.app.cli.stack.LEFTOVER_S", 0.2)
    with pytest.raises(UnavailableError) as refusal:
        await stack.__aenter__()
    assert str(refusal.value) == (
        f"services of an earlier start are still running, though {stack._data} has been deleted; "
        f"`fuser -k {stack._sockets / 'lock'}` ends them"
    )
    outlived.release()


@pytest.mark.parametrize("depth", [0, 5, 50])
def test_sockets_fit_however_long_the_temporary_directory_is(tmp_path, monkeypatch, depth):
    long = tmp_path.joinpath(*(["deep"] * depth))
    monkeypatch.setattr("tempfile.tempdir", str(long))
    directory = socket_directory(Path("/data"))
    assert all(len(os.fsencode(directory / f"{name}.sock")) <= private_files.SOCKET_PATH_BYTES for name in SERVICES)
    assert directory != socket_directory(Path("/other"))


def test_a_log_is_bounded_under_its_writers_hands(tmp_path, monkeypatch):
    monkeypatch.setattr(supervision, "LOG_BYTES", 100)
    log = Log(tmp_path / "service.log")
    with log.open() as writer:
        writer.write(b"b" * 50 + b"a" * 100)
        writer.flush()
        log.bound()
        writer.write(b"sorry\n{}\n")
    assert log.path.read_bytes() == b"sorry\n{}\n"
    old = tmp_path / "service.log.1"
    assert old.read_bytes() == b'{"event": "log.dropped", "bytes": 50}\n' + b"a" * 100
    assert old.stat().st_mode == log.path.stat().st_mode
    assert log.last_words() == "sorry"
