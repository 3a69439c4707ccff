"""What every kind of durable job state does, whoever keeps it: `services/coordinator/state/run_folder.py`."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from marless.core.errors import FencedError
from marless.services.coordinator.state.journal import Costs, Journal
from marless.services.coordinator.state.run_folder import RunFolder
from tests.unit.coordinator.test_bucket_folder import Hosts
from tests.unit.coordinator.test_run_folder import PENDING, SPEC, STATUS, saved
from tests.unit.jobs.test_record import record

WRITES: dict[str, Callable[[RunFolder], None]] = {
    "status": lambda state: state.write_status(STATUS),
    "append": lambda state: state.append(record(1)),
    "cut": lambda state: state.cut(0),
    "pending": lambda state: state.write_pending([PENDING]),
    "drop": lambda state: state.drop_pending(),
    "checkpoint": lambda state: state.save_checkpoint(saved(1), 1),
}


class OnDisk:
    """A run folder on a disk that two coordinators see."""

    def __init__(self, tmp_path):
        self.path = tmp_path / "runs" / "j"

    def new(self) -> RunFolder:
        folder = RunFolder(self.path)
        folder.create(SPEC, STATUS)
        folder.take_over()
        return folder

    def taken(self, after: RunFolder) -> RunFolder:
        """The state as the next owner has it, after this one has left."""
        after.release()
        folder = RunFolder(self.path)
        assert folder.own()
        folder.take_over()
        return folder


class InBucket:
    """A bucket that two machines see, each with a working copy of its own."""

    def __init__(self, tmp_path):
        self.hosts, self.hosts_seen = Hosts(tmp_path), 0

    def new(self) -> RunFolder:
        return self.hosts.new("host-0")

    def taken(self, after: RunFolder) -> RunFolder:
        """The state on another machine, after its owner has left."""
        self.hosts_seen += 1
        return self.hosts.taken(f"host-{self.hosts_seen}", after=after)


@pytest.fixture(params=[OnDisk, InBucket])
def kept(request, tmp_path):
    return request.param(tmp_path)


def test_the_next_owner_finds_what_was_settled(kept):
    first = kept.new()
    for round_ in range(3):
        first.append(record(round_))
    first.write_pending([PENDING])
    first.sync_pending()
    first.save_checkpoint(saved(2), 1)
    first.write_status(replace(STATUS, reason="other"))
    first.flush()
    assert first.settled
    second = kept.taken(first)
    assert second.load() == (SPEC, replace(STATUS, reason="other"))
    assert list(second.records()) == [record(0), record(1), record(2)]
    assert list(second.records(2)) == [record(2)]
    assert second.read_pending(1) == (PENDING,)
    assert second.checkpoints.rounds() == (2,)


def test_what_is_cut_or_dropped_stays_so_for_the_next_owner(kept):
    first = kept.new()
    for round_ in range(3):
        first.append(record(round_))
        first.save_checkpoint(saved(round_), 3)
    first.write_pending([PENDING])
    first.cut(1)
    first.drop_pending()
    first.flush()
    second = kept.taken(first)
    assert list(second.records()) == [record(0)]
    assert second.read_pending(0) == ()
    assert second.checkpoints.rounds() == (0, 1)
    second.append(record(1))
    assert list(second.records()) == [record(0), record(1)]


@pytest.mark.parametrize("write", WRITES)
def test_an_owner_that_has_left_writes_nothing(kept, write):
    first = kept.new()
    first.append(record(0))
    first.flush()
    second = kept.taken(first)
    with pytest.raises(FencedError):
        WRITES[write](first)
    assert list(second.records()) == [record(0)]
    assert second.load() == (SPEC, STATUS)
    assert second.read_pending(0) == () and second.checkpoints.rounds() == ()


def test_leaving_twice_is_safe(kept):
    first = kept.new()
    first.flush()
    first.release()
    first.release()
    with pytest.raises(FencedError):
        first.check_owned()
    kept.taken(first).check_owned()  # and so is a third time, after which the next owner has it


def test_a_journal_reads_either(kept):
    first = kept.new()
    journal = Journal(first, Costs(SPEC, first))
    journal.append(record(0))
    first.flush()
    second = kept.taken(first)
    again = Journal(second, Costs(SPEC, second))
    again.read()
    assert again.history == journal.history == (record(0),)
