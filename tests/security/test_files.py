"""Directories that everybody may write to, such as /tmp and /dev/shm: what others have put there is neither used,
changed nor removed, and nothing of ours is ever open to them."""

import json
import os
import stat
from dataclasses import asdict
from pathlib import Path

import pytest

from marless.app.cli.doctor import services
from marless.app.cli.doctor.examination import _spool
from marless.app.cli.stack import LocalStack
from marless.app.client.connection import find_coordinator
from marless.app.client.transfers import Arriving
from marless.core.errors import SpecError, UnavailableError
from marless.jobs import spec
from marless.learning.data.frame_file import FrameFile
from marless.learning.data.frames import ReplaySchema
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.runs import Index, Runs
from marless.services.coordinator.state.status import JobStatus
from marless.services.learner_pool.replays import Replays
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer
from marless.services.param_store import redis_server
from marless.services.param_store.redis_server import RedisOptions, provided
from tests.scripted_env import ScriptedEnv

PLENTY = 2**20
SPEC = spec.parse({"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 1}}, "spec")
STATUS = JobStatus(job="evil", state="PENDING", reason="accepted", accepted_s=5.0)
STRANGER = 65534
OURS = f"marless-{os.getuid()}"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


@pytest.fixture
def shared(tmp_path) -> Path:
    """A directory like /tmp."""
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    return directory


@pytest.fixture
def precious(tmp_path) -> Path:
    """A directory of ours whose content an attacker would like to have changed."""
    directory = tmp_path / "precious"
    directory.mkdir()
    directory.chmod(0o755)
    for name in ("lock", "file"):
        (directory / name).write_text("precious")
        os.utime(directory / name, (0, 0))
    os.utime(directory, (0, 0))
    return directory


@pytest.fixture(autouse=True)
def untouched(precious):
    yield
    assert {path.name: path.read_text() for path in precious.iterdir()} == {"lock": "precious", "file": "precious"}
    assert stat.S_IMODE(precious.stat().st_mode) == 0o755


def strangers(path: Path, *, mode: int = 0o777) -> Path:
    """A directory of another user."""
    path.mkdir(parents=True)
    path.chmod(mode)
    os.chown(path, STRANGER, STRANGER)
    return path


def replays(spool: Path) -> Replays:
    buffer = TrajectoryBuffer(spool, PLENTY)
    return Replays(spool, "unix:/store", buffer, keep_s=60.0)


# Spools and replays


@as_root
def test_sweeping_spools_follows_no_link_and_leaves_what_is_anothers(shared, precious):
    evil = strangers(shared / "marless-spool-evil")
    (evil / "lock").symlink_to(precious / "lock")
    theirs = strangers(shared / "marless-spool-theirs")
    (theirs / "lock").touch()
    (shared / "marless-spool-link").symlink_to(precious)
    TrajectoryBuffer(shared, PLENTY).shutdown()
    assert (evil / "lock").is_symlink()
    assert (theirs / "lock").exists()
    assert (shared / "marless-spool-link").is_symlink()


def test_a_lock_that_is_a_hard_link_is_not_cut_short(shared, precious):
    spool = shared / "marless-spool-hard"
    spool.mkdir()
    (spool / "lock").hardlink_to(precious / "lock")
    TrajectoryBuffer(shared, PLENTY).shutdown()


def test_sweeping_replays_follows_no_link(shared, precious):
    (shared / "marless-replay-evil").symlink_to(precious)
    replays(shared).shutdown()


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_no_spool_in_a_directory_that_another_made_in_advance(shared, mode):
    strangers(shared / OURS, mode=mode)
    said = rf"spool directory .*{OURS}.* belongs to .*\(nobody|65534\).*choose another with --spool"
    for make in (lambda: TrajectoryBuffer(shared, PLENTY), lambda: replays(shared)):
        with pytest.raises(UnavailableError, match=said):
            make()
    assert list((shared / OURS).iterdir()) == []


def test_no_spool_in_a_directory_that_is_a_link(shared, precious):
    (shared / OURS).symlink_to(precious)
    with pytest.raises(UnavailableError, match="is a symbolic link"):
        TrajectoryBuffer(shared, PLENTY)


def test_no_spool_in_a_directory_that_others_may_write_to(shared):
    (shared / OURS).mkdir()
    (shared / OURS).chmod(0o777)
    with pytest.raises(UnavailableError, match="others may write to it"):
        TrajectoryBuffer(shared, PLENTY)


def test_what_lies_in_a_shared_spool_is_for_this_user_alone(shared):
    held = replays(shared)
    held.open("job", {"team": 10})
    for path in (shared / OURS).rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or path.parent.stat().st_mode & 0o077 == 0, path
    assert [path.name for path in shared.iterdir()] == [OURS]
    assert stat.S_IMODE((shared / OURS).stat().st_mode) == 0o700
    assert replays(shared).held_bytes == 10


@as_root
def test_a_replay_in_the_place_of_ours_is_not_taken_for_it(shared):
    name = replays(shared)._directory.name
    evil = strangers(shared / name)
    (evil / "job@team").write_bytes(b"evil")
    held = replays(shared)
    held.open("job", {"team": 4})
    assert held.path("job", "team").read_bytes() == bytes(4)
    assert (evil / "job@team").read_bytes() == b"evil"


def test_replays_of_before_are_found_at_their_new_place(shared):
    name = replays(shared)._directory.name
    (shared / OURS / name).rmdir()
    before = shared / name
    before.mkdir(mode=0o700)
    (before / "job@team").write_bytes(b"kept")
    held = replays(shared)
    held.open("job", {"team": 4})
    assert held.path("job", "team").read_bytes() == b"kept"
    assert not before.exists()


def test_spools_of_before_whose_pool_is_gone_are_removed(shared):
    left = shared / "marless-spool-left"
    left.mkdir(mode=0o700)
    (left / "lock").touch()
    (left / "0").write_bytes(b"x")
    TrajectoryBuffer(shared, PLENTY).shutdown()
    assert not left.exists()


def test_a_replay_is_not_written_through_a_link(tmp_path):
    schema = ReplaySchema(ScriptedEnv().spaces, (0,), with_state=False)
    target = tmp_path / "target"
    target.write_bytes(bytes(schema.file_bytes(3)))
    path = tmp_path / "replay"
    path.symlink_to(target)
    frames = FrameFile(schema, 3, path)
    frames.own()
    for array in frames.arrays.values():
        array[:] = 1
    assert target.read_bytes() == bytes(schema.file_bytes(3))
    assert not path.is_symlink()


@as_root
def test_doctor_says_so(shared, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    monkeypatch.setenv("MARLESS_SPOOL", str(shared))
    strangers(shared / OURS)
    for finding in (_spool(), services.sockets(Path("/data"), services.bind_unix)):
        assert finding.level == "fail"
        assert "it belongs to another user" in finding.found


# Sockets, the store's data, and who uses them


@pytest.fixture
def stack(tmp_path, shared, monkeypatch) -> LocalStack:
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    return LocalStack(runs=tmp_path / "runs", logs=tmp_path / "logs", data=tmp_path / "data")


async def refused(stack: LocalStack, why: str) -> None:
    with pytest.raises(UnavailableError, match=why):
        async with stack:
            pass
    assert not stack._services


async def test_no_sockets_where_a_link_leads(stack, shared, precious):
    (shared / OURS).symlink_to(precious)
    await refused(stack, "is a symbolic link")


@as_root
async def test_no_sockets_in_a_directory_that_another_made_in_advance(stack, shared):
    evil = strangers(shared / OURS)
    await refused(stack, f"{OURS}: it belongs to ")
    assert stat.S_IMODE(evil.stat().st_mode) == 0o777


@as_root
@pytest.mark.parametrize("name", ["owner", "services"])
async def test_no_lock_of_anothers(stack, precious, name):
    stack._data.mkdir()
    (stack._data / name).symlink_to(precious / "file")
    await refused(stack, "is a symbolic link")


@as_root
async def test_no_data_below_what_is_anothers_in_a_shared_directory(shared, tmp_path, precious):
    strangers(shared / "theirs")
    (shared / "link").symlink_to(precious)
    os.chown(shared / "link", STRANGER, STRANGER, follow_symlinks=False)
    for name in ("theirs", "link"):
        data = shared / name / "data"
        await refused(LocalStack(runs=tmp_path, logs=tmp_path / "logs", data=data), f"{name}: it belongs to ")
        with pytest.raises(SpecError, match=rf"{name} cannot be used \(it belongs to .*give another --data-dir"):
            async with provided(RedisOptions(data_dir=str(data))):
                pass
        assert not data.exists()


async def test_our_own_links_are_followed_on_the_way(shared, tmp_path, monkeypatch):
    monkeypatch.setattr(redis_server.LocalRedis, "running", lambda self: pytest.fail("far enough"))
    (tmp_path / "large").mkdir()
    (shared / "link").symlink_to(tmp_path / "large")
    with pytest.raises(pytest.fail.Exception, match="far enough"):
        async with provided(RedisOptions(data_dir=str(shared / "link" / "data"))):
            pass
    assert (tmp_path / "large" / "data" / "redis").is_dir()


@pytest.mark.parametrize("link", ["redis", "redis/lock", "redis/redis.log"])
async def test_no_redis_through_a_link(tmp_path, precious, link):
    path = tmp_path / "data" / link
    path.parent.mkdir(parents=True)
    path.symlink_to(precious if link == "redis" else precious / "lock")
    with pytest.raises((SpecError, UnavailableError), match="symbolic link"):
        async with provided(RedisOptions(data_dir=str(tmp_path / "data"))):
            pass


@as_root
async def test_no_socket_of_redis_in_a_directory_that_another_made_in_advance(shared, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    strangers(shared / OURS)
    with pytest.raises(SpecError, match=rf"{OURS} cannot be used \(it belongs to "):
        async with provided(RedisOptions(data_dir=str(tmp_path / ("d" * 120)))):
            pass


# Run folders, and who says where the coordinator is


@as_root
def test_no_runs_in_a_directory_that_another_made_in_advance(shared):
    strangers(shared / "runs")
    with pytest.raises(UnavailableError, match=r"runs directory .*: it belongs to another user"):
        Index(Runs(shared / "runs")).prepare()


@as_root
async def test_a_run_folder_of_another_is_neither_listed_nor_run(shared, precious):
    evil = strangers(shared / "evil")
    (evil / "job.json").write_text(json.dumps(asdict(STATUS)))
    (shared / "link").symlink_to(precious)
    os.chown(shared / "link", STRANGER, STRANGER, follow_symlinks=False)
    assert await Index(Runs(shared)).look(lambda job: False) == []
    for name in ("evil", "link"):
        with pytest.raises(UnavailableError, match="it belongs to another user"):
            RunFolder(shared / name).own()
        with pytest.raises(UnavailableError, match="it belongs to another user"):
            await RunFolder(shared / name).inherit(1.0)
        with pytest.raises(UnavailableError, match="it belongs to another user"):
            RunFolder(shared / name).create(SPEC, STATUS)


@as_root
def test_a_coordinator_that_another_names_is_not_called(shared):
    strangers(shared / "runs" / ".stack")
    (shared / "runs" / ".stack" / "stack.json").write_text('{"coordinator": "unix:/evil"}')
    os.chown(shared / "runs", STRANGER, STRANGER)
    with pytest.raises(UnavailableError, match="it belongs to another user"):
        find_coordinator(runs=shared / "runs")


@as_root
def test_a_coordinator_whose_socket_another_has_put_in_its_place_is_not_called(shared, tmp_path):
    strangers(shared / OURS)
    (tmp_path / ".stack").mkdir()
    (tmp_path / ".stack" / "stack.json").write_text(f'{{"coordinator": "unix:{shared}/{OURS}/0a/coordinator.sock"}}')
    with pytest.raises(UnavailableError, match=f"{OURS}: it belongs to another user"):
        find_coordinator(runs=tmp_path)


def test_a_download_is_not_written_through_a_link(shared, precious):
    (shared / ".weights.partial").symlink_to(precious / "file")
    with Arriving(shared / "weights") as file:
        file.take(memoryview(b"new"))
        file.keep()
    assert (shared / "weights").read_bytes() == b"new"
    assert not (shared / "weights").is_symlink()
    assert stat.S_IMODE((shared / "weights").stat().st_mode) == 0o644
