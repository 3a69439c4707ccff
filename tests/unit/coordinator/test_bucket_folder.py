"""A run folder in a bucket: one owner at a time, nothing acknowledged is lost, and any host can go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from marless.core.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptError,
    FencedError,
    MarlessError,
    NotFoundError,
    UnreachableError,
)
from marless.services.coordinator.state import bucket_state
from marless.services.coordinator.state.bucket_folder import BucketFolder
from marless.services.coordinator.state.bucket_state import BucketState
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.runs import BucketRuns
from marless.storage.bucket.reading import everything, read_head
from marless.storage.places import Address
from tests.unit.coordinator.test_run_folder import PENDING, SPEC, STATUS, saved
from tests.unit.jobs.test_record import record
from tests.unit.storage.bucket.memory import MemoryObjects

PLACE = Address("bucket", "runs/j")
LEASE_S = 0.3


class Hosts:
    """Machines with disks of their own beside one bucket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.objects = MemoryObjects()
        self.copying: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def folder(self, host: str) -> BucketFolder:
        path = self.path / host / "j"
        return BucketFolder(path, BucketState(self.objects, PLACE, path, LEASE_S), self.copying[host])

    def new(self, host: str = "a", start: Path | None = None) -> BucketFolder:
        folder = self.folder(host)
        folder.create(SPEC, STATUS, start)
        folder.take_over()
        return folder

    def taken(self, host: str, after: BucketFolder | None = None) -> BucketFolder:
        """The folder on another host, once the lease of a silent owner is over; or after its owner has left."""
        if after:
            after.release()
        join()
        folder = self.folder(host)
        if not folder.own():
            found = folder.bucket_state.look()
            assert found and folder._own_copy() and folder._own_home(lambda: folder.bucket_state.seize(found[1]))
        folder.take_over()
        return folder


def join() -> None:
    for thread in threading.enumerate():
        if thread.name == bucket_state.RELEASE:
            thread.join()


def kill(folder: BucketFolder) -> None:
    """As kill -9 does: the kernel closes files, and that is all."""
    super(BucketFolder, folder).release()


@pytest.fixture
def hosts(tmp_path) -> Hosts:
    return Hosts(tmp_path)


def content(folder: RunFolder) -> dict[str, bytes]:
    paths = (path for path in folder.path.rglob("*") if path.is_file() and not path.name.startswith("owner.lock"))
    return {str(path.relative_to(folder.path)): path.read_bytes() for path in paths}


def full(folder: BucketFolder) -> None:
    for round_ in range(3):
        folder.append(record(round_))
    folder.save_checkpoint(saved(2), 2)
    folder.write_pending([PENDING])
    folder.flush()


# Another host goes on


def test_another_host_finds_everything(hosts, tmp_path):
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "manifest.json").write_text("{}")
    first = hosts.new(start=tmp_path / "start")
    full(first)
    before = content(first)
    second = hosts.taken("b", after=first)
    assert content(second) == before
    assert second.load() == (SPEC, STATUS)
    assert list(second.records()) == [record(0), record(1), record(2)]
    assert second.read_pending(1) == (PENDING,)
    assert second.checkpoints.load(2).policies["p"].blobs["acting"] == b"a2"


def test_a_job_that_is_owned_is_not_taken(hosts):
    first = hosts.new()
    assert not hosts.folder("b").own()
    first.append(record(0))
    first.flush()


def test_a_killed_coordinator_is_followed_at_once_on_its_own_host(hosts):
    first = hosts.new()
    full(first)
    first.append(record(3))  # written here, and never acknowledged
    kill(first)
    again = hosts.folder("a")
    assert again.own()
    again.take_over()
    assert [each.round for each in again.records()] == [0, 1, 2]
    again.append(record(3))
    again.flush()
    assert read_head(hosts.objects, PLACE).rounds == 4


async def test_a_silent_owner_is_replaced_after_a_lease_and_no_sooner(hosts):
    first = hosts.new()
    renewed = asyncio.create_task(renew_for(first, 3 * LEASE_S))
    second, began = hosts.folder("b"), asyncio.get_running_loop().time()
    await second.inherit(LEASE_S)
    assert asyncio.get_running_loop().time() - began >= 4 * LEASE_S * 0.95
    assert second.ownership and not second.bucket_state.lost
    await renewed


async def renew_for(folder: BucketFolder, seconds: float) -> None:
    until = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until:
        folder.bucket_state.renew()
        await asyncio.sleep(LEASE_S / 5)
    folder.bucket_state.renew()


async def test_an_owner_that_leaves_is_followed_at_once(hosts):
    first, second = hosts.new(), hosts.folder("b")
    following = asyncio.create_task(second.inherit(30 * LEASE_S))
    await asyncio.sleep(0)
    first.release()
    looks = 0.5 + 10 * LEASE_S  # a follower looks three times a lease
    await asyncio.wait_for(following, looks + 30 * LEASE_S / 3)
    assert second.ownership


# One owner at a time


def test_a_job_is_owned_however_its_copy_is_being_updated(hosts, tmp_path):
    """Whoever lists jobs updates their working copies: that is no other owner."""
    hosts.new("a").release()
    join()
    runs = BucketRuns(tmp_path / "b", hosts.objects, Address("bucket", "runs"), LEASE_S)
    reading, goes_on = threading.Event(), threading.Event()

    def wait(method: str, key: str) -> None:
        if threading.current_thread() is looking:
            reading.set()
            goes_on.wait(10)

    looking = threading.Thread(target=runs.folder("j").refresh)
    hosts.objects.before = wait
    looking.start()
    assert reading.wait(10)
    threading.Timer(0.1, goes_on.set).start()
    assert runs.folder("j").own()
    looking.join()


def test_a_job_that_this_process_is_giving_up_is_its_own_again(hosts):
    first = hosts.new("a")
    again = hosts.folder("a")
    first.bucket_state._write_names([first.bucket_state._owner], "")
    kill(first)

    def released_meanwhile(method: str, key: str) -> None:
        if method == "replace":
            hosts.objects.plug_in()
            first.bucket_state.release()
            join()

    hosts.objects.before = released_meanwhile
    assert again.own()


async def test_a_wait_for_a_job_that_is_cancelled_while_it_takes_it_gives_it_up(hosts):
    owner = hosts.new("a")
    full(owner)
    owner.release()
    join()
    following = hosts.folder("b")
    loop, taking = asyncio.get_running_loop(), threading.Event()

    def cancelled_meanwhile(method: str, key: str) -> None:
        if method == "replace":
            hosts.objects.plug_in()
            loop.call_soon_threadsafe(waiting.cancel)
            loop.call_soon_threadsafe(taking.set)
            assert taking.wait(10)

    hosts.objects.before = cancelled_meanwhile
    waiting = asyncio.create_task(following.inherit(30.0))
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.to_thread(join)
    assert read_head(hosts.objects, PLACE).owner == ""


def test_a_replaced_owner_writes_nothing_any_more(hosts):
    first = hosts.new()
    full(first)
    second = hosts.taken("b")
    second.append(record(3))
    second.flush()
    bucket = dict(hosts.objects.held)
    first.append(record(3))  # it has not noticed yet
    with pytest.raises(FencedError, match="another coordinator has taken s3://bucket/runs/j over"):
        first.flush()
    with pytest.raises(FencedError):
        first.append(record(4))
    first.bucket_state.renew()
    first.release()
    join()
    assert {key: hosts.objects.held[key] for key in bucket} == bucket
    second.append(record(4))
    second.flush()
    assert read_head(hosts.objects, PLACE).rounds == 5


def test_of_two_that_wait_for_a_silent_owner_one_follows(hosts):
    hosts.new()
    others = [hosts.folder(name) for name in "bcde"]
    tag = others[0].bucket_state.look()[1]
    won = [
        folder
        for folder in others
        if folder._own_copy() and folder._own_home(lambda f=folder: f.bucket_state.seize(tag))
    ]
    assert len(won) == 1


def test_of_two_that_take_a_job_at_the_same_time_one_does(hosts):
    hosts.new()
    first, second = hosts.folder("b"), hosts.folder("c")
    tag = first.bucket_state.look()[1]

    def meanwhile(method: str, key: str) -> None:
        if method == "replace":
            hosts.objects.plug_in()
            assert second._own_copy() and second._own_home(lambda: second.bucket_state.seize(tag))

    hosts.objects.before = meanwhile
    assert first._own_copy()
    assert not first._own_home(lambda: first.bucket_state.seize(tag))
    second.take_over()
    second.append(record(0))
    second.flush()


def test_of_two_that_create_a_job_one_does(hosts):
    first, second = hosts.folder("a"), hosts.folder("b")

    def meanwhile(method: str, key: str) -> None:
        if method == "create":
            hosts.objects.plug_in()
            second.create(SPEC, STATUS)

    hosts.objects.before = meanwhile
    with pytest.raises(AlreadyExistsError, match="created elsewhere"):
        first.create(SPEC, STATUS)
    second.take_over()
    second.append(record(0))
    second.flush()
    with pytest.raises(AlreadyExistsError):
        hosts.folder("c").create(SPEC, STATUS)


# Faults of the network


def test_a_lost_answer_is_no_other_owner(hosts):
    first = hosts.new()
    for lost in (UnreachableError("timeout"), ConflictError("repeated by boto3, and refused")):
        rounds = read_head(hosts.objects, PLACE).rounds
        first.append(record(rounds))

        def lose(method: str, key: str, lost: MarlessError = lost) -> None:
            hosts.objects.plug_in()
            raise lost

        hosts.objects.after = lose
        with contextlib.suppress(UnreachableError):
            first.flush()
        first.flush()
        assert first.settled
        assert read_head(hosts.objects, PLACE).rounds == rounds + 1
    first.append(record(2))
    first.flush()
    assert [each.round for each in hosts.taken("b", after=first).records()] == [0, 1, 2]


def test_a_lost_answer_to_a_takeover(hosts):
    full(hosts.new())
    second = hosts.folder("b")
    tag = second.bucket_state.look()[1]

    def lose(method: str, key: str) -> None:
        hosts.objects.plug_in()
        raise UnreachableError("timeout")

    hosts.objects.after = lose
    assert second._own_copy()
    with pytest.raises(UnreachableError):
        second._own_home(lambda: second.bucket_state.seize(tag))
    again = hosts.folder("b")
    assert again.own()  # it knows its own name
    assert [each.round for each in again.records()] == [0, 1, 2]


def test_what_the_network_refused_is_settled_later(hosts):
    first = hosts.new()
    hosts.objects.unplug()
    first.append(record(0))
    first.save_checkpoint(saved(1), 2)
    for _ in range(2):
        with pytest.raises(UnreachableError):
            first.flush()
        assert not first.settled
    hosts.objects.plug_in()
    first.flush()
    assert first.settled
    second = hosts.taken("b", after=first)
    assert list(second.records()) == [record(0)]
    assert second.checkpoints.rounds() == (1,)


# What the bucket holds


def test_rounds_are_gathered_in_segments_and_these_are_joined(hosts, monkeypatch):
    monkeypatch.setattr(bucket_state, "TAIL_BYTES", 3 * len(record(0).to_json()))
    monkeypatch.setattr(bucket_state, "JOINED", 4)
    first = hosts.new()
    for round_ in range(60):
        first.append(record(round_))
        first.flush()
    head = read_head(hosts.objects, PLACE)
    assert head.rounds == 60
    assert len(head.segments) < 60 / 3 / 2  # each joined one holds four of three rounds
    assert len(head.encoded()) < 20 * len(record(0).to_json())
    pieces = [key for key in hosts.objects.held if key.endswith("rounds.jsonl")]
    assert len(pieces) == len(head.segments)  # those that were joined are gone
    second = hosts.taken("b", after=first)
    assert [each.round for each in second.records()] == list(range(60))
    second.cut(31)
    second.append(record(31))
    second.flush()
    third = hosts.taken("c", after=second)
    assert [each.round for each in third.records()] == list(range(32))


def test_old_checkpoints_and_what_nobody_names_are_deleted(hosts):
    first = hosts.new()
    for round_ in (1, 2, 3):
        first.save_checkpoint(saved(round_), 2)
        first.flush()
    hosts.objects.put(
        PLACE.key(f"{first.bucket_state._owner}-99/checkpoints/round-000009/manifest.json"), b"sent, then killed"
    )
    second = hosts.taken("b")
    assert second.checkpoints.rounds() == (2, 3)
    found = {key.split("/", 3)[3] for key in hosts.objects.held if "checkpoints" in key}
    assert {path.split("/")[1] for path in found} == {"round-000002", "round-000003"}


def test_a_deleted_job_is_gone_everywhere(hosts):
    first = hosts.new()
    full(first)
    other = hosts.folder("b")
    other.refresh()
    assert other.read_status() == STATUS
    first.delete()
    assert not hosts.objects.held
    assert not first.path.exists()
    with pytest.raises(NotFoundError):
        other.refresh()
    assert not other.path.exists()
    with pytest.raises(NotFoundError):
        other.own()
    new = hosts.new("b")
    assert list(new.records()) == []


def test_an_interrupted_deletion_is_no_job(hosts):
    first = hosts.new()
    full(first)

    def stop(method: str, key: str) -> None:
        if method == "delete":
            raise UnreachableError("killed")

    hosts.objects.before = stop
    with pytest.raises(UnreachableError):
        first.delete()
    hosts.objects.plug_in()
    first.release()
    with pytest.raises(NotFoundError):
        hosts.folder("b").refresh()
    assert list(hosts.new("b").records()) == []


def test_what_another_host_runs_is_seen(hosts):
    first = hosts.new()
    full(first)
    other = hosts.folder("b")
    other.refresh()
    assert [each.round for each in other.records()] == [0, 1, 2]
    hosts.objects.calls.clear()
    other.refresh()
    assert hosts.objects.calls == [("get", PLACE.key("head.json"))]
    first.append(record(3))
    first.flush()
    other.refresh()
    assert [each.round for each in other.records()] == [0, 1, 2, 3]
    assert not other.checkpoints.rounds()
    other.refresh(everything)
    assert other.checkpoints.rounds() == (2,)


def test_a_job_that_is_seen_while_its_owner_replaces_an_object_is_not_taken_for_deleted(hosts):
    first = hosts.new()
    full(first)
    other = hosts.folder("b")
    key = next(key for key in hosts.objects.held if key.endswith("spec.yaml"))

    def meanwhile(method: str, asked: str) -> None:
        if asked == key:
            hosts.objects.plug_in()
            first.write_spec(SPEC)
            first.flush()

    hosts.objects.before = meanwhile
    other.refresh()
    assert other.load() == (SPEC, STATUS)
    del hosts.objects.held[next(key for key in hosts.objects.held if key.endswith("spec.yaml"))]
    (other.path / "spec.yaml").unlink()
    with pytest.raises(CorruptError, match=r"there is no such object, and head.json names it"):
        other.refresh(everything)
    assert other.read_status() == STATUS


def test_all_jobs_of_a_place_are_found(hosts):
    hosts.new()
    hosts.objects.put("runs/other/head.json", b"{}")
    hosts.objects.put("runs/a file", b"")
    hosts.objects.put("elsewhere/k/head.json", b"{}")
    runs = BucketRuns(hosts.path / "c", hosts.objects, Address("bucket", "runs"), LEASE_S)
    assert runs.names() == {"j", "other"}


def test_a_round_costs_two_writes_and_no_read(hosts):
    first = hosts.new()
    hosts.objects.calls.clear()
    first.append(record(0))
    first.flush()
    first.write_pending([PENDING])
    first.sync_pending()
    first.flush()
    assert hosts.objects.calls == 2 * [("replace", PLACE.key("head.json"))]


def test_the_head_says_who_owns_the_job(hosts):
    hosts.new()
    head = json.loads(hosts.objects.held[PLACE.key("head.json")])
    assert head["holder"].split()[-1].isdecimal()


class Coordinators(RuleBasedStateMachine):
    """Coordinators on three hosts that are killed, stopped, cut off and replaced at any time: rounds that were
    acknowledged stay, in order, and only the last owner adds to them."""

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory()
        self.hosts = Hosts(Path(self.place.name))
        self.owner = self.hosts.new("a")
        self.stale: list[BucketFolder] = []
        self.acknowledged: list[int] = []
        self.waiting: list[int] = []
        """Written, and not acknowledged yet."""
        self.serial = 0

    def teardown(self) -> None:
        self.hosts.objects.plug_in()
        kill(self.owner)
        join()
        self.place.cleanup()

    @property
    def written(self) -> int:
        return len(self.acknowledged) + len(self.waiting)

    @rule()
    def append(self) -> None:
        self.serial += 1
        self.owner.append(record(self.written, env_steps=self.serial))
        self.waiting.append(self.serial)

    @rule()
    def flush(self) -> None:
        self.owner.flush()
        self.acknowledged, self.waiting = self.acknowledged + self.waiting, []

    @rule(lost=st.booleans())
    def settle_without_network(self, lost: bool) -> None:
        def fail(method: str, key: str) -> None:
            raise UnreachableError("no answer")

        if lost:
            self.hosts.objects.after = fail
        else:
            self.hosts.objects.before = fail
        with contextlib.suppress(UnreachableError):
            self.owner.flush()
        self.hosts.objects.plug_in()

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def cut(self, data) -> None:
        self.flush()
        kept = data.draw(st.integers(0, self.written))
        self.owner.cut(kept)
        self.owner.flush()
        del self.acknowledged[kept:]

    @rule(to=st.sampled_from("abc"), way=st.sampled_from(["killed", "silent", "stopped"]))
    def replace(self, to: str, way: str) -> None:
        if any(folder.path.parent.name == to for folder in self.stale):
            return  # a silent coordinator is still there: its lock keeps others away
        before = self.owner
        if way == "stopped":
            before.release()
            join()
        elif way == "killed" or to == before.path.parent.name:
            kill(before)
        else:
            self.stale.append(before)
        self.owner = self.hosts.taken(to)
        found = [each.env_steps for each in self.owner.records()]
        expected = [*self.acknowledged, *self.waiting]  # a write whose answer was lost may have been applied
        assert expected[: len(found)] == found and len(found) >= len(self.acknowledged)
        self.acknowledged, self.waiting = found, []

    @rule()
    def stale_ones_go_on(self) -> None:
        for folder in self.stale:
            with contextlib.suppress(FencedError):
                folder.append(record(self.written, env_steps=-1))
            with pytest.raises(FencedError):
                folder.bucket_state.note_round("{}")
                folder.flush()
            kill(folder)
        self.stale = []


@pytest.mark.parametrize("examples", [8, pytest.param(300, marks=pytest.mark.slow)])
def test_acknowledged_rounds_stay_whatever_happens(examples, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)
    monkeypatch.setattr(bucket_state, "TAIL_BYTES", 1500)
    monkeypatch.setattr(bucket_state, "JOINED", 3)
    run_state_machine_as_test(
        Coordinators, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None)
    )
