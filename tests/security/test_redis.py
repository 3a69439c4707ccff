"""S5: what the users of our own Redis may do, that nobody else comes in, and what a Redis of another machine takes."""

import asyncio
import json
import socket
import stat
import subprocess
import time
from contextlib import aclosing, asynccontextmanager, closing, suppress
from pathlib import Path

import psutil
import pytest
from redis import exceptions
from redis.asyncio import Redis

from marless.core.errors import NotFoundError, SpecError, UnavailableError, UnreachableError
from marless.rpc.own_redis import ACL_FILE, PASSWORDS_FILE, RULES, STORE, SUPERVISOR, RedisUsers, find_binary
from marless.services.param_store import redis_server
from marless.services.param_store.__main__ import parse
from marless.services.param_store.connection import connected, redis_errors, settings_of
from marless.services.param_store.redis_server import Provided, RedisOptions, provided
from marless.services.param_store.store import VersionStore
from marless.services.param_store.versions import Write

CANARY = "canary-7f3a"
REFUSED = "[Nn]o permissions|command not allowed"  # the latter of DEBUG and MODULE LOAD, whoever asks
SCRIPT_REFUSED = r"(?i)can't run this|can't access|permission|not allowed"
FORBIDDEN = [
    line.split()
    for line in """
    CONFIG GET *
    CONFIG SET dir /tmp
    CONFIG REWRITE
    KEYS *
    SCAN 0
    RANDOMKEY
    DBSIZE
    FLUSHALL
    FLUSHDB
    SWAPDB 0 1
    DEBUG SLEEP 0
    SHUTDOWN NOSAVE
    MODULE LIST
    MODULE LOAD /tmp/x.so
    ACL LIST
    ACL SETUSER store +@all
    ACL WHOAMI
    CLIENT LIST
    CLIENT KILL TYPE normal
    MONITOR
    SAVE
    BGSAVE
    BGREWRITEAOF
    REPLICAOF 127.0.0.1 6379
    SYNC
    MIGRATE 127.0.0.1 6379 k 0 10
    RESTORE marless:{j}:k 0 x
    DUMP marless:{j}:k
    SCRIPT FLUSH
    SUBSCRIBE marless
    PUBLISH marless x
    SLOWLOG GET
    LATENCY LATEST
    SORT marless:{j}:k
    GET marless:{j}:k
    SET marless:{j}:k v
    DEL marless:{j}:k
    SELECT 1
    HGET other:k f
    HSET other:k f v
    """.strip().splitlines()
]


@asynccontextmanager
async def client_of(url: str, user: str = "", password: str = ""):
    own = {"username": user, "password": password} if user else {}
    client = Redis.from_url(url, protocol=2, driver_info=None, retry=None, socket_timeout=5, **own)
    async with aclosing(client):
        yield client


@pytest.fixture
def home(tmp_path) -> Path:
    return tmp_path / "redis"


@pytest.fixture
async def ours(tmp_path):
    async with provided(RedisOptions(data_dir=str(tmp_path))) as found:
        yield found


def passwords(home: Path) -> dict[str, str]:
    return json.loads((home / PASSWORDS_FILE).read_text())


# Our own Redis


@pytest.mark.parametrize("command", ["PING", "INFO", "HGET marless:{j}:fence epoch", "SHUTDOWN NOSAVE", "FLUSHALL"])
async def test_nobody_does_anything_without_a_password(shared, command):
    reader, writer = await asyncio.open_unix_connection(shared.url.removeprefix("unix://"))
    writer.write(f"{command}\r\n".encode())
    assert (await reader.readline()).startswith(b"-NOAUTH ")
    writer.close()


@pytest.mark.parametrize("user", ["default", STORE, SUPERVISOR, "root"])
async def test_nobody_comes_in_with_a_wrong_password(shared, user):
    async with client_of(shared.url, user, CANARY) as client:
        with pytest.raises(exceptions.ConnectionError, match="invalid username-password pair or user is disabled"):
            await client.execute_command("PING")


@pytest.mark.parametrize("words", FORBIDDEN, ids=" ".join)
async def test_the_stores_user_may_do_nothing_else(shared, words):
    async with client_of(shared.url, STORE, shared.password) as client:
        with pytest.raises(exceptions.ResponseError, match=REFUSED):
            await client.execute_command(*words)


async def test_nor_may_it_in_a_script(shared):
    async with client_of(shared.url, STORE, shared.password) as client:
        for call in ("'CONFIG', 'GET', 'dir'", "'FLUSHALL'", "'KEYS', '*'", "'HGET', 'other', 'f'"):
            with pytest.raises(exceptions.ResponseError, match=SCRIPT_REFUSED):
                await client.execute_command("EVAL", f"return redis.call({call})", 0)


@pytest.mark.parametrize("words", [*FORBIDDEN, ["HGET", "marless:{j}:fence", "epoch"], ["EVAL", "return 1", "0"]])
async def test_the_supervisor_neither_reads_nor_writes(shared, words):
    if words[0] == "SHUTDOWN":
        return
    async with client_of(shared.url, SUPERVISOR, passwords(Path(shared.home))[SUPERVISOR]) as client:
        assert await client.execute_command("PING")
        with pytest.raises(exceptions.ResponseError, match=REFUSED):
            await client.execute_command(*words)


async def test_the_store_can_do_all_that_it_must(ours):
    """Every verb of the store, retention and deletion included, through its scripts."""
    async with connected(ours) as redis:
        store = VersionStore(redis, ours.trouble, keep=2)
        epoch = await store.acquire_epoch("j", "first")
        for version in range(4):
            write = Write(policy="a", expected=version, req_id=f"r{version}", parts=(), blobs=())
            assert await store.publish("j", epoch, version, [write]) == {"a": version + 1}
            if version == 0:
                await store.pin("j", "a", 1, True)
        async with aclosing(store.watch("j", "")) as heads:
            assert (await anext(heads)).version == 4
        _, [listed] = await store.listing("j")
        assert (listed.versions, listed.pinned) == ((1, 3, 4), (1,))
        await store.delete("j")
        with pytest.raises(NotFoundError):
            await store.read("j", [("a", 0)])
        assert await store.ready()


async def test_passwords_are_private_and_told_to_nobody(ours, home, caplog):
    told = passwords(home)
    for name in (PASSWORDS_FILE, ACL_FILE):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
    acl = (home / ACL_FILE).read_text()
    commands = "".join(" ".join(each.cmdline()) + str(each.environ()) for each in psutil.Process().children())
    log = (home / "redis.log").read_text()
    assert len(told) == len(set(told.values())) == len(RULES)
    for password in told.values():
        assert len(password) >= 43  # 256 bits
        assert not any(password in text for text in (acl, commands, log, caplog.text, repr(ours)))


async def test_the_next_store_comes_in_with_the_same_passwords(tmp_path, home):
    async with provided(RedisOptions(data_dir=str(tmp_path))) as first:
        before = passwords(home)
        async with connected(first) as redis:
            await VersionStore(redis, first.trouble, keep=2).acquire_epoch("j", "r")
    async with provided(RedisOptions(data_dir=str(tmp_path))) as second, connected(second) as redis:
        assert passwords(home) == before
        assert await VersionStore(redis, second.trouble, keep=2).acquire_epoch("j", "r") == 1


def test_the_user_that_redis_reads_its_log_as_may_do_everything_and_nobody_is_it(tmp_path):
    """Redis 7.0 lost all versions at a restart whose default user was allowed nothing."""
    first, *others = RedisUsers.of(tmp_path).acl_file.read_text().splitlines()
    assert first == "user default off resetpass ~* &* +@all"
    assert [each.split()[1] for each in others] == [STORE, SUPERVISOR]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"store": ""}', None])
async def test_passwords_that_are_lost_are_made_anew(tmp_path, home, damage):
    async with provided(RedisOptions(data_dir=str(tmp_path))):
        before = passwords(home)
    if damage is None:
        (home / PASSWORDS_FILE).unlink()
    else:
        (home / PASSWORDS_FILE).write_bytes(damage)
    async with provided(RedisOptions(data_dir=str(tmp_path))) as found, connected(found) as redis:
        assert await redis.ping()
    assert passwords(home).keys() == before.keys()
    assert not set(passwords(home).values()) & set(before.values())


def start_unprotected(home: Path) -> subprocess.Popen:
    """As stores did before there were users."""
    home.mkdir(mode=0o700)
    settings = {"port": "0", "unixsocket": f"{home}/redis.sock", "dir": f"{home}", "save": "", "appendonly": "yes"}
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return subprocess.Popen([find_binary(), *words], stdout=subprocess.DEVNULL)


async def until_answers(url: str) -> None:
    async with asyncio.timeout(20), client_of(url) as client:
        while True:
            with suppress(exceptions.RedisError):
                await client.ping()
                return
            await asyncio.sleep(0.02)


async def test_a_redis_of_before_there_were_users_is_started_again_with_its_data(tmp_path, home):
    with start_unprotected(home) as old:
        url = f"unix://{home}/redis.sock"
        await until_answers(url)
        async with connected(Provided(url)) as redis:
            await VersionStore(redis, str, keep=2).acquire_epoch("j", "r")
        async with provided(RedisOptions(data_dir=str(tmp_path))) as found:
            assert await asyncio.to_thread(old.wait, 10) == 0
            async with connected(found) as redis:
                assert await VersionStore(redis, str, keep=2).acquire_epoch("j", "r") == 1
            async with client_of(url) as stranger:
                with pytest.raises(exceptions.AuthenticationError):
                    await stranger.ping()


async def test_a_redis_with_other_passwords_is_named(tmp_path, home):
    async with provided(RedisOptions(data_dir=str(tmp_path))):
        (home / PASSWORDS_FILE).unlink()
        stranger = redis_server.LocalRedis(find_binary(), home, "1gb", RedisUsers.of(home), lambda: None)
        with pytest.raises(UnavailableError, match="does not know its store's passwords; end that process first"):
            async with stranger.running():
                pass
        async with client_of(f"unix://{home}/redis.sock") as client:
            with pytest.raises(exceptions.AuthenticationError):
                await client.ping()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One Redis of our own for attacks that change nothing of it."""
    place = tmp_path_factory.mktemp("shared")
    with asyncio.Runner() as runner:
        running = provided(RedisOptions(data_dir=str(place)))
        found = runner.run(running.__aenter__())
        yield Shared(found, place / "redis")
        runner.run(running.__aexit__(None, None, None))


class Shared:
    def __init__(self, found: Provided, home: Path) -> None:
        self.url, self.password, self.home = found.url, found.password, home


# A Redis that somebody else runs


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("redis://redis.example.org", "without encryption: use rediss://"),
        (f"redis://:{CANARY}@10.0.0.9:6379/0", "without encryption: use rediss://"),
        ("redis://?host=10.0.0.9", "without encryption: use rediss://"),
        ("rediss://redis.example.org", "has no password"),
        (f"rediss://u:{CANARY}@redis.example.org?ssl_cert_reqs=none", "verification of certificates"),
        (f"rediss://u:{CANARY}@redis.example.org?ssl_cert_reqs=optional", "verification of certificates"),
        (f"rediss://u:{CANARY}@redis.example.org?ssl_check_hostname=false", "verification of certificates"),
        (f"rediss://u:{CANARY}@localhost?ssl_cert_reqs=none", "verification of certificates"),
        (f"redis://u:{CANARY}@host:port", "the Redis URL cannot be used"),
        (f"gopher://u:{CANARY}@host", "gopher:// is none of Redis's"),
        (f"u:{CANARY}@host", "the Redis URL cannot be used"),
    ],
)
async def test_a_url_that_is_not_safe_is_refused_in_one_sentence(url, sentence):
    with pytest.raises(SpecError, match=sentence) as refused:
        async with connected(Provided(url)):
            pass
    assert CANARY not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert CANARY not in repr(Provided(url)) + repr(RedisOptions(url=url))


async def test_what_is_asked_for_is_tried():
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        for url in (f"redis://:{CANARY}@127.0.0.1:{nobody.getsockname()[1]}", f"redis://:{CANARY}@0.0.0.0:1"):
            with pytest.raises(UnreachableError, match="Redis cannot be used now") as refused:
                async with connected(Provided(url, insecure=True)):
                    pass
            assert CANARY not in str(refused.value)


def test_a_password_is_not_taken_from_the_command_line(monkeypatch, tmp_path, capsys):
    url = f"rediss://u:{CANARY}@redis.example.org"
    with pytest.raises(SystemExit):
        parse(["--redis-url", url])
    said = capsys.readouterr().err
    assert "every user of this machine can read a command line" in said
    assert CANARY not in said
    monkeypatch.setenv("MARLESS_REDIS_URL", url)
    config = parse([])
    assert (config.redis.url, config.redis.insecure) == (url, False)
    assert CANARY not in repr(config)
    monkeypatch.setenv("MARLESS_REDIS_INSECURE", "1")
    assert parse([]).redis.insecure
    monkeypatch.setenv("MARLESS_REDIS_INSECURE", "0")
    assert not parse([]).redis.insecure
    assert parse(["--redis-insecure"]).redis.insecure


@pytest.mark.parametrize(("content", "sentence"), [(None, "No such file"), ("\n", "it is empty")])
async def test_a_password_file_that_holds_none_is_named(tmp_path, content, sentence):
    path = tmp_path / "password"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SpecError, match=f"--redis-password-file .*password: {sentence}"):
        async with provided(RedisOptions(url="redis://localhost", password_file=str(path))):
            pass


async def test_the_password_of_a_file_opens_a_brought_redis(ours, tmp_path):
    path = tmp_path / "password"
    path.write_text(f"{ours.password}\n")
    url = ours.url.replace("unix://", f"unix://{STORE}@")
    async with provided(RedisOptions(url=url, password_file=str(path))) as found, connected(found) as redis:
        assert await redis.ping()


@pytest.fixture
def encrypted(tls, tmp_path):
    """The port of a Redis that speaks TLS only, with a password."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"port": "0", "tls-port": f"{port}", "bind": "127.0.0.1", "dir": f"{tmp_path}", "appendonly": "yes"}
    settings |= {"tls-cert-file": tls["server.pem"], "tls-key-file": tls["server.key"]}
    settings |= {"tls-ca-cert-file": tls["ca.pem"], "tls-auth-clients": "no", "requirepass": CANARY}
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    log = tmp_path / "log"
    with log.open("wb") as said, subprocess.Popen([find_binary(), *words], stdout=said) as server:
        give_up_s = time.monotonic() + 20
        while server.poll() is None and b"eady to accept" not in log.read_bytes() and time.monotonic() < give_up_s:
            time.sleep(0.02)
        if server.returncode is not None:
            pytest.skip("the Redis of this machine is built without TLS")
        yield port
        server.terminate()


async def test_tls_is_verified(encrypted, tls):
    url = f"rediss://:{CANARY}@127.0.0.1:{encrypted}"
    async with connected(Provided(f"{url}?ssl_ca_certs={tls['ca.pem']}")) as redis:
        assert await redis.ping()
    for wrong in (url, f"{url}?ssl_ca_certs={tls['stranger.pem']}", url.replace("rediss", "redis")):
        with pytest.raises(UnavailableError, match="Redis cannot be used now") as refused:
            async with connected(Provided(wrong)):
                pass
        assert CANARY not in str(refused.value)
    async with connected(Provided(f"{url}?ssl_cert_reqs=none&ssl_check_hostname=false", insecure=True)) as redis:
        assert await redis.ping()


async def test_an_acl_that_allows_too_little_is_said(shared):
    async with client_of(shared.url, SUPERVISOR, passwords(shared.home)[SUPERVISOR]) as client:
        sentence = r"does not let the store's user do what it must.*docs/operating\.md"
        with pytest.raises(UnavailableError, match=sentence), redis_errors(str):
            await client.execute_command("EVAL", "return 1", 0)


def test_the_documented_acl_is_the_one_in_use():
    document = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    assert f"user marless on >PASSWORD {RULES[STORE]}" in document


@pytest.mark.parametrize("option", ["colour=red", "max_connections=-1"])
def test_an_option_that_no_connection_takes_is_refused_without_the_password(option):
    with pytest.raises(SpecError, match=r"an option after its \?") as caught:
        settings_of(f"redis://:canary@127.0.0.1:1?{option}", "", insecure=False)
    assert "canary" not in str(caught.value)
