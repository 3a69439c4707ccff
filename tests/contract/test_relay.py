"""Relays: what they pass on in few messages, and what becomes of workers and uploads when one end dies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from marless.core.errors import OverloadedError, StaleError, UnreachableError
from marless.fleet.dispatch import Dispatcher
from marless.fleet.handover import Tickets
from marless.rpc import concurrency
from marless.rpc.client import Peer
from marless.rpc.concurrency import Batcher
from marless.rpc.errors import from_rpc
from marless.rpc.nearby import SMALL_BYTES, Relay
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.rpc.v1 import common_pb2, learner_pool_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.services.learner_pool.servicer import LearnerPoolServicer
from marless.services.relay import servicer
from marless.services.relay.__main__ import build, parse
from marless.services.relay.servicer import RelayedUploads, Workers
from tests.contract.test_trajectory_buffer import TINY, blank, header_of, load, opened
from tests.contract.test_workers import PATIENCE_S, Pool, pool_at, relayed

ACTORS = 40


class Learners:
    """A learner pool's buffer behind a server, and the calls that it got."""

    def __init__(self, buffer) -> None:
        self.buffer = buffer
        self.sizes: list[int] = []

    def receive_many(self, request):
        self.sizes.append(len(request.uploads))
        return self.buffer.receive_many(request)


@pytest.fixture
async def learners(tmp_path) -> AsyncIterator[Learners]:
    buffer = opened(tmp_path, TINY)
    await buffer.reservations.reserve("job", 0, ACTORS, 60.0)
    yield Learners(buffer)
    buffer.shutdown()


@asynccontextmanager
async def served(learners: Learners, address: str) -> AsyncIterator[None]:
    @asynccontextmanager
    async def pool(_address: str) -> AsyncIterator[ServedService]:
        yield ServedService(LearnerPoolServicer(learners, None, None, SimpleNamespace(), None, None, "").register)

    async with serving(ServerOptions(address, Security()), pool):
        yield


@asynccontextmanager
async def relay_to(address: str, tmp_path) -> AsyncIterator[Relay]:
    options = parse(["--listen", f"unix:{tmp_path}/relay.sock", "--actor-pool", address, "--learner-pool", address])
    async with serving(options.server, partial(build, options)) as bound:
        relay = Relay(bound, Security())
        yield relay
        await relay.close()


def reward(index: int) -> dict[str, np.ndarray]:
    return blank(TINY, **{"reward/0": np.full((2, 1, 1), index, np.float32)})


async def send(relay: Relay, index: int, round_: int = 0) -> bool:
    arrays = reward(index)
    return await relay.upload(
        header_of(arrays, round_=round_, index=index), [each.tobytes() for each in arrays.values()]
    )


async def test_uploads_of_many_workers_arrive_in_few_calls_each_with_its_own_answer(learners, tmp_path):
    address = f"unix:{tmp_path}/pool.sock"
    async with served(learners, address), relay_to(address, tmp_path) as relay:
        others = [send(relay, 3), send(relay, 4, round_=1)]  # the second of one place; of a round that is not the next
        answers = await asyncio.gather(*(send(relay, index) for index in range(ACTORS)), *others)
        assert answers == [True] * (ACTORS + 1) + [False], "that of the wrong round is sent again, to the pool itself"
        learners.buffer.advance("job", 1)
        with pytest.raises(StaleError, match="round 1 has passed"):
            await send(relay, 0)
    assert sum(learners.sizes) == ACTORS + 3
    assert len(learners.sizes) <= ACTORS // 4
    counts = learners.buffer.counts
    assert (counts.applied, counts.duplicate, counts.refused, counts.stale) == (ACTORS, 1, 1, 1)


async def test_what_a_relay_has_acknowledged_is_what_the_learner_pool_has(learners, tmp_path):
    address = f"unix:{tmp_path}/pool.sock"
    async with served(learners, address), relay_to(address, tmp_path) as relay:
        await asyncio.gather(*(send(relay, index) for index in reversed(range(ACTORS))))
        taken = [load(each)["reward/0"][0, 0, 0] for each in learners.buffer.trajectories("job", 0, ACTORS)]
    assert taken == list(range(ACTORS))


async def test_without_its_learner_pool_a_relay_acknowledges_nothing_and_rests(tmp_path):
    async with relay_to(f"unix:{tmp_path}/nobody.sock", tmp_path) as relay:
        assert await asyncio.gather(*(send(relay, index) for index in range(3))) == [False] * 3
        assert not await asyncio.wait_for(send(relay, 0), 0.1), "it is not even asked"


async def test_what_is_not_small_is_refused_by_the_relay(learners, tmp_path):
    uploads = RelayedUploads(Peer(f"unix:{tmp_path}/pool.sock", Security()))
    with pytest.raises(Exception, match="a relay takes trajectories of 65,536 bytes"):
        await uploads.deliver([learner_pool_pb2.SmallUpload(data=bytes(SMALL_BYTES + 1))])
    with pytest.raises(OverloadedError, match="no room in the relay"):
        await uploads.deliver([learner_pool_pb2.SmallUpload()] * 5000)


@pytest.fixture
async def pool(tmp_path) -> AsyncIterator[Pool]:
    async with pool_at(f"unix:{tmp_path}/pool.sock", Dispatcher(queue_limit=99, tickets=Tickets(others=True))) as pool:
        yield pool


async def test_a_worker_whose_first_message_waits_for_room_is_told_that_the_pool_has_gone(tmp_path, monkeypatch):
    """The pool reads nothing, so that what another worker says is not sent; then the pool ends."""

    full = asyncio.Event()

    async def is_not_sent(_trunk: object, _some: object) -> None:
        full.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(servicer, "MOST_MESSAGES_WAITING", 1)
    monkeypatch.setattr(servicer._Trunk, "_send", is_not_sent)
    server, address = grpc.aio.server(), f"unix:{tmp_path}/pool.sock"

    async def reads_nothing(_messages: object, _context: object) -> None:
        await asyncio.Event().wait()

    deaf = {"Relay": grpc.stream_stream_rpc_method_handler(reads_nothing)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("marless.rpc.v1.ActorPoolService", deaf)])
    server.add_insecure_port(address)
    await server.start()
    workers, said = Workers(Peer(address, Security())), asyncio.Event()

    async def says(count: int) -> AsyncIterator[common_pb2.WorkerMessage]:
        for _ in range(count):
            said.set()
            yield common_pb2.WorkerMessage(hello=common_pb2.WorkerHello(worker="w"))
        await asyncio.Event().wait()

    async def hears(_message: common_pb2.PoolMessage) -> None:
        raise AssertionError("the pool says nothing")

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        talks = group.create_task(_reason(workers.attach(says(9), hears)))
        await full.wait()
        said.clear()
        waits = group.create_task(_reason(workers.attach(says(1), hears)))
        await said.wait()
        assert workers.connected == 1
        await server.stop(0)
    assert "actor_pool" in talks.result()
    assert "the relay's stream to the actor_pool has ended" in waits.result()
    await workers.stop()


async def _reason(serving: Awaitable[None]) -> str:
    with pytest.raises(UnreachableError) as caught:
        await serving
    return str(caught.value)


async def test_when_a_relay_ends_its_workers_tasks_run_on_others(pool, tmp_path):
    async with relayed(pool, f"unix:{tmp_path}/relay.sock"):
        await pool.connect(*"abc")
        tasks = [pool.submit(f"slow-{number}") for number in range(3)]
        await pool.bench.until_started(3)
    for name in "abc":
        await pool.gone(name)
    await pool.connect("d")
    pool.bench.go.set()
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(*tasks)
    assert {result.invocation.worker for result in results} == {"d"}
    assert [len(result.lost) for result in results] == [1, 1, 1]


async def test_a_worker_whose_hello_comes_after_that_of_a_later_one_is_connected_too(pool, tmp_path):
    async with relayed(pool, f"unix:{tmp_path}/relay.sock"):
        peer = Peer(pool.address, Security())
        first, second = (ActorPoolServiceStub(peer.channel).Work() for _ in range(2))
        await first.wait_for_connection()
        for stream, name in ((second, "second"), (first, "first")):
            await stream.write(common_pb2.WorkerMessage(hello=common_pb2.WorkerHello(worker=name, ticket="t")))
            async with asyncio.timeout(PATIENCE_S):
                await pool.dispatcher.connected.present([name])
        assert set(pool.dispatcher.connected) == {"first", "second"}, "neither took the other's place"
        await peer.close()


async def test_a_relay_serves_again_with_the_pool_that_has_come_back(tmp_path):
    address, make = f"unix:{tmp_path}/pool.sock", partial(Dispatcher, tickets=Tickets(others=True))
    async with relay_to(address, tmp_path) as relay:
        for _ in range(2):
            async with pool_at(address, make()) as pool:
                pool.address = relay.peer.address
                await pool.connect("w", "v")
                assert (await pool.run("fast")).payload.startswith(b"fast by")


async def test_a_relay_that_does_not_reach_its_pool_says_so_and_is_used_again_later(tmp_path, monkeypatch):
    monkeypatch.setattr("marless.services.relay.servicer.REST_S", 0.3)
    nobody = f"unix:{tmp_path}/nobody.sock"
    async with relay_to(nobody, tmp_path) as relay:
        assert await relay.serves()
        pool = Pool(relay.peer.address, Dispatcher())
        await asyncio.wait_for(pool.start("w"), PATIENCE_S)  # a worker ends when its pool is not there
        for expected in (False, True):
            await _until_it_serves(relay, expected)
        await pool.close()


async def _until_it_serves(relay: Relay, expected: bool) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await relay.serves() != expected:  # noqa: ASYNC110  # only asking tells
            await asyncio.sleep(0.02)


async def test_the_pool_bounds_the_workers_of_relays_too(tmp_path):
    async with (
        pool_at(f"unix:{tmp_path}/pool.sock", Dispatcher(tickets=Tickets(others=True)), most=2) as pool,
        relayed(pool, f"unix:{tmp_path}/relay.sock"),
    ):
        await pool.connect("a", "b")
        with pytest.raises(OverloadedError, match="no room for more workers: 2 are connected"):
            await _refusal(pool)


async def _refusal(pool: Pool) -> None:
    """What a third worker's stream ends with; a worker itself waits and tries again."""
    peer = Peer(pool.address, Security())
    stream = ActorPoolServiceStub(peer.channel).Work()
    await stream.write(common_pb2.WorkerMessage(hello=common_pb2.WorkerHello(worker="c", ticket="t")))
    try:
        await stream.read()
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error, "pool") from None
    finally:
        await peer.close()


async def test_things_go_out_in_order_the_first_at_once_and_the_others_together(monkeypatch):
    monkeypatch.setattr(concurrency, "MOST_BATCHED_BYTES", 10)
    sent: list[list[int]] = []

    async def send(some) -> None:
        sent.append(list(some))

    waiting = Batcher[int](send, size=lambda each: each, pause_s=0.05)
    running = asyncio.create_task(waiting.run())
    waiting.add(1)
    await asyncio.sleep(0.01)
    assert sent == [[1]]
    for each in (2, 3, 4, 5, 50, 6):
        waiting.add(each)
    assert sent == [[1]]
    await asyncio.sleep(0.5)
    assert sent == [[1], [2, 3, 4], [5], [50], [6]], "no message has more than ten, unless of one thing"
    running.cancel()


async def test_a_full_message_does_not_wait(monkeypatch):
    monkeypatch.setattr(concurrency, "MOST_BATCHED", 4)
    sent: list[int] = []

    async def send(some) -> None:
        sent.append(len(some))

    waiting = Batcher[int](send, size=lambda _: 1, pause_s=3600.0)
    running = asyncio.create_task(waiting.run())
    waiting.add(0)
    await asyncio.sleep(0.01)
    for each in range(9):
        waiting.add(each)
    await asyncio.sleep(0.05)
    assert sent == [1, 4, 4]
    running.cancel()


def test_its_options_name_the_pools_that_it_dials(capsys):
    with pytest.raises(SystemExit):
        parse(["--actor-pool", "10.0.0.1:7000"])
    assert "--learner-pool" in capsys.readouterr().err
