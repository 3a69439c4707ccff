"""Every RPC of the parameter store against real gRPC and real Redis."""

import asyncio
import hashlib
from contextlib import aclosing

import pytest
from redis.asyncio import Redis

from marless.core.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    NotFoundError,
    OverloadedError,
    SpecError,
    TooLargeError,
)
from marless.core.group import LaneRecord
from marless.rpc import carries, chunks
from marless.rpc.client import Peer
from marless.rpc.param_store import LATEST, ParamStore, PolicyWrite
from marless.rpc.security import Security
from marless.rpc.server import serving
from marless.rpc.v1 import param_store_pb2
from marless.services.param_store.__main__ import build
from marless.services.param_store.blobs import PIECE_BYTES, BlobPart, BlobUploads, Published
from marless.services.param_store.store import VersionStore
from marless.services.param_store.versions import Write

MIB = 2**20


def write(policy: str, expected: int, req_id: str = "", **blobs: bytes) -> PolicyWrite:
    return PolicyWrite(policy, expected, req_id or f"{policy}/{expected}", blobs or {"acting": b"%d" % expected})


async def publish_versions(store: ParamStore, job: str, policy: str, versions: int) -> None:
    for expected in range(versions):
        await store.publish(job, 0, expected, [write(policy, expected)])


async def watched(store: ParamStore, job: str, count: int, cursor: str = "") -> list[tuple[str, int, str]]:
    seen = []
    async with aclosing(store.watch(job, cursor)) as changes:
        async for change in changes:
            seen.append((change.head.policy, change.head.version, change.cursor))
            if len(seen) == count:
                break
    return seen


@pytest.fixture
async def redis(redis_url):
    client = Redis.from_url(redis_url)
    yield client
    await client.aclose()


async def test_what_was_published_is_read_back(store, job):
    versions = await store.publish(
        job, 0, 7, [write("a", 0, acting=b"weights", learning=b"moments"), write("b", 0, acting=b"")]
    )
    assert versions == {"a": 1, "b": 1}
    read = await store.get(job, {"b": LATEST, "a": 1}, ["acting"])
    assert [(v.policy, v.version, v.round) for v in read.values()] == [("b", 1, 7), ("a", 1, 7)]
    assert {name: {part: bytes(blob) for part, blob in v.blobs.items()} for name, v in read.items()} == {
        "b": {"acting": b""},
        "a": {"acting": b"weights"},
    }
    both = (await store.get(job, {"a": LATEST}, ["learning", "acting"]))["a"].blobs
    assert list(both.items()) == [("learning", b"moments"), ("acting", b"weights")]


async def test_no_parts_reads_no_bytes(store, job):
    await store.publish(job, 0, 0, [write("a", 0)])
    assert (await store.get(job, {"a": LATEST}, []))["a"].blobs == {}


async def test_blobs_beyond_a_piece_are_cut_and_joined(store, job, redis):
    big = bytes(range(251)) * (17 * MIB // 251)
    await store.publish(job, 0, 0, [write("a", 0, acting=big, learning=b"small")])
    read = (await store.get(job, {"a": LATEST}, ["acting", "learning"]))["a"].blobs
    assert read["acting"] == big
    assert read["learning"] == b"small"
    key = f"marless:{{{job}}}:v:1:a"
    lengths = [await redis.hstrlen(key, f"acting:{i}") for i in range(4)]
    assert lengths == [8 * MIB, 8 * MIB, len(big) - 16 * MIB, 0]


async def test_a_repeated_publish_answers_as_the_first_did(store, job):
    assert await store.publish(job, 3, 0, [write("a", 0, "r0", acting=b"first")]) == {"a": 1}
    assert await store.publish(job, 3, 1, [write("a", 1, "r1")]) == {"a": 2}
    # Even with other content and an older epoch: the question was already answered.
    assert await store.publish(job, 2, 0, [write("a", 0, "r0", acting=b"other")]) == {"a": 1}
    listing = await store.list(job)
    assert listing.policies["a"].versions == (1, 2)
    assert listing.policies["a"].req_id == "r1"
    assert (await store.get(job, {"a": 1}, ["acting"]))["a"].blobs["acting"] == b"first"


async def test_a_restored_policy_goes_on_from_its_version(store, job):
    restored = PolicyWrite("a", 0, "restore", {"acting": b"50"}, first_version=50)
    assert await store.publish(job, 0, 49, [restored]) == {"a": 50}
    assert await store.publish(job, 0, 49, [restored]) == {"a": 50}
    assert await store.publish(job, 0, 50, [write("a", 50)]) == {"a": 51}
    assert (await store.list(job)).policies["a"].versions == (50, 51)
    again = PolicyWrite("a", 51, "late", {"acting": b"7"}, first_version=7)  # no first version any more
    assert await store.publish(job, 0, 51, [again]) == {"a": 52}
    with pytest.raises(SpecError, match="first_version -1; versions start at 1"):
        await store.publish(job, 0, 0, [PolicyWrite("b", 0, "b", {"acting": b""}, first_version=-1)])


async def test_a_lost_race_names_both_versions(store, job):
    await store.publish(job, 0, 0, [write("a", 0), write("b", 0)])
    with pytest.raises(ConflictError, match=r"'a'.*at version 1; this write expects 0"):
        await store.publish(job, 0, 0, [write("b", 1, "b-new"), write("a", 0, "late")])
    # The other policy of the same call was published, and repeating answers so.
    assert await store.publish(job, 0, 0, [write("b", 1, "b-new")]) == {"b": 2}


async def test_a_write_that_follows_a_lost_version_finds_none(store, job):
    with pytest.raises(NotFoundError, match=r"'a'.*has no version any more; this write expects 3"):
        await store.publish(job, 1, 0, [write("a", 3)])


async def test_an_older_epoch_is_refused(store, job):
    first = await store.acquire_epoch(job, "coordinator-1")
    second = await store.acquire_epoch(job, "coordinator-2")
    assert (first, second) == (1, 2)
    assert await store.acquire_epoch(job, "coordinator-1") == 1
    await store.publish(job, second, 0, [write("a", 0)])
    with pytest.raises(FencedError, match=r"epoch 1 .* epoch 2 has begun"):
        await store.publish(job, first, 0, [write("a", 1)])
    assert (await store.list(job)).policies["a"].versions == (1,)
    assert (await store.list(job)).epoch == 2


async def test_a_publish_of_a_newer_epoch_ends_the_older(store, job):
    await store.publish(job, 5, 0, [write("a", 0)])
    with pytest.raises(FencedError):
        await store.publish(job, 4, 0, [write("a", 1)])
    assert await store.acquire_epoch(job, "next") == 6


async def test_an_epoch_is_at_least_the_one_that_is_asked_for(store, job):
    assert await store.acquire_epoch(job, "first", 7) == 7
    assert await store.acquire_epoch(job, "first", 9) == 7
    assert await store.acquire_epoch(job, "second", 3) == 8
    assert (await store.list(job)).epoch == 8
    with pytest.raises(FencedError, match="epoch 8 has begun"):
        await store.publish(job, 7, 0, [write("a", 0)])
    with pytest.raises(SpecError, match="the least epoch is -1"):
        await store.acquire_epoch(job, "third", -1)


async def test_the_newest_and_the_pinned_are_kept(store, job):
    await publish_versions(store, job, "a", 2)
    await store.pin(job, "a", 2)
    for expected in range(2, 7):
        await store.publish(job, 0, expected, [write("a", expected)])
    listed = (await store.list(job)).policies["a"]
    assert (listed.head.version, listed.versions, listed.pinned) == (7, (2, 5, 6, 7), (2,))
    assert (await store.get(job, {"a": 2}, ["acting"]))["a"].blobs["acting"] == b"1"
    with pytest.raises(NotFoundError, match=r"'a'.* no version 4 .* it has 2, 5, 6, 7"):
        await store.get(job, {"a": 4}, ["acting"])

    await store.pin(job, "a", 2, pinned=False)
    await store.publish(job, 0, 7, [write("a", 7)])
    assert (await store.list(job)).policies["a"].versions == (6, 7, 8)
    with pytest.raises(NotFoundError, match="no version 2"):
        await store.pin(job, "a", 2)


async def test_nothing_is_left_behind(store, job, redis):
    async def keys() -> set[str]:
        found = {key.decode().removeprefix(f"marless:{{{job}}}:") async for key in redis.scan_iter(f"*{job}*")}
        assert all([await redis.ttl(f"marless:{{{job}}}:{key}") == -1 for key in found])
        return found

    await publish_versions(store, job, "a", 5)
    with pytest.raises(ConflictError):
        await store.publish(job, 0, 0, [write("a", 0, "late")])
    await store.publish(job, 0, 0, [write("a", 4)])  # repeated
    assert await keys() == {"heads", "events", "kept:a", "requests:a", "v:3:a", "v:4:a", "v:5:a"}
    assert await redis.hkeys(f"marless:{{{job}}}:requests:a") == [b"a/2", b"a/3", b"a/4"]


async def test_deleting_a_job_keeps_its_writers_out(store, job, redis):
    epoch = await store.acquire_epoch(job, "coordinator")
    await store.publish(job, epoch, 0, [write("a", 0), write("b", 0)])
    await store.pin(job, "a", 1)
    await store.delete_job(job)
    await store.delete_job(job)
    assert (await store.list(job)).policies == {}
    assert [key async for key in redis.scan_iter(f"*{job}*")] == [f"marless:{{{job}}}:fence".encode()]
    assert await redis.ttl(f"marless:{{{job}}}:fence") > 0
    with pytest.raises(FencedError):
        await store.publish(job, epoch, 0, [write("a", 0)])
    newer = await store.acquire_epoch(job, "coordinator-again")
    assert await store.publish(job, newer, 0, [write("a", 0)]) == {"a": 1}
    assert await redis.ttl(f"marless:{{{job}}}:fence") == -1


async def test_a_coordinator_that_was_replaced_deletes_nothing(store, job):
    old = await store.acquire_epoch(job, "coordinator")
    await store.publish(job, old, 0, [write("a", 0)])
    newer = await store.acquire_epoch(job, "its successor")
    with pytest.raises(FencedError, match=f"epoch {old} of job '{job}' is over: epoch {newer} has begun"):
        await store.delete_job(job, old)
    assert (await store.list(job)).policies.keys() == {"a"}
    await store.delete_job(job, newer)
    await store.delete_job(job, newer)  # whose answer was lost
    assert (await store.list(job)).policies == {}


async def test_deleting_an_unknown_job_leaves_nothing(store, job, redis):
    await store.delete_job(job)
    assert [key async for key in redis.scan_iter(f"*{job}*")] == []


async def test_watch_starts_with_the_present_and_follows_changes(store, job):
    await publish_versions(store, job, "b", 2)
    await publish_versions(store, job, "a", 1)
    async with aclosing(store.watch(job)) as changes:
        heads = [await anext(changes), await anext(changes)]
        assert [(c.head.policy, c.head.version) for c in heads] == [("b", 2), ("a", 1)]
        for expected in (2, 3):
            await store.publish(job, 0, 9, [write("b", expected)])
            change = await anext(changes)
            assert (change.head.policy, change.head.version, change.head.round) == ("b", expected + 1, 9)


async def test_watch_continues_from_a_cursor(store, job):
    await publish_versions(store, job, "a", 1)
    [(_, _, cursor)] = await watched(store, job, 1)
    await publish_versions(store, job, "b", 2)
    assert [seen[:2] for seen in await watched(store, job, 1, cursor)] == [("b", 2)]
    assert [seen[:2] for seen in await watched(store, job, 2)] == [("a", 1), ("b", 2)]


async def test_watch_survives_a_restart_of_the_store(store_config, job):
    def run():
        return serving(store_config.server, lambda address: build(store_config, address))

    peer = Peer(store_config.server.listen, Security())
    client = ParamStore(peer)
    async with aclosing(client.watch(job)) as changes:
        async with run():
            await client.publish(job, 0, 0, [write("a", 0)])
            assert (await anext(changes)).head.version == 1
        async with run():
            await client.publish(job, 0, 0, [write("a", 1)])
            assert (await anext(changes)).head.version == 2
    await peer.close()


async def test_concurrent_watchers_see_the_last_head_in_order(store, job):
    async def follow() -> list[int]:
        seen: list[int] = []
        async with aclosing(store.watch(job)) as changes:
            async for change in changes:
                seen.append(change.head.version)
                if seen[-1] == 20:
                    return seen
        return seen

    async with asyncio.TaskGroup() as group:
        followers = [group.create_task(follow()) for _ in range(4)]
        await publish_versions(store, job, "a", 20)
    for follower in followers:
        assert follower.result() == sorted(set(follower.result()))


async def test_watches_are_bounded(store, redis, job):
    await publish_versions(store, job, "a", 1)
    versions = VersionStore(redis, str, keep=1, watches=1)
    first = versions.watch(job, "")
    assert (await anext(first)).version == 1
    with pytest.raises(OverloadedError):
        await anext(versions.watch(job, ""))
    await first.aclose()
    assert (await anext(versions.watch(job, ""))).version == 1


async def test_wrong_checksums_publish_nothing(store, store_address, job):
    blob = param_store_pb2.BlobInfo(part="acting", bytes=3, sha256=hashlib.sha256(b"abc").digest())
    policy = param_store_pb2.PolicyPublish(policy="a", req_id="r", blobs=[blob])
    header = param_store_pb2.PublishHeader(job=job, policies=[policy])
    peer = Peer(store_address, Security())
    for data in (b"abd", b"ab", b"abcd", b""):
        with pytest.raises(CorruptError):
            await peer.send("ParamStoreService/Publish", header, [data], param_store_pb2.PublishResponse)
    assert (await store.list(job)).policies == {}
    response = await peer.send("ParamStoreService/Publish", header, [b"abc"], param_store_pb2.PublishResponse)
    assert response.versions[0].version == 1
    await peer.close()


async def test_bytes_that_changed_in_redis_are_not_handed_out(store, job, redis):
    await store.publish(job, 0, 0, [write("a", 0, acting=b"weights", learning=b"moments")])
    await redis.hset(f"marless:{{{job}}}:v:1:a", "acting:0", b"weighty")
    assert (await store.get(job, {"a": LATEST}, ["acting"]))["a"].blobs["acting"] == b"weights"  # it has them still

    restarted = VersionStore(redis, str, keep=1)
    [version] = await restarted.read(job, [("a", LATEST)])
    with pytest.raises(CorruptError, match="not what was published"):
        await restarted.blobs(job, [(version, "acting")])
    assert await restarted.blobs(job, [(version, "learning")]) == [b"moments"]


async def test_a_store_reads_what_it_does_not_have_from_redis(store, job, redis):
    await store.publish(job, 0, 0, [write("a", 0, acting=b"weights", learning=b"moments")])
    restarted = VersionStore(redis, str, keep=2)
    blobs = [b"weights", b"newer"]
    parts = tuple(BlobPart("acting", len(blob), hashlib.sha256(blob).digest()) for blob in blobs)
    await restarted.publish(job, 0, 1, [Write("a", 1, "a/1", parts[1:], (memoryview(blobs[1]),))])
    old, new = await restarted.read(job, [("a", 1), ("a", 2)])
    await redis.hdel(f"marless:{{{job}}}:v:2:a", "acting:0")  # not read any more
    wanted = [(old, "learning"), (new, "acting"), (old, "acting")]
    assert await restarted.blobs(job, wanted) == [b"moments", b"newer", b"weights"]


async def test_large_publishes_are_read_from_redis(store, job, redis):
    blobs = [bytes([policy]) * 3 * MIB for policy in range(3)]
    await store.publish(job, 0, 0, [write(f"p{number}", 0, acting=blob) for number, blob in enumerate(blobs)])
    read = await store.get(job, {"p1": LATEST}, ["acting"])
    assert read["p1"].blobs["acting"] == blobs[1]
    await redis.hset(f"marless:{{{job}}}:v:1:p2", "acting:0", blobs[0])
    with pytest.raises(CorruptError, match="not what was published"):  # it was not kept: copies of 9 MiB take long
        await store.get(job, {"p2": LATEST}, ["acting"])


def test_the_parts_published_last_are_kept_within_a_bound():
    blobs = [b"first", b"second", b"x" * 20]
    first, second, large = (BlobPart("acting", len(blob), hashlib.sha256(blob).digest()) for blob in blobs)
    kept = Published(limit_bytes=11)
    for part, blob in zip((first, second, second), (blobs[0], blobs[1], blobs[1]), strict=True):
        kept.add(part, memoryview(blob))
    assert (kept.get(first), kept.get(second)) == (b"first", b"second")
    kept.add(large, memoryview(blobs[2]))
    assert (kept.get(first), kept.get(second), kept.get(large)) == (None, None, None)
    several_pieces = BlobPart("acting", PIECE_BYTES + 1, b"sha")
    kept.add(several_pieces, memoryview(b""))
    assert kept.get(several_pieces) is None


async def test_unknown_names_get_the_nearest(store, job):
    await publish_versions(store, job, "agent_0", 1)
    with pytest.raises(NotFoundError, match="unknown policy 'agent_1'; did you mean 'agent_0'"):
        await store.get(job, {"agent_0": LATEST, "agent_1": LATEST}, ["acting"])
    with pytest.raises(NotFoundError, match="no part 'critic'; it has acting"):
        await store.get(job, {"agent_0": LATEST}, ["critic"])
    with pytest.raises(SpecError, match="job name"):
        await store.list("a{b}")
    with pytest.raises(SpecError, match="policy name"):
        await store.publish(job, 0, 0, [write("two words", 0)])
    with pytest.raises(SpecError, match="not a cursor"):
        await watched(store, job, 1, "yesterday")


async def test_a_publish_beyond_the_bound_is_refused_before_its_bytes(store, store_address, job):
    blob = param_store_pb2.BlobInfo(part="acting", bytes=2**40)
    policy = param_store_pb2.PolicyPublish(policy="a", req_id="r", blobs=[blob])
    peer = Peer(store_address, Security())
    for size in (2**40, -1):
        policy.blobs[0].bytes = size
        header = param_store_pb2.PublishHeader(job=job, policies=[policy])
        with pytest.raises(SpecError, match="intake-bytes"):
            await peer.send("ParamStoreService/Publish", header, [], param_store_pb2.PublishResponse)
    await peer.close()


async def test_uploads_in_progress_share_the_bound():
    async def stream(data: bytes):
        for frame in chunks.data_frames([data]):
            yield frame

    part = BlobPart("acting", 6, hashlib.sha256(b"abcdef").digest())

    async def wait() -> None:
        async with uploads.receive(stream(b"abcdef"), [part], "b") as [blob]:
            assert (blob, uploads.budget.held_bytes) == (b"abcdef", 6)

    uploads = BlobUploads(10, wait_s=0.01)
    async with uploads.receive(stream(b"abcdef"), [part], "a") as [blob]:
        assert blob == b"abcdef"
        with pytest.raises(OverloadedError):
            async with uploads.receive(stream(b"abcdef"), [part], "b"):
                pass
    uploads = BlobUploads(10)
    async with uploads.receive(stream(b"abcdef"), [part], "a") as [blob]:
        waiting = asyncio.create_task(wait())
        await asyncio.wait([waiting], timeout=0.01)
        assert not waiting.done()
    await waiting
    async with uploads.receive(stream(b"abcdef"), [part]) as [blob]:
        assert blob == b"abcdef"


async def test_full_memory_refuses_and_recovers(store_address, job, redis):
    """A version larger than all of Redis is refused for good; one that others leave no memory for, now."""
    peer = Peer(store_address, Security())
    store = ParamStore(peer, patience_s=0.0)
    await store.publish(job, 0, 0, [write("a", 0)])
    await redis.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(TooLargeError, match=r"its versions take 4,194,304 bytes, and Redis may use 1,048,576"):
            await store.publish(job, 0, 1, [write("a", 1, acting=bytes(2 * MIB))])
        with pytest.raises(OverloadedError, match=r"^no room in the parameter store: Redis has no memory left"):
            await store.publish(job, 0, 1, [write("a", 1, acting=bytes(MIB // 4))])
        waiting = asyncio.create_task(ParamStore(peer).publish(job, 0, 1, [write("a", 1)]))
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
    finally:
        await redis.config_set("maxmemory", "1gb")
    assert (await store.list(job)).policies["a"].versions == (1,)
    assert await waiting == {"a": 2}
    await peer.close()


# Carries of lanes


def lane(number: int, version: int = 0, digest: str = "") -> LaneRecord:
    return LaneRecord(lane=number, version=version, digest=digest)


async def leave(store, job: str, epoch: int, round_: int, start: LaneRecord, data: bytes) -> LaneRecord:
    left = carries.after(start, data)
    await carries.publish(store, job, epoch, round_, {left: data})
    return left


async def test_a_carry_is_published_once_a_round_and_read_back(store, job):
    epoch = await store.acquire_epoch(job, "coordinator")
    first = await leave(store, job, epoch, 0, lane(3), b"first")
    assert first == lane(3, 1, hashlib.sha256(b"first").hexdigest())
    assert await leave(store, job, epoch, 0, lane(3), b"first") == first  # a second attempt at the actor
    second = await leave(store, job, epoch, 1, first, b"second")
    assert [await carries.fetch(store, job, each) for each in (first, second)] == [b"first", b"second"]
    assert await leave(store, job, epoch, 1, first, b"second") == second  # the round is run again
    await store.delete_job(job, epoch)
    with pytest.raises(NotFoundError):
        await carries.fetch(store, job, second)


async def test_another_carry_for_the_same_round_blames_the_environment(store, job):
    first = await leave(store, job, 0, 0, lane(0), b"first")
    await leave(store, job, 0, 1, first, b"second")
    with pytest.raises(
        SpecError, match=r"not deterministic .* in round 2, .* left lane 0 in two states; set actors.episodes: fresh"
    ):
        await leave(store, job, 0, 1, first, b"something else")
    with pytest.raises(ConflictError):  # a later round's
        await leave(store, job, 0, 5, first, b"third")


async def test_the_lanes_of_a_round_are_published_in_one_call_however_often_it_is_repeated(store, job):
    data = {index: b"%d" % index for index in range(3)}
    first = {carries.after(lane(index), each): each for index, each in data.items()}
    one = dict([next(iter(first.items()))])
    await carries.publish(store, job, 0, 0, one)  # an attempt that was cut off
    await carries.publish(store, job, 0, 0, first)
    await carries.publish(store, job, 0, 0, {})
    assert await carries.fetch_all(store, job, list(first)) == list(first.items())
    other = {carries.after(lane(index), b"x" if index == 2 else each): each for index, each in data.items()}
    with pytest.raises(SpecError, match="left lane 2 in two states"):
        await carries.publish(store, job, 0, 0, other)


async def test_a_lane_that_the_store_has_lost_is_missing_and_no_conflict(store, job):
    with pytest.raises(NotFoundError):
        await leave(store, job, 0, 4, lane(1, 4, "of round 3"), b"fifth")


async def test_a_carry_of_another_digest_is_not_handed_out(store, job):
    first = await leave(store, job, 0, 0, lane(0), b"first")
    with pytest.raises(CorruptError, match="lane 0: version 1 is not the one"):
        await carries.fetch(store, job, lane(0, first.version, "0" * 64))


async def test_an_older_epoch_publishes_no_carry(store, job):
    old = await store.acquire_epoch(job, "coordinator")
    await store.acquire_epoch(job, "its successor")
    with pytest.raises(FencedError):
        await leave(store, job, old, 0, lane(0), b"late")


async def test_carries_are_bounded(store, job, monkeypatch):
    monkeypatch.setattr(carries, "MAX_CARRY_BYTES", 4)
    await leave(store, job, 0, 0, lane(0), b"four")
    with pytest.raises(SpecError, match="a carry has 4 bytes at most"):
        await leave(store, job, 0, 0, lane(1), b"fives")
