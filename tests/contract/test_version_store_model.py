"""The store against a model of it that is a few dictionaries: any sequence of calls, the same answers."""

import asyncio
import hashlib
import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from marless.core.errors import ConflictError, FencedError, MarlessError, NotFoundError
from marless.services.param_store.blobs import BlobPart
from marless.services.param_store.connection import connected
from marless.services.param_store.redis_server import Provided
from marless.services.param_store.store import VersionStore
from marless.services.param_store.versions import Write

KEEP = 2
GRADIENT = "gradient/0/0"
POLICIES = st.sampled_from(["a", "b", GRADIENT])
NUMBERS = st.integers(0, 6)
_jobs = itertools.count()


class Model:
    """What the store promises, for one job."""

    def __init__(self) -> None:
        self.epoch = 0
        self.epochs: dict[str, int] = {}
        self.heads: dict[str, int] = {}
        self.versions: dict[tuple[str, int], tuple[str, bytes]] = {}
        self.pins: set[tuple[str, int]] = set()
        self.log: list[tuple[str, int]] = []

    def kept(self, policy: str) -> list[int]:
        return sorted(number for name, number in self.versions if name == policy)

    def publish(self, epoch: int, policy: str, expected: int, req_id: str, data: bytes) -> int:
        for (name, number), (request, _) in self.versions.items():
            if (name, request) == (policy, req_id):
                return number
        if epoch < self.epoch:
            raise FencedError
        if expected != self.heads.get(policy, 0):
            raise ConflictError
        self.epoch = epoch
        return self.next_version(policy, req_id, data, KEEP)

    def next_version(self, policy: str, req_id: str, data: bytes, keep: int) -> int:
        version = self.heads[policy] = self.heads.get(policy, 0) + 1
        self.versions[policy, version] = (req_id, data)
        if policy != GRADIENT:
            self.log.append((policy, version))
        for number in self.kept(policy)[:-keep]:
            if (policy, number) not in self.pins:
                del self.versions[policy, number]
        return version

    def advance(
        self, epoch: int, expected: dict[str, int], req_id: str, data: bytes, *, applied: dict[str, int], keep: int
    ) -> dict[str, int]:
        before = {name: v for (name, v), (req, _) in self.versions.items() if name in expected and req == req_id}
        if before.keys() == expected.keys():
            return before
        if before:
            raise ConflictError
        if epoch < self.epoch:
            raise FencedError
        for policy, head in expected.items():
            if head != self.heads.get(policy, 0):
                raise ConflictError if self.heads.get(policy) else NotFoundError
        if not applied.items() <= self.versions.keys():
            raise NotFoundError
        self.epoch = epoch
        made = {policy: self.next_version(policy, req_id, data, max(keep, KEEP)) for policy in expected}
        for name in applied:
            self.heads.pop(name)
            self.versions = {key: value for key, value in self.versions.items() if key[0] != name}
            self.pins = {key for key in self.pins if key[0] != name}
        return made

    def read(self, policy: str, number: int) -> tuple[int, bytes]:
        number = number or self.heads.get(policy, 0)
        if (policy, number) not in self.versions:
            raise NotFoundError
        return number, self.versions[policy, number][1]

    def pin(self, policy: str, number: int, pinned: bool) -> None:
        if (policy, number) not in self.versions:
            raise NotFoundError
        (self.pins.add if pinned else self.pins.discard)((policy, number))

    def acquire(self, req_id: str, at_least: int) -> int:
        if req_id not in self.epochs:
            self.epoch = max(self.epoch + 1, at_least)
            self.epochs[req_id] = self.epoch
        return self.epochs[req_id]

    def delete(self, epoch: int) -> None:
        if 0 < epoch < self.epoch:
            if self.heads:
                raise FencedError
            return
        known = bool(self.epoch)
        self.heads, self.versions, self.pins, self.log = {}, {}, set(), []
        self.epoch += known


def outcome(call) -> object:
    try:
        return call()
    except MarlessError as error:
        return type(error)


def machine(runner: asyncio.Runner, store: VersionStore) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.job = f"model-{next(_jobs)}"
            self.model = Model()

        def same(self, answer, promised) -> None:
            assert outcome(lambda: runner.run(answer)) == outcome(promised)

        @rule(policy=POLICIES, behind=st.integers(0, 1), older=st.integers(-1, 1), request=NUMBERS, data=st.binary())
        def publish(self, policy, behind, older, request, data):
            expected = max(self.model.heads.get(policy, 0) - behind, 0)
            epoch = max(self.model.epoch - older, 0)
            part = BlobPart("acting", len(data), hashlib.sha256(data).digest())
            write = Write(policy, expected, f"r{request}", (part,), (memoryview(data),))

            async def answer() -> int:
                return (await store.publish(self.job, epoch, 0, [write]))[policy]

            self.same(answer(), lambda: self.model.publish(epoch, policy, expected, write.req_id, data))

        @rule(
            heads=st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([0, 0, 0, 1]), min_size=1),
            older=st.integers(-1, 1),
            request=NUMBERS,
            data=st.binary(),
            applied=st.sampled_from([{}, {GRADIENT: 0}, {GRADIENT: 0}, {GRADIENT: 1}]),
            keep=st.sampled_from([0, KEEP + 1]),
        )
        def advance(self, heads, older, request, data, applied, keep):
            expected = {policy: max(self.model.heads.get(policy, 0) - behind, 1) for policy, behind in heads.items()}
            used = {name: max(self.model.heads.get(name, 0) - behind, 1) for name, behind in applied.items()}
            epoch = max(self.model.epoch - older, 0)
            part = BlobPart("acting", len(data), hashlib.sha256(data).digest())
            writes = [
                Write(policy, head, f"r{request}", (part,), (memoryview(data),)) for policy, head in expected.items()
            ]
            self.same(
                store.advance(self.job, epoch, 0, writes, applied=used, discarded=(), keep=keep),
                lambda: self.model.advance(epoch, expected, f"r{request}", data, applied=used, keep=keep),
            )

        @rule(policy=POLICIES, number=NUMBERS)
        def read(self, policy, number):
            async def answer() -> tuple[int, bytes]:
                versions = await store.read(self.job, [(policy, number)])
                batches = [batch async for batch in store.pieces(self.job, versions, ["acting"])]
                return versions[0].version, b"".join(itertools.chain(*batches))

            self.same(answer(), lambda: self.model.read(policy, number))

        @rule(policy=POLICIES, number=NUMBERS, pinned=st.booleans())
        def pin(self, policy, number, pinned):
            self.same(store.pin(self.job, policy, number, pinned), lambda: self.model.pin(policy, number, pinned))

        @rule(request=NUMBERS, ahead=st.integers(-2, 3))
        def acquire_epoch(self, request, ahead):
            least = max(self.model.epoch + ahead, 0)
            self.same(
                store.acquire_epoch(self.job, f"r{request}", least), lambda: self.model.acquire(f"r{request}", least)
            )

        @rule(older=st.none() | st.integers(-1, 1))
        def delete(self, older):
            epoch = 0 if older is None else max(self.model.epoch - older, 0)
            self.same(store.delete(self.job, epoch), lambda: self.model.delete(epoch))

        @invariant()
        def listed(self):
            epoch, listed = runner.run(store.listing(self.job))
            assert epoch == self.model.epoch
            assert {each.head.policy: each.head.version for each in listed} == self.model.heads
            for each in listed:
                policy = each.head.policy
                assert list(each.versions) == self.model.kept(policy)
                assert set(each.pinned) == {number for name, number in self.model.pins if name == policy}

        @invariant()
        def watched(self):
            async def answer() -> list[tuple[str, int]]:
                watch = store.watch(self.job, "")
                heads = [await anext(watch) for _ in self.model.heads.keys() - {GRADIENT}]
                await watch.aclose()
                return [(head.policy, head.version) for head in heads]

            latest = [event for event in self.model.log if self.model.heads[event[0]] == event[1]]
            assert runner.run(answer()) == latest

    return Machine


@pytest.fixture
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.parametrize("examples", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_any_sequence_of_calls_answers_as_the_model_does(redis_url, runner, examples):
    async def connect():
        return await connection.__aenter__()

    connection = connected(Provided(redis_url))
    store = VersionStore(runner.run(connect()), str, keep=KEEP)
    run_state_machine_as_test(
        machine(runner, store),
        settings=settings(max_examples=examples, stateful_step_count=40, derandomize=True),
    )
    runner.run(connection.__aexit__(None, None, None))
