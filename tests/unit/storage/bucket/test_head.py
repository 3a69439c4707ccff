"""head.json: what is written is read back, and nothing else is."""

import json

import pytest

from marless.core.errors import CorruptError
from marless.storage.bucket.head import BucketPart, RunHead, Segment, is_path, key_of

PART = BucketPart(change="0123456789abcdef-7", bytes=3, sha256="a" * 64)
HEAD = RunHead(
    owner="0123456789abcdef",
    holder="host 7",
    serial=9,
    status='{"job": "j"}',
    pending="{}",
    files={"spec.yaml": PART, "checkpoints/round-000050/manifest.json": PART, "checkpoints/round-000007/x": PART},
    segments=(Segment(part=PART, rounds=4),),
    tail=('{"round": 4}', '{"round": 5}'),
)


def test_a_head_is_read_back():
    assert RunHead.parse(HEAD.encoded(), "x") == HEAD
    assert HEAD.rounds == 6
    assert HEAD.checkpoints == (50,)  # without its manifest, a checkpoint is none
    assert key_of("spec.yaml", PART) == "0123456789abcdef-7/spec.yaml"


def changed(**fields) -> bytes:
    return json.dumps({**json.loads(HEAD.encoded()), **fields}).encode()


def part(**fields) -> dict:
    return {"change": PART.change, "bytes": 3, "sha256": PART.sha256, **fields}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 10_000,
        changed(format=2),
        changed(owner=7),
        changed(serial=-1),
        changed(serial=True),
        changed(deleted=1),
        changed(more=1),
        changed(tail=["a\nb"]),
        changed(tail=[1]),
        changed(segments=[{"part": part(), "rounds": -1}]),
        changed(files={"a": part(bytes=10**11)}),
        changed(files={"a": part(bytes="3")}),
        changed(files={"a": part(sha256="A" * 64)}),
        changed(files={"a": part(change="../../other")}),
        changed(files={"a": part(key="x")}),
        changed(files={"../../etc/passwd": part()}),
        changed(files={"owner.lock": part()}),
        changed(files={str(i): part() for i in range(2**14 + 1)}),
    ],
    ids=lambda data: data[:20].decode(errors="replace") + str(len(data)),
)
def test_what_marless_did_not_write_is_refused(data):
    with pytest.raises(CorruptError, match="s3://b/j: not a run folder that marless wrote"):
        RunHead.parse(data, "s3://b/j")


@pytest.mark.parametrize(
    "path", ["", "/a", "a//b", "a/", "..", "a/../b", ".stack/x", "a/.b", "store/x", "a\\b", "a\nb", "é" * 200]
)
def test_paths_that_lead_elsewhere(path):
    assert not is_path(path)


def test_paths_of_run_folders():
    assert all(
        map(is_path, ("spec.yaml", "checkpoints/round-000001/pursuer 0.acting.safetensors", "start/manifest.json"))
    )
