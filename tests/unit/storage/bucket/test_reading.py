"""Copies of run folders from a bucket: whole, verified, and no more than is asked for."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from marless.core.errors import CorruptError, NotFoundError
from marless.storage.bucket.head import HEAD, BucketPart, RunHead, Segment, key_of
from marless.storage.bucket.reading import checkpoint, copy, everything, read_head, records, restore, restore_whole
from marless.storage.places import Address
from tests.unit.storage.bucket.memory import MemoryObjects

PLACE = Address("bucket", "runs/j")
CHANGE = "0123456789abcdef-1"
FILES = {
    "spec.yaml": b"spec",
    "checkpoints/round-000010/manifest.json": b"m10",
    "checkpoints/round-000010/p.acting.safetensors": b"a10",
    "checkpoints/round-000020/manifest.json": b"m20",
    "checkpoints/round-000020/p.acting.safetensors": b"a20",
    "checkpoints/round-000020/p.learning.safetensors": b"l20",
    "checkpoints/round-000020/lane-0.carry": b"c20",
}
OLD, NEW = b'{"round": 0}\n{"round": 1}\n', '{"round": 2}'


def part(data: bytes) -> BucketPart:
    return BucketPart(change=CHANGE, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


@pytest.fixture
def objects() -> MemoryObjects:
    objects = MemoryObjects()
    files = {path: part(data) for path, data in FILES.items()}
    for path, data in FILES.items():
        objects.put(PLACE.key(key_of(path, files[path])), data)
    objects.put(PLACE.key(f"{CHANGE}/rounds.jsonl"), OLD)
    head = RunHead(
        owner="", status="{}", pending="p", files=files, segments=(Segment(part=part(OLD), rounds=2),), tail=(NEW,)
    )
    objects.put(PLACE.key(HEAD), head.encoded())
    objects.calls.clear()
    return objects


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_whole_folder(objects, tmp_path):
    copy(objects, PLACE, tmp_path / "j", everything)
    inline = {"job.json": b"{}", "pending.json": b"p", "rounds.jsonl": OLD + NEW.encode() + b"\n"}
    assert content(tmp_path / "j") == FILES | inline


def read(objects: MemoryObjects) -> set[str]:
    return {key.removeprefix(f"runs/j/{CHANGE}/") for method, key in objects.calls if method == "get"} - {
        "runs/j/head.json"
    }


@pytest.mark.parametrize(
    ("choice", "paths"),
    [
        (records, {"spec.yaml", "rounds.jsonl"}),
        (checkpoint(acting_only=True), {"spec.yaml", *(p for p in FILES if "20/manifest" in p or "20/p.acting" in p)}),
        (checkpoint(), {"spec.yaml", *(p for p in FILES if "000020/" in p)}),
        (checkpoint(10, with_records=True), {"spec.yaml", "rounds.jsonl", *(p for p in FILES if "000010/" in p)}),
        (checkpoint(30), {"spec.yaml"}),
        (checkpoint("best"), {"rounds.jsonl", *FILES}),
    ],
)  # fmt: skip
def test_only_what_is_asked_for_is_read(objects, tmp_path, choice, paths):
    copy(objects, PLACE, tmp_path / "j", choice)
    assert read(objects) == paths


def test_what_is_there_already_is_not_read_again(objects, tmp_path):
    copy(objects, PLACE, tmp_path / "j", everything)
    (tmp_path / "j" / "spec.yaml").write_bytes(b"othe")
    with (tmp_path / "j" / "rounds.jsonl").open("ab") as file:
        file.write(b"a line that was never acknowledged\n")
    objects.calls.clear()
    copy(objects, PLACE, tmp_path / "j", everything)
    assert read(objects) == {"spec.yaml"}
    assert content(tmp_path / "j")["rounds.jsonl"] == OLD + NEW.encode() + b"\n"
    assert content(tmp_path / "j")["spec.yaml"] == b"spec"


@pytest.mark.parametrize("path", ["rounds.jsonl", "checkpoints/round-000020/p.acting.safetensors"])
def test_changed_objects_are_refused(objects, tmp_path, path):
    key = PLACE.key(f"{CHANGE}/{path}")
    objects.held[key] = bytes(len(objects.held[key]))
    with pytest.raises(CorruptError, match=f"s3://bucket/{key} was changed after it was written"):
        copy(objects, PLACE, tmp_path / "j", everything)
    assert path not in content(tmp_path / "j")


def test_larger_objects_than_announced_are_refused_unread(objects, tmp_path):
    objects.held[PLACE.key(f"{CHANGE}/spec.yaml")] += b"more"
    with pytest.raises(CorruptError):
        copy(objects, PLACE, tmp_path / "j", everything)


def test_a_running_job_may_drop_its_checkpoints_meanwhile(objects, tmp_path):
    head = read_head(objects, PLACE)
    lost = "checkpoints/round-000010/manifest.json"
    fewer = replace(head, files={path: each for path, each in head.files.items() if "000010" not in path})
    key = PLACE.key(key_of(lost, head.files[lost]))

    def drop(method: str, asked: str) -> None:
        if asked == key:
            objects.held.pop(key, None)
            objects.held[PLACE.key(HEAD)] = fewer.encoded()

    objects.before = drop
    copy(objects, PLACE, tmp_path / "j", everything)
    assert "checkpoints/round-000020/manifest.json" in content(tmp_path / "j")


def test_an_object_that_stays_lost_is_an_error(objects, tmp_path):
    del objects.held[PLACE.key(f"{CHANGE}/spec.yaml")]
    with pytest.raises(NotFoundError):
        copy(objects, PLACE, tmp_path / "j", everything)


def test_a_deleted_job_is_none(objects):
    head = read_head(objects, PLACE)
    objects.held[PLACE.key(HEAD)] = replace(head, deleted=True).encoded()
    assert read_head(objects, PLACE) is None
    assert read_head(objects, Address("bucket", "runs/other")) is None


def test_a_plain_copy_of_a_run_folder(objects, tmp_path):
    plain = MemoryObjects()
    for path, data in {**FILES, "job.json": b"{}", ".stack/secret": b"s", "store/dump.rdb": b"r"}.items():
        plain.put(f"copies/j/{path}", data)
    plain.put("copies/j2/spec.yaml", b"another job's")
    copy(plain, Address("bucket", "copies/j"), tmp_path / "j", everything)
    assert content(tmp_path / "j") == FILES | {"job.json": b"{}"}


def test_a_single_file(tmp_path):
    objects = MemoryObjects()
    objects.put("team.safetensors", b"weights")
    copy(objects, Address("bucket", "team.safetensors"), tmp_path / "team", everything)
    assert (tmp_path / "team").read_bytes() == b"weights"
    with pytest.raises(NotFoundError, match="s3://bucket/nothing: there is no run folder, checkpoint or policy file"):
        copy(objects, Address("bucket", "nothing"), tmp_path / "x", everything)


def test_restoring_says_nothing_of_other_files(objects, tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b"log")
    restore(objects, PLACE, read_head(objects, PLACE), tmp_path)
    assert content(tmp_path)["log.jsonl"] == b"log"


def test_what_is_no_checkpoint_is_neither_taken_for_the_newest_one_nor_removed(objects, tmp_path):
    plain = MemoryObjects()
    copies = {path.replace("000020", "000020-best"): data for path, data in FILES.items()}
    for path, data in {**FILES, **copies, "job.json": b"{}"}.items():
        plain.put(f"copies/j/{path}", data)
    copy(plain, Address("bucket", "copies/j"), tmp_path / "j", checkpoint())
    names = {path.name for path in (tmp_path / "j" / "checkpoints").iterdir()}
    assert names == {"round-000020"}
    mine = tmp_path / "j" / "checkpoints" / "round-000020-best"
    (tmp_path / "j" / "checkpoints" / "round-000020").rename(mine)
    (mine.parent / "round-000030").mkdir()
    restore_whole(objects, PLACE, read_head(objects, PLACE), tmp_path / "j")
    names = {path.name for path in mine.parent.iterdir()}
    assert names == {"round-000010", "round-000020", "round-000020-best"} and list(mine.iterdir())
