"""The parameter function against real gRPC and real Redis: what it computes, what it removes, and when it is killed."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from marless.core import failpoint
from marless.core.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    SpecError,
    TooLargeError,
    UnavailableError,
)
from marless.core.state import NetStep, PolicyState, ReturnScale
from marless.learning.aggregation import gradient_file
from marless.learning.aggregation.applying import Matrices, applied
from marless.learning.nets import serial
from marless.rpc import gradients
from marless.rpc.client import Peer
from marless.rpc.param_store import LATEST, Aggregation, AggregationReply, ParamStore, PolicyWrite, WeightedGradient
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.services.param_store import aggregation
from marless.services.param_store.__main__ import build
from marless.services.param_store.aggregation import Aggregator
from marless.services.param_store.blobs import BlobPart, BlobUploads
from marless.services.param_store.store import VersionStore
from marless.services.param_store.versions import Write
from tests import tokens
from tests.faults import failpoints

STEP = NetStep(lr=0.1, eps=1e-30, max_grad_norm=1e9)
STEPS = {"policy": STEP}
BOTH = {**STEPS, "critic": replace(STEP, returns=ReturnScale(decay=0.5, popart=True))}
Arrays = Mapping[str, np.ndarray]


def net(prefix: str, *weights: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A net of one output with these weights, the last of them the bias, and an optimizer that has made no step."""
    flat_D = np.array(weights, np.float32)
    zeros_D = np.zeros_like(flat_D)
    arrays = {f"{prefix}.0.weight": flat_D[None, :-1], f"{prefix}.0.bias": flat_D[-1:]}
    return arrays, {f"{prefix}.first": zeros_D, f"{prefix}.second": zeros_D, f"{prefix}.count": np.array(0)}


def policy(*weights: float) -> PolicyState:
    return PolicyState(*net("policy", *weights), {"kind": "test"})


def policy_and_critic(*weights: float) -> PolicyState:
    acting, learning = net("policy", *weights)
    critic, optimizer = net("critic", *weights)
    return PolicyState(acting, {**learning, **critic, **optimizer, "critic.moments": np.zeros((1, 3))}, {})


def of_policy(*numbers: float) -> dict[str, np.ndarray]:
    return {"policy": np.array(numbers, np.float32)}


def flat(state: PolicyState) -> list[float]:
    return [float(x) for x in Matrices.of("policy", state.acting).flat(state.acting)]


def write(name: str, state: PolicyState) -> PolicyWrite:
    return PolicyWrite(name, 0, f"init/{name}", dict(zip(("acting", "learning"), serial.encode(state), strict=True)))


async def begin(store: ParamStore, job: str, **states: PolicyState) -> None:
    await store.publish(job, 1, 0, [write(name, state) for name, state in states.items()])


async def leave(
    store: ParamStore, job: str, learner: int, of: Mapping[str, Arrays], weight: float = 1.0, *, scope: int = 0
) -> WeightedGradient:
    """Publish a gradient as a learner does."""
    name = gradients.name_of(learner, scope)
    listed = (await store.list(job)).policies.get(name)
    expected = listed.head.version if listed else 0
    blobs = {"gradient": gradient_file.encode(of), "outcome": b"{}"}
    versions = await store.publish(job, 1, learner, [PolicyWrite(name, expected, f"{name}/{expected}", blobs)])
    return WeightedGradient(versions, weight)


async def aggregate(  # what most tests give, in one line
    store: ParamStore,
    job: str,
    epoch: int,
    round_: int,
    heads: Mapping[str, int],
    sent: Sequence[WeightedGradient],
    steps: Mapping[str, NetStep],
    **given: Any,
) -> AggregationReply:
    return await store.aggregate(
        Aggregation(job=job, epoch=epoch, round=round_, heads=heads, gradients=sent, steps=steps, **given)
    )


async def state_of(store: ParamStore, job: str, name: str = "a", version: int = LATEST) -> PolicyState:
    blobs = (await store.get(job, {name: version}, ("acting", "learning")))[name].blobs
    return serial.decode(bytes(blobs["acting"]), bytes(blobs["learning"]))


def same(one: PolicyState, other: PolicyState) -> bool:
    return serial.encode(one) == serial.encode(other)


@pytest.fixture
async def redis(redis_url):
    client = Redis.from_url(redis_url)
    yield client
    await client.aclose()


async def keys_of_gradients(redis: Redis, job: str) -> list[bytes]:
    heads = [name for name in await redis.hkeys(f"marless:{{{job}}}:heads") if name.startswith(b"gradient/")]
    return [key async for key in redis.scan_iter(f"*{job}*gradient/*")] + heads


async def test_one_gradient_by_hand(store, job):
    await begin(store, job, a=policy(1.0, 1.0))
    gradient = await leave(store, job, 7, {"a": of_policy(4.0, -2.0)})
    made = await aggregate(store, job, 1, 5, {"a": 1}, [gradient], STEPS)
    assert made.versions == {"a": 2}
    assert 0 < made.start_s <= made.end_s
    assert made.vcpu_s > 0
    state = await state_of(store, job)
    assert flat(state) == pytest.approx([0.9, 1.1])  # the first step of Adam is −lr · g/|g|
    assert state.metadata == {"kind": "test"}
    head = (await store.list(job)).policies["a"]
    assert (head.head.round, head.req_id, head.versions) == (5, f"{job}/5/a", (1, 2))


@pytest.mark.parametrize("separate", [False, True])
async def test_it_computes_what_the_library_computes(store, job, separate):
    states = {"a": policy_and_critic(1.0, 2.0, 3.0), "b/x": policy_and_critic(0.0, 0.5)}
    await begin(store, job, **states)
    rng, weights, left, sent = np.random.default_rng(0), [1.0, 0.5, 0.25], [], []
    for number, weight in enumerate(weights):
        each = {
            name: {prefix: rng.normal(size=size).astype(np.float32) for prefix in BOTH}
            | {"critic.returns": np.array([[1.0, 0.5, 1.5]])}
            for name, size in (("a", 3), ("b/x", 2))
        }
        left.append(each)
        sent.append(await leave(store, job, number, each, weight))
    made = await aggregate(store, job, 1, 0, {"a": 1, "b/x": 1}, sent, BOTH, separate=separate)
    assert made.versions == {"a": 2, "b/x": 2}
    for name, before in states.items():
        expected = applied(before, [each[name] for each in left], weights, BOTH, separate=separate)
        assert same(await state_of(store, job, name), expected)
        assert expected.learning["policy.count"] == (3 if separate else 1)


async def test_target_nets_follow(store, job):
    state = policy(1.0, 1.0)
    before = replace(state, learning={**state.learning, "policy.target": np.zeros(2, np.float32)})
    await begin(store, job, a=before)
    gradient = await leave(store, job, 0, {"a": of_policy(4.0, -2.0)})
    steps = {"policy": replace(STEP, target_steps=1)}
    await aggregate(store, job, 1, 0, {"a": 1}, [gradient], steps)
    found = await state_of(store, job)
    assert found.learning["policy.target"].tolist() == flat(found)


async def test_a_gradient_may_have_a_part_of_each_scope(store, job):
    await begin(store, job, a=policy(1.0, 1.0), b=policy(2.0))
    one = await leave(store, job, 0, {"a": of_policy(1.0, 1.0)}, scope=0)
    other = await leave(store, job, 0, {"b": of_policy(-1.0)}, scope=1)
    whole = WeightedGradient({**one.parts, **other.parts}, 1.0)
    assert (await aggregate(store, job, 1, 0, {"a": 1, "b": 1}, [whole], STEPS)).versions == {"a": 2, "b": 2}
    assert flat(await state_of(store, job, "b")) == pytest.approx([2.1])
    twice = [
        await leave(store, job, 1, {"a": of_policy(1.0, 1.0), "b": of_policy(1.0)}, scope=scope) for scope in (0, 1)
    ]
    with pytest.raises(SpecError, match="both have a gradient of 'a'"):
        whole = WeightedGradient({name: version for each in twice for name, version in each.parts.items()}, 1.0)
        await aggregate(store, job, 1, 1, {"a": 2, "b": 2}, [whole], STEPS)


async def test_a_policy_may_start_from_another_one(store, job):
    states = {"a": policy(1.0, 1.0), "b": policy(5.0, 5.0)}
    await begin(store, job, **states)
    gradient = await leave(store, job, 0, {name: of_policy(1.0, -1.0) for name in ("a", "b", "new")})
    heads, sources = {"a": 1, "b": 1, "new": 0}, {"a": ("b", 1), "new": ("a", 1)}
    made = await aggregate(store, job, 1, 0, heads, [gradient], STEPS, sources=sources)
    assert made.versions == {"a": 2, "b": 2, "new": 1}
    for name, source in (("a", "b"), ("b", "b"), ("new", "a")):
        expected = applied(states[source], [of_policy(1.0, -1.0)], [1.0], STEPS)
        assert same(await state_of(store, job, name), expected)
    again = await aggregate(store, job, 1, 0, heads, [gradient], STEPS, sources=sources)
    assert again.versions == made.versions


async def test_what_a_policy_starts_from_must_be_there(store, job):
    await begin(store, job, a=policy(1.0, 1.0))
    gradient = await leave(store, job, 0, {"a": of_policy(1.0, 1.0)})
    with pytest.raises(NotFoundError, match="b"):
        await aggregate(store, job, 1, 0, {"a": 1}, [gradient], STEPS, sources={"a": ("b", 1)})
    with pytest.raises(NotFoundError, match="no version any more"):
        await aggregate(store, job, 1, 0, {"b": 1}, [gradient], STEPS, sources={"b": ("a", 1)})
    with pytest.raises(ConflictError, match="is at version 1; this aggregation expects 0"):
        await aggregate(store, job, 1, 0, {"a": 0}, [gradient], STEPS, sources={"a": ("a", 1)})
    assert (await store.list(job)).policies["a"].versions == (1,)


async def test_gradients_are_gone_afterwards(store, job, redis):
    await begin(store, job, a=policy(1.0, 1.0))
    used = [await leave(store, job, number, {"a": of_policy(1.0, 1.0)}) for number in range(2)]
    again = await leave(store, job, 1, {"a": of_policy(1.0, 1.0)})
    assert again.parts == {"gradient/1/0": 2}
    unused = await leave(store, job, 2, {"a": of_policy(9.0, 9.0)})
    kept = await leave(store, job, 3, {"a": of_policy(1.0, 1.0)})
    discarded = {**unused.parts, "gradient/99/0": 4}
    await aggregate(store, job, 1, 0, {"a": 1}, [used[0], again], STEPS, discarded=discarded)
    names = {key.decode().partition("}:")[2] for key in await keys_of_gradients(redis, job) if b":" in key}
    assert names == {"kept:gradient/3/0", "requests:gradient/3/0", "v:1:gradient/3/0"}
    await aggregate(store, job, 1, 1, {"a": 2}, [kept], STEPS)
    assert await keys_of_gradients(redis, job) == []
    await store.delete_job(job)
    assert [key async for key in redis.scan_iter(f"*{job}*")] == [f"marless:{{{job}}}:fence".encode()]


async def test_a_repeated_round_answers_as_the_first_time(store, job):
    await begin(store, job, a=policy(1.0, 1.0))
    gradient = await leave(store, job, 0, {"a": of_policy(4.0, -2.0)})
    await aggregate(store, job, 1, 3, {"a": 1}, [gradient], STEPS)
    again = await aggregate(store, job, 1, 3, {"a": 1}, [gradient], STEPS)
    assert again == AggregationReply({"a": 2}, 0.0, 0.0, 0.0)
    following = await leave(store, job, 1, {"a": of_policy(4.0, -2.0)})
    await aggregate(store, job, 1, 4, {"a": 2}, [following], STEPS)
    late = await aggregate(store, job, 1, 3, {"a": 1}, [gradient], STEPS)  # though the head is another one
    assert late.versions == {"a": 2}
    assert (await store.list(job)).policies["a"].versions == (1, 2, 3)


async def test_one_of_two_at_once_finds_what_the_other_has_made(store, job):
    await begin(store, job, a=policy(1.0, 1.0))
    gradient = await leave(store, job, 0, {"a": of_policy(4.0, -2.0)})
    calls = [aggregate(store, job, 1, 0, {"a": 1}, [gradient], STEPS) for _ in range(8)]
    made = await asyncio.gather(*calls)
    assert [each.versions for each in made] == [{"a": 2}] * 8
    assert sorted(each.start_s > 0 for each in made) == [False] * 7 + [True]
    assert flat(await state_of(store, job)) == pytest.approx([0.9, 1.1])
    more = [await leave(store, job, number, {"a": of_policy(4.0, -2.0)}) for number in (1, 2)]
    calls = [aggregate(store, job, 1, 1 + k, {"a": 2}, [each], STEPS) for k, each in enumerate(more)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert sorted(type(each) for each in found if isinstance(each, Exception)) == [ConflictError]


async def test_two_stores_with_one_redis_apply_no_gradient_twice(store, job, redis_url, tmp_path, store_config):
    """They have no lock in common: the transaction decides."""
    await begin(store, job, a=policy(1.0, 1.0), b=policy(1.0, 1.0))
    gradient = await leave(store, job, 0, {"a": of_policy(1.0, 1.0)})
    server = ServerOptions(f"unix:{tmp_path}/other.sock", Security())
    other = replace(store_config, server=server)
    async with serving(server, lambda address: build(other, address)) as address:
        peer = Peer(address, Security())
        calls = [aggregate(each, job, 1, 0, {"a": 1}, [gradient], STEPS) for each in (store, ParamStore(peer)) * 4]
        found = await asyncio.gather(*calls)
        await peer.close()
    assert [each.versions for each in found] == [{"a": 2}] * 8
    assert flat(await state_of(store, job)) == pytest.approx([0.9, 0.9])


async def advance(redis: Redis, job: str, used: Mapping[str, int], **heads: int) -> dict[str, int]:
    """The transaction alone, of round 0, as one of another store that has read heads and gradients before."""
    part = BlobPart("acting", 0, b"")
    writes = [Write(name, head, f"{job}/0/{name}", (part,), (memoryview(b""),)) for name, head in heads.items()]
    return await VersionStore(redis, str, keep=3).advance(job, 1, 0, writes, applied=used, discarded=())


async def test_all_is_published_or_nothing(store, job, redis):
    await begin(store, job, a=policy(1.0, 1.0), b=policy(1.0, 1.0))
    used = (await leave(store, job, 0, {"a": of_policy(1.0, 1.0)})).parts
    with pytest.raises(NotFoundError, match="gradient 'gradient/1/0', version 3, of job"):
        await advance(redis, job, {**used, "gradient/1/0": 3}, a=1, b=1)
    with pytest.raises(ConflictError, match=r"'b' .* at version 1; this write expects 2"):
        await advance(redis, job, used, a=1, b=2)
    with pytest.raises(NotFoundError, match=r"'c' .* has no version any more; this write expects 1"):
        await advance(redis, job, used, a=1, c=1)
    listed = (await store.list(job)).policies
    assert {name: each.versions for name, each in listed.items()} == {"a": (1,), "b": (1,), "gradient/0/0": (1,)}
    assert await advance(redis, job, used, a=1) == {"a": 2}
    with pytest.raises(ConflictError, match=r"'a' .* has version 2 of this round already"):
        await advance(redis, job, {}, a=2, b=1)
    assert await advance(redis, job, used, a=1) == {"a": 2}
    assert [key async for key in redis.scan_iter(f"*{job}*attempt*")] == []
    assert {name: each.versions for name, each in (await store.list(job)).policies.items()} == {"a": (1, 2), "b": (1,)}


async def test_what_is_not_there_is_named(store, job):
    await begin(store, job, a=policy(1.0, 1.0))
    there = await leave(store, job, 0, {"a": of_policy(1.0, 1.0)})
    for parts in ({"gradient/1/0": 1}, {"gradient/0/0": 2}):
        [(name, version)] = parts.items()
        with pytest.raises(NotFoundError, match=f"gradient '{name}', version {version}, of job '{job}' is not in"):
            await aggregate(store, job, 1, 0, {"a": 1}, [there, WeightedGradient(parts, 1.0)][-1:], STEPS)
    with pytest.raises(ConflictError, match=r"'a' .* is at version 1; this aggregation expects 4"):
        await aggregate(store, job, 1, 0, {"a": 4}, [there], STEPS)
    with pytest.raises(NotFoundError, match=r"policy 'b' .* has no version any more"):
        await aggregate(store, job, 1, 0, {"a": 1, "b": 1}, [there], STEPS)
    assert (await store.list(job)).policies.keys() == {"a", "gradient/0/0"}


@pytest.mark.parametrize(
    ("of", "why"),
    [
        ({"a": of_policy(1.0)}, "gradient/0/0 does not fit policy 'a': .*its policy needs"),
        ({"a": {"critic": np.zeros(2, np.float32)}}, "gradient/0/0 does not fit policy 'a'"),
        ({"a": of_policy(math.nan, 1.0)}, "gradient/0/0 does not fit policy 'a': .* NaN or infinite"),
        ({"b": of_policy(1.0, 1.0)}, "gradient/0/0 is of b, and is to be applied to a"),
        ({"a": of_policy(1.0, 1.0), "b": of_policy(1.0)}, "gradient/0/0 is of a, b, and is to be applied to a"),
    ],
)
async def test_a_gradient_that_does_not_fit_changes_nothing(store, job, of, why):
    await begin(store, job, a=policy(1.0, 1.0))
    odd, good = await leave(store, job, 0, of), await leave(store, job, 1, {"a": of_policy(1.0, 1.0)})
    with pytest.raises(SpecError, match=why):
        await aggregate(store, job, 1, 0, {"a": 1}, [good, odd], STEPS)
    assert (await store.list(job)).policies.keys() == {"a", "gradient/0/0", "gradient/1/0"}
    await aggregate(store, job, 1, 0, {"a": 1}, [good], STEPS, discarded=odd.parts)
    assert (await store.list(job)).policies.keys() == {"a"}


async def test_a_result_that_is_not_finite_is_not_published(store, job):
    await begin(store, job, a=policy(1.0, 1.0))
    gradient = await leave(store, job, 0, {"a": of_policy(1.0, 1.0)})
    with pytest.raises(SpecError, match=r"the update of 'a' made NaN or infinite values .* lower algorithm.lr"):
        await aggregate(store, job, 1, 0, {"a": 1}, [gradient], {"policy": replace(STEP, lr=1e300)})
    assert (await store.list(job)).policies["a"].versions == (1,)


async def test_steps_must_be_those_of_the_policies(store, job):
    await begin(store, job, a=policy(1.0, 1.0))
    gradient = await leave(store, job, 0, {"a": of_policy(1.0, 1.0)})
    with pytest.raises(SpecError, match="no optimizer of any"):
        await aggregate(store, job, 1, 0, {"a": 1}, [gradient], {"critic": STEP})
    with pytest.raises(SpecError, match="no moments of returns"):
        steps = {"policy": replace(STEP, returns=ReturnScale(decay=0.5, popart=False))}
        await aggregate(store, job, 1, 0, {"a": 1}, [gradient], steps)


ONE = WeightedGradient({"gradient/0/0": 1}, 1.0)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"heads": {}}, "the number of policies is 0"),
        ({"heads": {"a": 0}}, "the version of a is 0"),
        ({"heads": {"gradient/1/0": 1}}, "'gradient/1/0' is a gradient, and gets no next version"),
        ({"heads": {"two words": 1}}, "policy name 'two words'"),
        ({"sources": {"b": ("a", 1)}}, "a source of 'b', which is not among the policies that get a next version"),
        ({"sources": {"a": ("b", 0)}}, "the version of b is 0"),
        ({"sources": {"a": ("two words", 1)}}, "policy name 'two words'"),
        ({"sources": {"a": ("gradient/1/0", 1)}}, "'gradient/1/0' is a gradient, and no policy starts from it"),
        ({"gradients": []}, "the number of gradients is 0"),
        ({"gradients": [WeightedGradient({}, 1.0)]}, "the number of parts of gradients is 0"),
        ({"gradients": [ONE, WeightedGradient({}, 1.0)]}, "the number of parts of gradient 1 is 0"),
        (
            {"gradients": [WeightedGradient({"a": 1}, 1.0)]},
            "'a' is no gradient; only gradients are applied and removed",
        ),
        ({"gradients": [ONE, ONE]}, "gradients: one of them is given twice"),
        ({"discarded": {"gradient/0/0": 1}}, "gradients: one of them is given twice"),
        ({"discarded": {"lane/0": 1}}, "'lane/0' is no gradient"),
        *(
            ({"gradients": [replace(ONE, weight=weight)]}, "the weight of gradient 0 is")
            for weight in (0.0, -1.0, 1.5, math.nan)
        ),
        ({"steps": {}}, "steps of no net"),
        ({"steps": {"policy": STEP, "mixer": STEP}}, "steps of 'mixer', 'policy'; give one for policy, for critic"),
        ({"steps": {"policy": replace(STEP, lr=math.inf)}}, "'policy': lr is inf"),
        ({"steps": {"policy": replace(STEP, eps=math.nan)}}, "'policy': eps is nan"),
        ({"steps": {"policy": replace(STEP, max_grad_norm=-1.0)}}, "'policy': max_grad_norm is -1"),
        ({"steps": {"policy": replace(STEP, target_steps=-1)}}, "target_steps is -1"),
        ({"steps": {"policy": replace(STEP, returns=ReturnScale(decay=2.0, popart=False))}}, "returns.decay is 2"),
        ({"keep": 4097}, "the number of versions to keep is 4,097"),
        ({"epoch": -1}, "epoch is -1"),
        ({"round": -1}, "round is -1"),
        ({"job": "a{b}"}, "job name"),
    ],
)
async def test_what_cannot_be_an_aggregation_is_refused(store, job, given, why):
    wanted = {"job": job, "epoch": 1, "round": 0, "heads": {"a": 1}, "gradients": [ONE], "steps": STEPS}
    with pytest.raises(SpecError, match=why):
        await store.aggregate(Aggregation(**{**wanted, **given}))


async def test_an_older_epoch_is_refused(store, job):
    await begin(store, job, a=policy(1.0, 1.0))
    gradient = await leave(store, job, 0, {"a": of_policy(1.0, 1.0)})
    epoch = await store.acquire_epoch(job, "a new coordinator")
    with pytest.raises(FencedError, match=f"epoch 1 .* epoch {epoch} has begun"):
        await aggregate(store, job, 1, 0, {"a": 1}, [gradient], STEPS)
    assert (await aggregate(store, job, epoch, 0, {"a": 1}, [gradient], STEPS)).versions == {"a": 2}


@pytest.mark.parametrize("role", [Role.ACTOR, Role.LEARNER, Role.CLIENT, Role.OPERATOR])
async def test_only_services_aggregate(store_config, job, tmp_path, role):
    tokens.made(tmp_path / "tokens")
    secured = Security.of_process(Role.SERVICE, str(tmp_path / "tokens"), tls_cert="", tls_key="", tls_ca="")
    config = replace(store_config, server=ServerOptions(f"unix:{tmp_path}/secured.sock", secured))
    async with serving(config.server, lambda address: build(config, address)) as address:
        peer = Peer(address, tokens.client(role))
        with pytest.raises(PermissionDeniedError, match=f"a token of role {role} may not call .*Aggregate"):
            await aggregate(ParamStore(peer), job, 1, 0, {"a": 1}, [ONE], STEPS)
        await peer.close()


@pytest.mark.parametrize(("keep", "left"), [(0, (3, 4, 5)), (2, (3, 4, 5)), (4, (2, 3, 4, 5))])
async def test_more_versions_are_kept_if_asked(store, job, keep, left):
    await begin(store, job, a=policy(1.0, 1.0))
    for number in range(4):
        gradient = await leave(store, job, number, {"a": of_policy(1.0, 1.0)})
        await aggregate(store, job, 1, number, {"a": number + 1}, [gradient], STEPS, keep=keep)
    assert (await store.list(job)).policies["a"].versions == left


async def test_watchers_see_versions_and_no_gradients(store, job, redis):
    """A gradient is no event, so that those that are gone do not wake watchers for nothing."""
    await begin(store, job, a=policy(1.0, 1.0))
    gradient = await leave(store, job, 0, {"a": of_policy(1.0, 1.0)})
    waiting = await leave(store, job, 1, {"a": of_policy(1.0, 1.0)})
    changes = store.watch(job)
    seen = [(await anext(changes)).head]
    await aggregate(store, job, 1, 0, {"a": 1}, [gradient], STEPS)
    seen.append((await anext(changes)).head)
    await changes.aclose()
    assert [(head.policy, head.version) for head in seen] == [("a", 1), ("a", 2)]
    assert await redis.xlen(f"marless:{{{job}}}:events") == 2
    assert (await store.list(job)).policies.keys() == {"a", *waiting.parts}  # a coordinator that recovers finds it


async def test_bytes_that_changed_in_redis_are_not_applied(store, job, redis):
    await begin(store, job, a=policy(1.0, 1.0))
    gradient = await leave(store, job, 0, {"a": of_policy(1.0, 1.0)})
    key = f"marless:{{{job}}}:v:1:gradient/0/0"
    data = bytearray(await redis.hget(key, "gradient:0"))
    data[-1] ^= 1
    await redis.hset(key, "gradient:0", bytes(data))
    restarted = Aggregator(VersionStore(redis, str, keep=3), BlobUploads(10_000))  # it has to read the gradient
    with pytest.raises(CorruptError, match="not what was published"):
        await restarted.run(asked(job, gradient.parts))


# Room, and turns of jobs


async def test_an_aggregation_takes_room_as_a_publish_does(store, job, redis):
    await begin(store, job, a=policy(1.0, 1.0))
    [name] = (await leave(store, job, 0, {"a": of_policy(1.0, 1.0)})).parts
    wanted = asked(job, {name: 1})
    versions = VersionStore(redis, str, keep=3)
    with pytest.raises(TooLargeError, match=r"an aggregation of [\d,]+ bytes; this store has room for 100 "):
        await Aggregator(versions, BlobUploads(100)).run(wanted)
    uploads = BlobUploads(10_000, wait_s=0.01)
    async with uploads.room("another", 9_900):
        with pytest.raises(OverloadedError, match="no room in the parameter store"):
            await Aggregator(versions, uploads).run(wanted)
    assert (await Aggregator(versions, uploads).run(wanted)).versions == {"a": 2}
    assert uploads.budget.held_bytes == 0


def asked(job: str, parts: Mapping[str, int]) -> Aggregation:
    return Aggregation(
        job=job,
        epoch=1,
        round=0,
        heads={"a": 1},
        gradients=[WeightedGradient(parts, 1.0)],
        steps=STEPS,
    )


async def test_large_ones_are_computed_beside_the_event_loop(store, job, monkeypatch):
    monkeypatch.setattr(aggregation, "HASH_INLINE_BYTES", 0)
    await begin(store, job, a=policy(1.0, 1.0))
    gradient = await leave(store, job, 0, {"a": of_policy(4.0, -2.0)})
    made = await aggregate(store, job, 1, 0, {"a": 1}, [gradient], STEPS)
    assert made.vcpu_s > 0
    assert flat(await state_of(store, job)) == pytest.approx([0.9, 1.1])


async def test_only_jobs_with_aggregations_under_way_have_locks(store, job, redis):
    aggregator = Aggregator(VersionStore(redis, str, keep=3), BlobUploads(10_000))
    found = await asyncio.gather(
        *(aggregator.run(asked(job, {"gradient/0/0": 1})) for _ in range(4)), return_exceptions=True
    )
    assert {type(each) for each in found} == {NotFoundError}
    assert not aggregator._turns.locks
    assert not aggregator._turns.wanted


# Kills


async def doomed(address: str, redis_url: str, name: str) -> asyncio.subprocess.Process:
    """A store process on the Redis of these tests, which dies at a failpoint."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "marless.services.param_store",
        "--listen",
        address,
        "--exit-with-stdin",
        "--redis-url",
        redis_url,
        env={**os.environ, "MARLESS_FAILPOINT": name},
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    "name", [f"{place}.{when}" for place in failpoints.AGGREGATING for when in ("before", "after")]
)
async def test_a_store_that_is_killed_applies_each_gradient_once(store, job, redis, redis_url, tmp_path, name):
    assert name in failpoint.NAMES
    await begin(store, job, a=policy(1.0, 1.0), b=policy(1.0, 1.0))
    of = {"a": of_policy(4.0, -2.0), "b": of_policy(1.0, 1.0)}
    gradient, heads = await leave(store, job, 0, of), {"a": 1, "b": 1}
    address = f"unix:{tmp_path}/killed.sock"
    process = await doomed(address, redis_url, name)
    peer = Peer(address, Security())
    with pytest.raises(UnavailableError):
        await until_killed(ParamStore(peer, patience_s=0.2), process, job, heads, gradient)
    await peer.close()
    assert await process.wait() == -9

    published = name.endswith("after")
    listed = (await store.list(job)).policies
    assert listed["a"].versions == listed["b"].versions == ((1, 2) if published else (1,))
    assert ("gradient/0/0" in listed) is not published
    made = await aggregate(store, job, 1, 0, heads, [gradient], STEPS)
    assert made.versions == {"a": 2, "b": 2}
    assert (made.start_s == 0) is published
    assert flat(await state_of(store, job)) == pytest.approx([0.9, 1.1])
    assert await keys_of_gradients(redis, job) == []


async def until_killed(
    store: ParamStore,
    process: asyncio.subprocess.Process,
    job: str,
    heads: Mapping[str, int],
    gradient: WeightedGradient,
) -> None:
    """Aggregate with a store that is starting, and dies of it; raises UnavailableError."""
    while True:
        try:
            await aggregate(store, job, 1, 0, heads, [gradient], STEPS)
        except UnavailableError:
            if process.returncode is not None:
                raise
