"""The fault proxy does to a connection what it is told, and nothing else."""

import asyncio
import random
import time
from contextlib import asynccontextmanager

import pytest

from tests.faults.proxy import BLACKHOLE, DOWN, HEALTHY, UP, Behaviour, Proxy, disturb

SOON_S = 0.05


@asynccontextmanager
async def echo(address: str):
    """A server that sends back what it gets."""

    async def serve(reader, writer):
        try:
            while piece := await reader.read(1000):
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    if address.startswith("unix:"):
        server = await asyncio.start_unix_server(serve, address.removeprefix("unix:"))
    else:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield address
    server.close()


async def connect(address: str):
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


@pytest.fixture(params=["tcp", "unix"])
async def proxy(request, tmp_path):
    target, listen = "tcp", "127.0.0.1:0"
    if request.param == "unix":
        target, listen = f"unix:{tmp_path}/echo.sock", f"unix:{tmp_path}/proxy.sock"
    async with echo(target) as address, Proxy(address, listen) as proxy:
        yield proxy


@pytest.fixture
async def line(proxy):
    reader, writer = await connect(proxy.address)
    yield reader, writer
    writer.close()


async def said(line, data: bytes) -> bytes:
    reader, writer = line
    writer.write(data)
    return await asyncio.wait_for(reader.readexactly(len(data)), 5)


async def test_a_healthy_one_changes_nothing(proxy, line):
    data = random.Random(0).randbytes(300_000)
    assert await said(line, data) == data
    line[1].write_eof()
    assert await asyncio.wait_for(line[0].read(), 5) == b""
    assert proxy.resets == 0


async def test_a_reset_ends_connections_and_new_ones_work(proxy, line):
    await said(line, b"before")
    proxy.reset()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await said(line, b"after")
    assert await said(await connect(proxy.address), b"again") == b"again"
    assert proxy.resets == 1


@pytest.mark.parametrize("hold", [{UP}, {DOWN}, {UP, DOWN}])
async def test_a_blackhole_holds_everything_until_it_is_lifted(proxy, line, hold):
    await said(line, b"before")
    await proxy.behave(Behaviour(hold=frozenset(hold)))
    line[1].write(b"into the dark")
    answer = asyncio.create_task(line[0].readexactly(13))
    await asyncio.wait([answer], timeout=SOON_S)
    assert not answer.done()
    await proxy.behave(HEALTHY)
    assert await asyncio.wait_for(answer, 5) == b"into the dark"


async def test_a_blackhole_swallows_new_connections_too(proxy):
    await proxy.behave(BLACKHOLE)
    line = await connect(proxy.address)
    answer = asyncio.create_task(said(line, b"hello"))
    await asyncio.wait([answer], timeout=SOON_S)
    assert not answer.done()
    assert proxy.connections == 0
    await proxy.behave(HEALTHY)
    assert await answer == b"hello"


async def test_delay_and_throttle_take_their_time(proxy, line):
    for behaviour, least_s in ((Behaviour(delay_s=0.05), 0.1), (Behaviour(bytes_per_s=10_000), 0.2)):
        await proxy.behave(behaviour)
        start_s = time.monotonic()
        await said(line, bytes(1000))
        assert time.monotonic() - start_s >= least_s


async def test_a_cut_connection_has_carried_exactly_so_many_bytes(proxy):
    await proxy.behave(Behaviour(cut_after_bytes=700))
    reader, writer = await connect(proxy.address)
    writer.write(bytes(500))
    got = b""
    try:
        while piece := await asyncio.wait_for(reader.read(1000), 5):
            got += piece
    except ConnectionError:
        pass
    assert len(got) <= 200  # 500 up and 200 back, of which a reset may lose some
    assert proxy.resets == 1


async def test_nobody_at_the_other_end_is_a_reset():
    async with Proxy("127.0.0.1:1") as proxy:
        reader, _ = await connect(proxy.address)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 5)


async def test_a_schedule_is_a_function_of_its_seed(monkeypatch):
    async def schedule(seed: int) -> list[tuple[str, Behaviour | None]]:
        done: list[tuple[str, Behaviour | None]] = []
        pauses = 0

        class Witness:
            async def behave(self, behaviour):
                done.append(("behave", behaviour))

            def reset(self):
                done.append(("reset", None))

        async def no_sleep(seconds):
            nonlocal pauses
            pauses += 1
            if pauses == 50:
                raise asyncio.CancelledError

        monkeypatch.setattr(asyncio, "sleep", no_sleep)
        with pytest.raises(asyncio.CancelledError):
            await disturb(Witness(), random.Random(seed), every_s=1.0)
        return done

    assert await schedule(1) == await schedule(1) != await schedule(2)
