"""The parameter store is a linearizable register while everything fails, and the check would notice if it were not."""

import asyncio
import random

import pytest

from marless.rpc.server import serving
from marless.services.param_store import store as store_module
from marless.services.param_store.__main__ import build
from tests.faults import linearizability
from tests.faults.proxy import Proxy, disturb, resetting
from tests.faults.recording import Client, Recording, load, read_everything
from tests.faults.register import NotLinearizableError, check

SEED = 0
SOME = "#req_id % 4 == 0 and string.byte(req_id, -1) % 3 == 0"
"""For one request in some: what is always wrong is noticed too easily."""

MUTANTS = {
    "stale read": ("_READ", "version = redis.call('HGET', heads, policy) or '0'", """
        version = redis.call('HGET', heads, policy) or '0'
        if tonumber(version) % 5 == 4 then version = tostring(tonumber(version) - 1) end"""),
    "blind write": ("_PUBLISH", "if head ~= expected then", f"if head ~= expected and not ({SOME}) then"),
    "no fencing": ("_PUBLISH", "if epoch < newest then", "if false then"),
    "spurious refusal": ("_PUBLISH", "if head ~= expected then", f"if head ~= expected or ({SOME}) then"),
    "stale refusal": ("_PUBLISH", "refuse('conflict', head)", "refuse('conflict', math.max(head - 1, 1))"),
    "lost write": ("_PUBLISH", "return refuse('conflict', head)\nend", f"""
        return refuse('conflict', head)
        end
        if {SOME} then return refuse('published', head + 1) end"""),
    "forgotten request": ("_PUBLISH", "if before then", "if false then"),
    "epoch twice": ("_ACQUIRE_EPOCH", "'epoch') or 0) + 1", "'epoch') or 0) + (redis.call('HLEN', fence) + 1) % 2"),
}  # fmt: skip
QUICK = ("stale read",)


async def history(store_config, *, seed: int, operations: int) -> Recording:
    """Recorded through a proxy that resets connections now and then."""
    rng, recording = random.Random(seed), Recording()
    async with (
        serving(store_config.server, lambda address: build(store_config, address)) as address,
        Proxy(address) as proxy,
    ):
        clients = [Client(number, proxy.address, recording, seed, patience_s=20.0) for number in range(8)]
        disturbing = asyncio.create_task(disturb(proxy, rng, every_s=0.03, how=[resetting]))
        await load(clients, operations)
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)
        await read_everything(clients)
        for client in clients:
            await client.close()
    return recording


@pytest.fixture
def config(store_config, job, monkeypatch):
    """A store that keeps everything, and a job of this test's own."""
    monkeypatch.setattr("tests.faults.recording.JOB", job)
    object.__setattr__(store_config, "keep", 10**6)
    return store_config


async def test_the_store_passes(config):
    recording = await history(config, seed=SEED, operations=400)
    check(recording.operations)
    assert len(recording.operations) > 400


@pytest.mark.parametrize(
    "mutant", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MUTANTS]
)
async def test_a_store_that_misbehaves_is_caught(config, monkeypatch, mutant):
    script, sound, unsound = MUTANTS[mutant]
    source = getattr(store_module, script)
    assert source.count(sound) == 1
    monkeypatch.setattr(store_module, script, source.replace(sound, unsound))
    with pytest.raises(NotLinearizableError):
        check((await history(config, seed=SEED, operations=400)).operations)


@pytest.mark.slow  # `make faults` does it at full size
async def test_one_order_explains_what_clients_saw_while_everything_failed(tmp_path):
    figures = await linearizability.run(3, tmp_path, operations=2000, redis_kills=2, store_kills=1)
    assert figures["operations"] >= 2000
