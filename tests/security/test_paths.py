"""A spec that arrives over the wire names no path: the coordinator reads no file for whoever submits a job."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml

from marless.app.client import AsyncClient
from marless.core.errors import CorruptError, MarlessError, NotFoundError, OverloadedError, SpecError
from marless.core.limits import MAX_MANIFEST_BYTES
from marless.core.state import PolicyState
from marless.jobs import spec as specs
from marless.learning.nets import serial
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.server import serving
from marless.rpc.v1 import coordinator_pb2 as pb
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from marless.services.coordinator import __main__ as coordinator
from marless.services.coordinator.config import parse
from marless.services.coordinator.state import uploads
from marless.services.coordinator.state.uploads import FileUploads
from marless.storage.checkpoint import (
    MANIFEST,
    PARTS,
    Checkpoint,
    CheckpointProgress,
    DiskCheckpoints,
    Manifest,
    SavedPolicy,
    read,
)
from tests.integration.running import DOCUMENT
from tests.plugins.minions import made as minions

CANARY = "canary-9f8e7d6c5b4a"
LIMIT = 2**20


@pytest.fixture
def secret(tmp_path) -> Path:
    """A file that the coordinator can read and its callers may not."""
    path = tmp_path / "secret.yaml"
    path.write_text(f"password: {CANARY}\nlambda: {CANARY}\n", "utf-8")
    return path


@pytest.fixture
async def address(tmp_path) -> AsyncIterator[str]:
    """A real coordinator, with nothing behind it."""
    peers = (f"--{name}=unix:{tmp_path}/no.sock" for name in ("actor-pool", "learner-pool", "param-store"))
    given = ["--listen", f"unix:{tmp_path}/c.sock", "--runs", str(tmp_path / "runs"), "--uploads-bytes", str(LIMIT)]
    config = parse([*given, *peers])
    async with serving(config.server, lambda at: coordinator.build(config, at)) as at:
        yield at


async def refused(address: str, document: object) -> str:
    """What the coordinator says to a spec that must not work."""
    peer = Peer(address, Security())
    request = pb.SubmitJobRequest(job="job", spec_json=json.dumps(document))
    try:
        with pytest.raises(MarlessError) as caught:
            await peer.call(CoordinatorServiceStub(peer.channel).SubmitJob, request)
    finally:
        await peer.close()
    assert isinstance(caught.value, SpecError), caught.value
    assert CANARY not in str(caught.value) + caught.value.detail
    return str(caught.value)


async def test_prices_by_path_are_refused_unread(address, secret):
    for stop in (DOCUMENT["stop"], {"cost_usd": 1}):
        said = await refused(address, DOCUMENT | {"bill": {"prices": str(secret)}, "stop": stop})
        assert "bill.prices: got" in said


async def test_the_client_sends_the_contents_of_a_price_file(address, tmp_path):
    prices = tmp_path / "mine.yaml"
    prices.write_text("backend: fargate\nredis: {date: 2026-01-02, nodes: {mine: 0.5}}\n", "utf-8")
    held = {"backend": "fargate", "redis": {"date": "2026-01-02", "nodes": {"mine": 0.5}}}
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(DOCUMENT), "utf-8")
    async with AsyncClient(address, token="", tls_ca="") as client:
        by_path = DOCUMENT | {"bill": {"prices": str(prices)}}
        for name, given in (("by-path", by_path), ("by-contents", DOCUMENT | {"bill": {"prices": held}})):
            await client.submit(given, job=name)
        await client.submit(job, job="by-file", overrides=[f"bill.prices={prices}"])
        for name in ("by-path", "by-contents", "by-file"):
            accepted = yaml.safe_load((tmp_path / "runs" / name / "spec.yaml").read_text("utf-8"))
            assert accepted["bill"]["prices"] == held


@pytest.mark.parametrize("number", ["1E+999999999", "1E-999999999", "9" * 50, "NaN", "-1", 1e300, float("inf")])
def test_a_price_is_a_number_that_can_be_written_out(number):
    with pytest.raises(SpecError, match=r"bill\.prices.*redis.*nodes.*x"):
        specs.parse(DOCUMENT | {"bill": {"prices": {"redis": {"nodes": {"x": number}}}}}, "spec")


def test_a_recorded_spec_reads_no_file(tmp_path, secret):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT | {"bill": {"prices": str(secret)}}), "utf-8")
    with pytest.raises(SpecError) as caught:
        specs.load_resolved(path)
    assert CANARY not in str(caught.value)


async def test_a_scheduler_by_path_is_refused_and_one_here_is_sent(address, tmp_path):
    directory = minions.saved(tmp_path / "scheduler", minions.scheduler(of=minions.task(max_actors=2)))
    by_path = DOCUMENT | {"scaling": {"name": "minions", "scheduler": str(directory)}}
    for there in (directory, tmp_path / "nothing"):
        section = {"name": "minions", "scheduler": str(there)}
        assert "scaling.scheduler: got" in await refused(address, DOCUMENT | {"scaling": section})
    async with AsyncClient(address, token="", tls_ca="") as client:
        await client.submit(by_path, job="a")
        held = yaml.safe_load((tmp_path / "runs" / "a" / "spec.yaml").read_text("utf-8"))["scaling"]["scheduler"]
        assert held["sha256"] == hashlib.sha256((directory / "best.safetensors").read_bytes()).hexdigest()
        for damage in (
            {"sha256": "0" * 64},
            {"weights": ["AAAA"]},
            {"weights": ["!"]},
            {"weights": []},
            {"features": {}},
        ):
            said = await refused(address, DOCUMENT | {"scaling": {"name": "minions", "scheduler": held | damage}})
            assert said.startswith("scaling.scheduler: ")


@pytest.mark.parametrize("uri", ["http://169.254.169.254/", "file:///etc", "sqlite:////tmp/x.db", "./mlruns", "x:y"])
async def test_a_sink_goes_where_the_operator_says(address, uri, monkeypatch):
    monkeypatch.setattr("marless.jobs.sinks.base.find_spec", lambda _: "installed")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", CANARY)
    for usual in ("", "https://ours"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", usual)
        said = await refused(address, DOCUMENT | {"sinks": [{"name": "mlflow", "tracking_uri": uri}]})
        assert "that tracking_uri is not allowed" in said


def saved(folder: Path, **changes: object) -> Path:
    """A run folder with a checkpoint that the job of these tests can start from; returns the checkpoint's directory."""
    weights = {f"policy.{i}.weight": np.zeros(shape, np.float32) for i, shape in enumerate([(8, 1), (1, 8)])}
    state = PolicyState(weights, {}, {"activation": "tanh"})
    blobs = dict(zip(PARTS, serial.encode(state), strict=True))
    groups = {f"agent_{i}": (f"agent_{i}",) for i in range(2)}
    policies = {name: SavedPolicy(version=2, blobs=blobs) for name in groups}
    known = {"round": 4, "env_steps": 7, "seed": 3, "actors": 2, "algorithm": "ippo", "groups": groups}
    DiskCheckpoints(folder / "checkpoints").save(
        Checkpoint(progress=CheckpointProgress(**known | changes), policies=policies), keep=1
    )
    return folder / "checkpoints" / "round-000004"


PATHS = ("/etc", "..", ".", "../secret", "./source", "source/checkpoints", "~", "file:///etc", "a\x00b", "a/../../b")


@pytest.mark.parametrize("reference", PATHS)
async def test_a_job_starts_from_no_path(address, tmp_path, reference):
    saved(tmp_path / "source")
    for path in (reference, str(tmp_path / "source"), str(tmp_path / "nothing")):
        said = await refused(address, DOCUMENT | {"start": {"checkpoint": path}})
        assert "a coordinator opens no path" in said  # the same, whether there is something or not


async def test_a_checkpoint_here_is_sent_and_one_of_a_job_is_named(address, tmp_path, monkeypatch):
    source = saved(tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    async with AsyncClient(address, token="", tls_ca="") as client:
        for job, reference in (("a", "./source"), ("b", str(source)), ("c", "source/checkpoints/round-000004")):
            await client.submit(DOCUMENT | {"start": {"checkpoint": reference}}, job=job)
            begun = tmp_path / "runs" / job
            assert read(begun / "start") == read(source)
            written = yaml.safe_load((begun / "spec.yaml").read_text("utf-8"))["start"]["checkpoint"]
            assert written.startswith("upload:")
            assert not (tmp_path / "runs" / uploads.DIRECTORY).exists()  # the job has taken it
        saved(tmp_path / "runs" / "done")
        await client.submit(DOCUMENT | {"start": {"checkpoint": "done"}}, job="d")
        assert read(tmp_path / "runs" / "d" / "start") == read(source)
        for wrong, sentence in (("source", r"no job 'source' here.*: \./source"), ("./none", "nor a directory here")):
            with pytest.raises(SpecError, match=sentence):
                await client.submit(DOCUMENT | {"start": {"checkpoint": wrong}}, job="e")


async def test_an_upload_that_another_job_has_taken_is_sent_again(address, tmp_path, monkeypatch):
    saved(tmp_path / "source")
    real, taken = FileUploads.find, []

    def find(self: FileUploads, reference: str) -> Path:
        if not taken:
            taken.append(reference)
            self.discard(reference)
        return real(self, reference)

    monkeypatch.setattr(FileUploads, "find", find)
    async with AsyncClient(address, token="", tls_ca="") as client:
        await client.submit(DOCUMENT | {"start": {"checkpoint": str(tmp_path / "source")}}, job="a")
    assert taken
    assert read(tmp_path / "runs" / "a" / "start").progress.round == 4


async def sent(address: str, sizes: Sequence[int], data: bytes) -> str:
    peer = Peer(address, Security())
    header = pb.CheckpointHeader(manifest_bytes=sizes[0], file_bytes=sizes[1:])
    method = "CoordinatorService/UploadCheckpoint"
    try:
        return (await peer.send(method, header, [data], pb.UploadCheckpointResponse)).checkpoint
    finally:
        await peer.close()


def contents(directory: Path) -> tuple[list[int], bytes]:
    manifest = (directory / MANIFEST).read_bytes()
    files = [(directory / file.name).read_bytes() for file in Manifest.parse(manifest, "").files]
    return [len(each) for each in (manifest, *files)], b"".join([manifest, *files])


NAMES = ("../../evil", "/evil", "evil/b", ".", "..", "evil\x00", "evil" * 99)


async def test_only_a_checkpoint_can_be_uploaded(address, tmp_path):
    sizes, data = contents(saved(tmp_path / "source"))
    honest = json.loads(data[: sizes[0]])

    def manifest(policy: str, part: str, **changes: object) -> tuple[list[int], bytes]:
        entry = {"version": 1, "sha256": {part: hashlib.sha256(b"x").hexdigest()}}
        text = json.dumps(honest | {"policies": {policy: entry}} | changes).encode()
        return [len(text), 1], text + b"x"

    for attack, kind in (
        ((sizes, data[:-1] + b"x"), CorruptError),
        (([*sizes[:-1], sizes[-1] - 1, 1], data), CorruptError),
        ((sizes[:1], data[: sizes[0]]), CorruptError),
        ((sizes, data + b"x"), CorruptError),
        (([7], b"[1, 2]!"), CorruptError),
        (([100_000], b"[" * 100_000), CorruptError),
        (manifest("p", "../evil"), CorruptError),
        (manifest("p", "acting", round="evil"), CorruptError),
        (manifest("p", "acting", round=-1), CorruptError),
        (manifest("p", "acting", evil=1), CorruptError),
        (manifest("p", "acting", groups=[]), CorruptError),
        *((manifest(name, "acting"), CorruptError) for name in NAMES),
        (([-1, 5], b"x" * 4), SpecError),
        (([LIMIT, LIMIT], b""), SpecError),
        (([2**62, 2**62], b""), SpecError),
        (([1] * 20_000, b"x" * 20_000), SpecError),
    ):
        with pytest.raises(kind):
            await sent(address, *attack)
    assert not list(tmp_path.rglob("*evil*"))
    assert not list((tmp_path / "runs" / uploads.DIRECTORY).glob("*"))
    assert await sent(address, sizes, data) == await sent(address, sizes, data)
    assert len(list((tmp_path / "runs" / uploads.DIRECTORY).iterdir())) == 1  # and nothing of the second attempt


async def test_uploads_that_nobody_takes_are_bounded_private_and_go(address, tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "MOST_KEPT", 3)
    there = tmp_path / "runs" / uploads.DIRECTORY
    for seed in range(3):
        await sent(address, *contents(saved(tmp_path / f"source-{seed}", seed=seed)))
    assert len(list(there.iterdir())) == 3
    assert there.stat().st_mode & 0o077 == 0
    with pytest.raises(OverloadedError, match="wait for their jobs already"):
        await sent(address, *contents(saved(tmp_path / "one-more", seed=9)))
    for old in there.iterdir():
        os.utime(old, (1, 1))
    await sent(address, *contents(saved(tmp_path / "one-more")))
    assert len(list(there.iterdir())) == 1


async def test_a_manifest_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    async def nothing() -> AsyncIterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    with pytest.raises(SpecError, match="no checkpoint has 0 files and a manifest of 4194305 bytes"):
        await FileUploads(tmp_path, 2**24).receive([MAX_MANIFEST_BYTES + 1], nothing())


def test_an_upload_is_not_to_be_had_by_another_name(tmp_path):
    kept = FileUploads(tmp_path, LIMIT)
    (tmp_path / "job" / "checkpoints").mkdir(parents=True)
    (tmp_path / uploads.DIRECTORY).mkdir()  # or "../job" leads nowhere
    for name in ("upload:../job", "upload:", "job", f"upload:{'A' * 64}"):
        with pytest.raises(NotFoundError):
            kept.find(name)
        kept.discard(name)
    assert (tmp_path / "job").exists()
