"""Replay files of a learner pool: they come back with their job, go with it, and never exceed the spool's limit."""

import errno
import os
import time

import pytest
from structlog.testing import capture_logs

from marless.core.errors import OverloadedError, TooLargeError, UnavailableError
from marless.services.learner_pool.replays import Replays
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer

LIMIT = 1000


@pytest.fixture
def buffer(tmp_path):
    buffer = TrajectoryBuffer(tmp_path, LIMIT)
    yield buffer
    buffer.shutdown()


@pytest.fixture
def pool(buffer, tmp_path):
    """Makes a pool as it is after a (re)start."""

    def make(owner: str = "unix:/store", keep_s: float = 3600.0) -> Replays:
        return Replays(tmp_path, owner, buffer, keep_s)

    return make


def report(**counts: float) -> dict[str, dict[str, float]]:
    return {"replay.team": {"size": 5.0, "inserted": 0.0, "dropped": 0.0, "lost": 0.0, "drawn": 0.0} | counts}


def aged(path) -> None:
    os.utime(path, (0, 0))


def test_a_file_for_each_scope_is_there_and_counts(pool, buffer):
    replays = pool()
    replays.open("job", {"scout": 100, "a/b": 200})
    assert [replays.path("job", scope).stat().st_size for scope in ("scout", "a/b")] == [100, 200]
    assert (replays.held_bytes, buffer.budget.free_bytes) == (300, 700)
    assert replays.path("job", "team") is None


def test_who_remembers_nothing_gets_no_file(pool):
    replays = pool()
    replays.open("job", {})
    assert (replays.path("job", "team"), replays.held_bytes) == (None, 0)


def test_it_outlives_its_pool_and_is_left_as_it_is(pool, buffer):
    before = pool()
    before.open("job", {"team": 100})
    before.path("job", "team").write_bytes(b"x" * 100)
    after = pool()
    assert buffer.budget.free_bytes == LIMIT - 100, "what is left from before does not count"
    after.open("job", {"team": 100})
    assert after.path("job", "team").read_bytes() == b"x" * 100


def test_pools_of_two_stores_do_not_share_files(pool):
    one, other = pool("unix:/one"), pool("unix:/other")
    one.open("job", {"team": 100})
    other.open("job", {"team": 100})
    assert one.path("job", "team") != other.path("job", "team")
    one.close("job")
    assert other.path("job", "team").exists()


def test_closing_a_job_removes_its_files_and_what_was_half_made(pool, buffer):
    replays = pool()
    replays.open("job", {"team": 100})
    replays.open("job-2", {"team": 100})
    path = replays.path("job", "team")
    path.with_name(f"{path.name}.0a1b").write_bytes(b"half")
    for _ in range(2):
        replays.close("job")
        assert not list(path.parent.glob("job@*"))
        assert buffer.budget.free_bytes == LIMIT - 100


def test_forgetting_a_job_keeps_its_files(pool):
    replays = pool()
    replays.open("job", {"team": 100})
    path = replays.path("job", "team")
    replays.evict("job")
    assert path.exists()
    assert replays.path("job", "team") is None


def test_what_nobody_used_for_long_goes_unless_its_job_is_open(pool, tmp_path):
    gone, here = pool("unix:/gone"), pool()
    for replays, job in ((gone, "old"), (gone, "new"), (here, "open"), (here, "left")):
        replays.open(job, {"team": 10})
        if job != "new":
            aged(replays.path(job, "team"))
    here.evict("left")
    gone.shutdown()
    here.open("another", {})
    names = sorted(path.name for path in tmp_path.glob("marless-replay-*/*"))
    assert names == ["new@team", "open@team"]
    gone.close("new")
    for directory in tmp_path.glob("marless-replay-*"):
        aged(directory)
    here.open("another", {})
    assert len(list(tmp_path.glob("marless-replay-*"))) == 1, "an empty directory is left"
    gone.open("new", {"team": 10})
    assert gone.path("new", "team").exists()


def test_a_clock_that_jumps_removes_nothing_of_a_pool_that_lives(pool, tmp_path):
    lives, other = pool("unix:/lives"), pool()
    lives.open("job", {"team": 10})
    aged(lives.path("job", "team"))
    other.open("another", {})
    pool("unix:/third")
    assert lives.path("job", "team").exists()
    lives.shutdown()
    other.open("another", {})
    assert list(tmp_path.glob("marless-replay-*/*")) == []


def test_a_file_counts_as_used_when_its_job_is_opened_and_at_each_update(pool):
    for use in (lambda replays: replays.open("job", {"team": 10}), lambda replays: replays.used("job", report())):
        replays = pool()
        replays.open("job", {"team": 10})
        path = replays.path("job", "team")
        aged(path)
        use(replays)
        replays.evict("job")
        pool()
        assert path.exists()


def test_what_no_job_has_open_gives_way_the_longest_unused_first(pool):
    replays = pool()
    for job in ("a", "b", "c"):
        replays.open(job, {"team": 300})
    for job, before_s in (("b", 20.0), ("a", 10.0)):
        used_s = time.time() - before_s
        os.utime(replays.path(job, "team"), (used_s, used_s))
        replays.evict(job)
    with capture_logs() as logs:
        replays.open("d", {"team": 350})
    assert [(entry["event"], entry["file"]) for entry in logs] == [("replay.removed", "b@team")]
    with pytest.raises(OverloadedError, match=r"job e: the replay of team takes 800 bytes.*350 left.*--spool-bytes"):
        replays.open("e", {"team": 800})
    with pytest.raises(TooLargeError, match=r"job f: the replay of team takes 1,001 bytes, and the spool holds 1,000"):
        replays.open("f", {"team": LIMIT + 1})


def test_trajectories_leave_less_room(pool, buffer):
    buffer.budget.hold("job", 900)
    with pytest.raises(OverloadedError, match="100 left"):
        pool().open("job", {"team": 101})


def test_a_full_disk_is_said_when_a_job_is_opened(pool, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    replays = pool()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UnavailableError, match=r"No space left on device; give it room"):
        replays.open("job", {"team": 100})


def test_a_spool_that_cannot_be_written_is_named(buffer, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match=r"spool directory .*file"):
        Replays(tmp_path / "file", "unix:/store", buffer, 1.0)


def test_samples_are_counted_as_reports_grow(pool):
    replays = pool()
    replays.open("job", {"team": 10})
    replays.used("job", report(inserted=5, drawn=3))
    replays.used("job", report(inserted=9, dropped=2, drawn=6) | {"agent_0": {"loss": 1.0}})
    assert replays.samples == {"inserted": 9, "dropped": 2, "lost": 0, "drawn": 6}


def test_a_pool_counts_from_its_start_on(pool):
    pool().open("job", {"team": 10})
    replays = pool()
    replays.open("job", {"team": 10})
    replays.used("job", report(inserted=500))
    replays.used("job", report(inserted=505))
    assert replays.samples["inserted"] == 5


def test_a_loss_is_a_warning_with_its_numbers(pool):
    replays = pool()
    replays.open("job", {"team": 10})
    with capture_logs() as logs:
        replays.used("job", report(inserted=500, lost=400))  # the host was rebooted: the file is new, the job is not
        replays.used("job", report(inserted=505, lost=400))
    assert logs == [
        {"event": "replay.lost", "log_level": "warning", "job": "job", "scope": "team", "lost": 400, "size": 5}
    ]
    assert replays.samples == {"inserted": 5, "dropped": 0, "lost": 400, "drawn": 0}
