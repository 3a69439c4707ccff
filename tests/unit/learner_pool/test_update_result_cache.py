"""What learners have computed is published once, by whoever asks for it from the same inputs; no file stays behind."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from marless.core.errors import ConflictError, FencedError, UnreachableError
from marless.learning.data.trajectory import TrajectorySchema
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from marless.rpc.param_store import PolicyWrite
from marless.rpc.refs import write_new
from marless.rpc.v1.common_pb2 import Group, PolicyVersion, Ref
from marless.rpc.v1.learner_pool_pb2 import LearnResult, UpdateRequest, UploadHeader
from marless.services.learner_pool import stored_results
from marless.services.learner_pool.tasks import UpdateResultCache, check_published
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer, TrajectoryFile

SCHEMA = TrajectorySchema(EnvSpaces((AgentClass("a", ("a",), 1, Discrete(3)),), 0, None), 2, 1, with_state=False)
BLOBS = {"acting": b"abc", "learning": b"defg"}


class Store:
    """Takes publishes of its epoch."""

    def __init__(self) -> None:
        self.epoch = 2
        self.away = False
        self.heads: dict[str, tuple[int, str]] = {}
        self.published: list[dict[str, bytes]] = []

    async def publish(self, job, epoch, round_, writes, *, keep=0):
        if self.away:
            raise UnreachableError("param_store: away")
        if epoch < self.epoch:
            raise FencedError(f"epoch {epoch} is over")
        self.published += [{part: bytes(blob) for part, blob in write.blobs.items()} for write in writes]
        self.heads |= {write.policy: (write.expected + 1, write.req_id) for write in writes}
        return {write.policy: write.expected + 1 for write in writes}

    async def list(self, job):
        policies = {
            name: SimpleNamespace(head=SimpleNamespace(version=version), req_id=req_id)
            for name, (version, req_id) in self.heads.items()
        }
        return SimpleNamespace(policies=policies)


@pytest.fixture
def buffer(tmp_path):
    buffer = TrajectoryBuffer(tmp_path, 1000)
    buffer.open("job", SCHEMA, epoch=1, round_=0)
    yield buffer
    buffer.shutdown()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def computed(store, buffer) -> UpdateResultCache:
    return UpdateResultCache("job", store, buffer)


def request(epoch: int = 1, *, agents: str = "ab", versions: str = "xy") -> UpdateRequest:
    return UpdateRequest(
        job="job",
        epoch=epoch,
        groups=[Group(policy="x", agents=agents)],
        versions=[PolicyVersion(policy=name, version=1) for name in versions],
    )


def sampled(crc32: int = 7, epoch: int = 1) -> list[TrajectoryFile]:
    return [TrajectoryFile(Path("p"), UploadHeader(crc32=crc32, epoch=epoch), 1)]


class Borrowed:
    """Writes into this file, as the pool does for its worker."""

    def __init__(self, path: Path, limit: int = 1000) -> None:
        self.path = path
        self.limit = limit

    async def write(self, ref, ranges, content):
        write_new(self.path, self.limit, ranges, content)


async def fenced(computed: UpdateResultCache, buffer: TrajectoryBuffer, scope: int = 0) -> Path:
    """A scope's learner was refused, and has left what it computed."""
    path = buffer.spare()
    write = PolicyWrite(f"policy-{scope}", 1, f"job/0/policy-{scope}", BLOBS)
    left = await stored_results.set_aside(Borrowed(path), Ref(), [write], FencedError("epoch 1 is over"))
    computed.put(scope, LearnResult(unpublished=left, device="cpu"), path)
    return path


def versions(computed: UpdateResultCache) -> dict[int, list[tuple[str, int]]]:
    return {
        scope: [(each.policy, each.version) for each in result.versions] for scope, result in computed.results.items()
    }


async def test_the_next_epoch_publishes_what_was_computed_under_the_last_one(computed, buffer, store):
    await computed.begin(request(), sampled())
    path = await fenced(computed, buffer)
    assert buffer.held_bytes == 7
    with pytest.raises(FencedError, match="epoch 1 is over"):
        check_published(computed.results.values())
    await computed.begin(request(2, versions="yx"), sampled(epoch=1))  # the order of heads says nothing
    check_published(computed.results.values())
    assert versions(computed) == {0: [("policy-0", 2)]}
    assert computed.results[0].device == "cpu"
    assert store.published == [BLOBS]
    assert (path.exists(), buffer.held_bytes) == (False, 0)
    await computed.begin(request(2), sampled())
    assert store.published == [BLOBS]


async def test_an_epoch_that_ends_before_it_could_publish_leaves_it_to_the_one_after(computed, buffer, store):
    await computed.begin(request(), sampled())
    await fenced(computed, buffer)
    store.epoch = 3
    await computed.begin(request(2), sampled())
    with pytest.raises(FencedError, match="epoch 2 is over"):
        check_published(computed.results.values())
    await computed.begin(request(3), sampled())
    assert store.published == [BLOBS]


async def test_a_store_that_is_away_gets_it_when_it_is_back(computed, buffer, store):
    await computed.begin(request(), sampled())
    await fenced(computed, buffer)
    store.away = True
    await computed.begin(request(2), sampled())
    with pytest.raises(UnreachableError, match="param_store: away"):
        check_published(computed.results.values())
    store.away = False
    await computed.begin(request(2), sampled())
    assert store.published == [BLOBS]


@pytest.mark.parametrize(
    ("again", "trajectories"),
    [
        (request(2, agents="a"), sampled()),
        (request(2), sampled(crc32=8)),
        (UpdateRequest(job="job", epoch=2, round=1), sampled()),
    ],
)
async def test_what_was_computed_from_other_inputs_is_dropped(computed, buffer, store, again, trajectories):
    await computed.begin(request(), sampled())
    path = await fenced(computed, buffer)
    await computed.begin(again, trajectories)
    assert computed.results == {}
    assert (path.exists(), buffer.held_bytes, store.published) == (False, 0, [])


async def test_scopes_that_had_been_published_stay_as_they_are(computed, buffer, store):
    await computed.begin(request(), sampled())
    store.heads["policy-0"] = (2, "job/0/policy-0")
    computed.put(0, LearnResult(versions=[PolicyVersion(policy="policy-0", version=2)]), buffer.spare())
    await fenced(computed, buffer, 1)
    with pytest.raises(ConflictError, match="round 1 was published for other groups than it is asked for now"):
        await computed.begin(request(2, agents="a"), sampled())
    await computed.begin(request(2), sampled())
    assert versions(computed) == {0: [("policy-0", 2)], 1: [("policy-1", 2)]}


async def test_what_the_store_has_lost_is_computed_again(computed, buffer, store):
    await computed.begin(request(), sampled())
    computed.put(0, LearnResult(versions=[PolicyVersion(policy="policy-0", version=2)]), buffer.spare())
    store.heads["policy-0"] = (1, "restored")
    await computed.begin(request(2), sampled())
    assert computed.results == {}


async def test_what_the_spool_has_no_room_for_is_computed_again(computed, buffer):
    await computed.begin(request(), sampled())
    buffer.budget.set_aside(994)
    path = await fenced(computed, buffer)
    assert not path.exists()
    with pytest.raises(FencedError):
        check_published(computed.results.values())
    await computed.begin(request(2), sampled())
    assert computed.results == {}


async def test_files_go_with_the_round_and_with_the_job(computed, buffer):
    await computed.begin(request(), sampled())
    path = await fenced(computed, buffer)
    buffer.advance("job", 1)
    assert (path.exists(), buffer.held_bytes) == (False, 0)
    other = await fenced(computed, buffer)
    buffer.close("job")
    assert (other.exists(), buffer.held_bytes) == (False, 0)


async def test_a_file_of_a_worker_that_died_before_it_could_tell_is_no_obstacle(computed, buffer):
    await computed.begin(request(), sampled())
    path = buffer.spare()
    path.write_bytes(b"half of another")
    await stored_results.set_aside(Borrowed(path), Ref(), [PolicyWrite("x", 1, "r", BLOBS)], FencedError("over"))
    assert path.read_bytes() == b"abcdefg another"
    computed.put(0, LearnResult(versions=[PolicyVersion(policy="x", version=2)]), path)
    assert not path.exists()


@pytest.mark.parametrize("left", [b"", b"abcdef"])
async def test_a_file_that_lacks_bytes_is_not_published(computed, buffer, store, left):
    await computed.begin(request(), sampled())
    path = buffer.spare()
    told = await stored_results.set_aside(Borrowed(path), Ref(), [PolicyWrite("x", 1, "r", BLOBS)], FencedError("over"))
    path.write_bytes(left)
    computed.put(0, LearnResult(unpublished=told), path)
    await computed.begin(request(2), sampled())
    assert (computed.results, store.published) == ({}, [])


async def test_what_cannot_be_left_is_refused_for_the_reason_why_it_was_not_published(tmp_path):
    for borrowed in (Borrowed(tmp_path / "missing" / "file"), Borrowed(tmp_path / "file", limit=6)):
        with pytest.raises(FencedError, match="over"):
            await stored_results.set_aside(borrowed, Ref(), [PolicyWrite("x", 1, "r", BLOBS)], FencedError("over"))
