"""Starts stand-ins for AWS on this machine, each once; skips what needs one that is not installed."""

from __future__ import annotations

import importlib.util
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cloud import localstack
from tests.cloud.between import Between, between

REGION = "eu-central-1"


@dataclass(frozen=True)
class Aws:
    """Where the stand-in answers, and in which region tests work."""

    endpoint: str
    region: str = REGION

    def reset(self) -> None:
        """Forget everything that was made there."""
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/moto-api/reset", method="POST")).close()


@pytest.fixture(scope="session")
def _aws() -> Iterator[Aws]:
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is not installed; `make test-cloud` installs it")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield Aws(f"http://{host}:{port}")
    server.stop()


@pytest.fixture
def aws(_aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    """An empty account. Every AWS SDK in this process and below it finds it, with keys that are valid nowhere else."""
    for name, value in {
        "AWS_ENDPOINT_URL": _aws.endpoint,
        "MOTO_ENDPOINT": _aws.endpoint,
        "AWS_DEFAULT_REGION": _aws.region,
        "AWS_REGION": _aws.region,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    yield _aws
    _aws.reset()


@pytest.fixture(scope="session")
def _localstack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if why := localstack.absent():
        pytest.skip(why)
    with localstack.localstack(tmp_path_factory.mktemp("localstack")) as address:
        yield address


@pytest.fixture(params=["moto", "localstack"])
def s3(request: pytest.FixtureRequest, aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a server of S3, without buckets: every S3 client in this process and below it finds it."""
    if request.param == "localstack":
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", request.getfixturevalue("_localstack"))
    yield request.param
    if request.param == "localstack":
        _empty()


def _empty() -> None:
    """Delete all buckets."""
    import boto3

    for bucket in boto3.resource("s3").buckets.all():
        bucket.objects.all().delete()
        bucket.delete()


@pytest.fixture
def aws_between(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """The same, with a server between that fails and changes what tests say."""
    with between(aws.endpoint) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.endpoint)
        yield found
