"""deploy/terraform/boot/exchange.py, which machines run at boot, against moto."""

from __future__ import annotations

import importlib.util
import threading
from types import ModuleType

import pytest

from tests.cloud.terraform import SOURCE

pytestmark = pytest.mark.cloud


@pytest.fixture
def exchange(aws, monkeypatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("exchange", SOURCE / "boot" / "exchange.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAUSE_S", 0.05)
    return module


@pytest.fixture
def secret(aws) -> str:
    import boto3

    return boto3.client("secretsmanager").create_secret(Name="part")["ARN"]


def test_a_secret_is_waited_for_and_its_files_are_private(exchange, secret, tmp_path):
    written = tmp_path / "written"
    written.mkdir()
    (written / "key.pem").write_text("a key\n")
    (written / "actor").write_text("a token\n")
    waiting = threading.Thread(target=exchange.get, args=(secret, tmp_path / "read" / "own"))
    waiting.start()
    exchange.put(secret, written)
    waiting.join(30)
    read = tmp_path / "read" / "own"
    assert {path.name: path.read_text() for path in read.iterdir()} == {"key.pem": "a key\n", "actor": "a token\n"}
    assert {path.stat().st_mode & 0o777 for path in read.iterdir()} == {0o600} and read.stat().st_mode & 0o777 == 0o700


def test_a_secret_that_is_never_written_is_an_error(exchange, secret, tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "WAIT_S", 0.2)
    with pytest.raises(TimeoutError, match="is it up"):
        exchange.get(secret, tmp_path / "own")


def test_no_name_in_a_secret_leads_out_of_the_folder(exchange, secret, tmp_path):
    import boto3

    boto3.client("secretsmanager").put_secret_value(SecretId=secret, SecretString='{"../../above": "x"}')
    exchange.get(secret, tmp_path / "own")
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("above")] == [
        (tmp_path / "own/above").relative_to(tmp_path)
    ]
