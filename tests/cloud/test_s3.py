"""S3 through boto3: the checks of every bucket, what is read from one, and what a user is told when that fails."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import marless
from marless.core.errors import (
    MarlessError,
    NotFoundError,
    PermissionDeniedError,
    SpecError,
    UnauthenticatedError,
    UnreachableError,
)
from marless.learning.envs.base import Discrete
from marless.storage import checkpoint
from marless.storage.bucket.objects import Objects, S3Objects
from tests.cloud.conftest import REGION
from tests.unit.learning.policies.saved import save, state
from tests.unit.storage.bucket.contract import every_check

pytestmark = pytest.mark.cloud
BUCKET = "marless-runs"


@pytest.fixture
def objects(s3) -> Objects:
    import boto3

    boto3.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    return S3Objects(BUCKET)


@every_check
def test_every_check(objects, check, tmp_path):
    check(objects, tmp_path)


def test_more_objects_than_a_page_holds(objects):
    for i in range(1001):
        objects.put(f"many/{i}", b"")
    assert len(list(objects.listing("many/"))) == 1001
    objects.delete(f"many/{i}" for i in range(1001))
    assert not list(objects.listing("many/"))


# Policies and checkpoints


@pytest.fixture
def run(objects, tmp_path) -> Path:
    """A run folder, a plain copy of it in the bucket (as `aws s3 sync` makes it), and there too."""
    run = tmp_path / "job-1"
    for round_ in (10, 20):
        save(run, {"p": state(4, Discrete(3), seed=round_)}, {"p": ("x", "y")}, round_=round_)
    for path in run.rglob("*"):
        if path.is_file():
            objects.send(f"runs/job-1/{path.relative_to(run)}", path)
    return run


def weights(team: marless.Team) -> np.ndarray:
    return next(iter(team.policies.values())).state.acting["policy.0.weight"]


def test_policies_are_loaded_from_a_bucket(run):
    where = f"s3://{BUCKET}/runs/job-1"
    team = marless.load_policy(where)
    assert (team.origin.job, team.origin.round, team.origin.run_dir) == ("job-1", 20, None)
    assert np.array_equal(weights(team), weights(marless.load_policy(run)))
    assert np.array_equal(weights(marless.load_policy(where, round=10)), weights(marless.load_policy(run, round=10)))
    single = marless.load_policy(f"{where}/checkpoints/round-000010")
    assert np.array_equal(weights(single), weights(marless.load_policy(run, round=10)))
    with pytest.raises(NotFoundError, match="after 30 rounds"):
        marless.load_policy(where, round=30)
    with pytest.raises(NotFoundError, match=f"{where}/none: there is no run folder"):
        marless.load_policy(f"{where}/none")


def test_a_damaged_checkpoint_is_refused(run, objects):
    key = "runs/job-1/checkpoints/round-000020/p.acting.safetensors"
    objects.put(key, b"x" * 100)
    with pytest.raises(MarlessError, match="sha256 differs"):
        marless.load_policy(f"s3://{BUCKET}/runs/job-1")


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "marless", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ,
    )


def test_a_policy_is_exported_to_a_bucket_and_loaded_from_there(run, tmp_path):
    target = f"s3://{BUCKET}/policies/team.safetensors"
    done = command("export", f"s3://{BUCKET}/runs/job-1", "--to", target, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{target}\n"), done.stderr
    assert np.array_equal(weights(marless.load_policy(target)), weights(marless.load_policy(run)))


def test_a_run_folder_is_downloaded(run, tmp_path):
    done = command("download", f"s3://{BUCKET}/runs/job-1", "--to", "here", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "here\n"), done.stderr
    there = {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    here = tmp_path / "here"
    assert {path.relative_to(here): path.read_bytes() for path in here.rglob("*") if path.is_file()} == there


def test_a_job_starts_from_a_checkpoint_in_a_bucket(run):
    from marless.app.client import transfers
    from marless.jobs import spec as specs

    spec = specs.parse(
        {
            "env": {"name": "mpe/simple_spread"},
            "algorithm": "ippo",
            "start": {"checkpoint": f"s3://{BUCKET}/runs/job-1"},
            "stop": {"rounds": 1},
        },
        "spec",
    )
    with transfers.local_checkpoint(spec) as found:
        assert found
        assert checkpoint.read(found).progress.round == 20


# What a user is told


def test_a_missing_bucket(s3):
    with pytest.raises(NotFoundError, match=r"s3://no-such-bucket/runs/j.*there is no bucket no-such-bucket"):
        marless.load_policy("s3://no-such-bucket/runs/j")


def test_missing_credentials(aws, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UnauthenticatedError, match=r"GetObject needs credentials of AWS.*AWS_PROFILE"):
        S3Objects(BUCKET).get("x", 1)


def test_no_network(aws, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(UnreachableError, match=r"GetObject was not answered .*check the network and endpoint"):
            S3Objects(BUCKET).get("x", 1)


@pytest.mark.parametrize(
    ("code", "status", "kind", "told"),
    [
        (
            "AccessDenied",
            403,
            PermissionDeniedError,
            f"PutObject was refused .AccessDenied.: allow s3:PutObject on bucket {BUCKET}",
        ),
        ("SlowDown", 503, UnreachableError, "PutObject was refused .SlowDown.: it was tried 4 times"),
        ("ExpiredToken", 400, UnauthenticatedError, "renew the credentials"),
        ("PermanentRedirect", 301, SpecError, "set AWS_REGION"),
    ],
)
def test_refusals_say_what_to_do(objects, monkeypatch, code, status, kind, told):
    """The answers of S3 itself, without its delays."""
    from botocore.exceptions import ClientError

    def refuse(**arguments: object) -> None:
        raise ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")

    monkeypatch.setattr(objects._client, "put_object", refuse)
    with pytest.raises(kind, match=f"s3://{BUCKET}/x: .*{told}"):
        objects.put("x", b"")


def test_an_error_names_no_secret(aws, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    with pytest.raises(MarlessError) as caught:
        S3Objects("no-such-bucket").get("x", 1)
    assert "very-secret" not in str(caught.value) and "testing" not in str(caught.value)


def test_the_command_line_says_it_in_one_sentence(aws, tmp_path):
    done = command("evaluate", "s3://no-such-bucket/j", cwd=tmp_path)
    assert done.returncode == 102
    assert done.stderr.count("\n") == 1 and "there is no bucket no-such-bucket" in done.stderr, done.stderr


def test_without_boto3_the_hint_says_what_to_install(tmp_path, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "boto3" else real(name))
    with pytest.raises(SpecError, match=r"s3://abc: the package `boto3` is missing: pip install 'marless\[aws\]'"):
        marless.load_policy("s3://abc/j")
