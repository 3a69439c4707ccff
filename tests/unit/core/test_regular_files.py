"""Whatever is in place of a file is read within its limit, or refused in one sentence, at once and without memory."""

import os
import socket
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from marless.core import regular_files
from marless.core.errors import CorruptError, MarlessError, NotFoundError, UnavailableError
from marless.core.limits import MAX_RECORD_BYTES

GIB = 2**30
QUICK_S = 1.0
SMALL_BYTES = 2**20


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    place = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as made:  # by way of the descriptor, as the path may be too long for a socket
        made.bind(f"/proc/self/fd/{place}/{path.name}")
    os.close(place)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _nowhere(path: Path) -> None:
    path.symlink_to("not-there")


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 * GIB)


NO_FILES: dict[str, tuple[Callable[[Path], object], type[MarlessError], str]] = {
    "a pipe": (_pipe, CorruptError, "is a pipe, not a file; remove it"),
    "a socket": (_socket, CorruptError, "is a socket, not a file; remove it"),
    "a device": (_endless, CorruptError, "is a device, not a file; remove it"),
    "a directory": (Path.mkdir, CorruptError, "is a directory, not a file; remove it"),
    "a loop of links": (_loop, CorruptError, "Too many levels of symbolic links; remove the link"),
    "a link to nothing": (_nowhere, NotFoundError, "there is no such file"),
    "nothing": (lambda _: None, NotFoundError, "there is no such file"),
    "10 GB of nothing": (_sparse, CorruptError, "has 10,737,418,240 bytes, and a file of its kind has 100 at most"),
}


@pytest.mark.parametrize("name", NO_FILES)
def test_what_is_no_file_is_refused_at_once_and_named(tmp_path, name):
    make, kind, sentence = NO_FILES[name]
    make(tmp_path / "job.json")
    tracemalloc.start()
    start_s = time.monotonic()
    with pytest.raises(kind) as refused:
        regular_files.read(tmp_path / "job.json", 100)
    assert time.monotonic() - start_s < QUICK_S and tracemalloc.get_traced_memory()[1] < SMALL_BYTES
    tracemalloc.stop()
    assert str(refused.value).startswith(f"{tmp_path}/job.json") and sentence in str(refused.value)


def test_a_file_and_a_link_to_one_are_read(tmp_path):
    (tmp_path / "there").write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to("there")
    for name in ("there", "link"):
        assert regular_files.read(tmp_path / name, 100) == b"x" * 100
        with pytest.raises(CorruptError, match="has 100 bytes, and a file of its kind has 99 at most"):
            regular_files.read(tmp_path / name, 99)


def test_a_pipe_that_takes_the_place_of_a_file_between_two_looks_is_refused(tmp_path, monkeypatch):
    path, opened = tmp_path / "policy", os.open
    path.touch()

    def exchanged(given: Path, flags: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return opened(given, flags)

    monkeypatch.setattr(regular_files.os, "open", exchanged)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CorruptError, match="is a pipe"):
        regular_files.read(path, 100)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_writer_of_a_pipe_is_not_disturbed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorruptError):
        regular_files.opened(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):  # a reader that was there for a moment would have let it in
        os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named_with_the_reason(tmp_path):
    (tmp_path / "file").touch(mode=0o000)
    with pytest.raises(UnavailableError, match="file: Permission denied"):
        regular_files.read(tmp_path / "file", 100)


def test_text_that_is_none_says_which_byte(tmp_path):
    (tmp_path / "spec.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(CorruptError, match=r"spec\.yaml: byte 9 \(0xe9\) is not UTF-8 text"):
        regular_files.text(tmp_path / "spec.yaml", 100)
    (tmp_path / "spec.yaml").write_text("name: café", "utf-8")
    assert regular_files.text(tmp_path / "spec.yaml", 100) == "name: café"


def test_a_line_without_an_end_is_not_read_to_its_end(tmp_path):
    _sparse(tmp_path / "rounds.jsonl")
    with (
        regular_files.opened(tmp_path / "rounds.jsonl") as file,
        pytest.raises(CorruptError, match="a line has more than 67,108,864 bytes"),
    ):
        next(regular_files.lines(file, tmp_path / "rounds.jsonl"))
    assert file.closed or file.tell() <= 2 * MAX_RECORD_BYTES


def test_what_is_there_is_told_from_what_is_not(tmp_path):
    _loop(tmp_path / "loop")
    _nowhere(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    assert all(regular_files.is_there(tmp_path / name) for name in ("loop", "nowhere", "file", "."))
    assert not any(regular_files.is_there(tmp_path / name) for name in ("no", "file/no", "\0", "x" * 300))
    assert regular_files.is_directory(tmp_path)
    assert not any(regular_files.is_directory(tmp_path / name) for name in ("loop", "nowhere", "file", "no"))
