"""`marless credentials`: who gets what, whom certificates are for, what a second run keeps."""

import os
import stat
from pathlib import Path

import pytest
from cryptography import x509

from marless.app.cli.credentials import CONTAINER_UID, SERVICES, WORKERS
from marless.rpc.roles import Role
from marless.rpc.security import check_served, check_shown


@pytest.fixture
def made(marless, tmp_path):
    def make(*options: str) -> Path:
        place = tmp_path / "credentials"
        code, out, said = marless("credentials", place, "--owner", os.getuid(), *options)
        assert (code, out) == (0, f"{place}\n"), said
        return place

    return make


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def hosts(folder: Path) -> set[str]:
    certificate = x509.load_pem_x509_certificate((folder / "certificate.pem").read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name) for kind in (x509.DNSName, x509.IPAddress) for name in found.get_values_for_type(kind)}


def test_each_process_gets_what_it_needs_and_no_more(made):
    place = made()
    tls = {"authority.pem", "certificate.pem", "key.pem"}
    assert names(place) == {*SERVICES, *WORKERS, "authority.pem", "authority.key", "client", "redis", "tokens"}
    assert names(place / "tokens") == set(Role)
    assert names(place / "coordinator") == names(place / "actor-pool") == names(place / "learner-pool") == tls
    assert names(place / "param-store") == tls | {"redis_password", "redis_passwords.json", "users.acl"}
    assert names(place / "redis") == {"users.acl"}
    assert names(place / "client") == {"authority.pem", "client"}
    for worker, role in WORKERS.items():
        assert names(place / worker) == tls | {role}
        assert (place / worker / role).read_text() == (place / "tokens" / role).read_text()


def test_only_the_owner_may_read_what_is_secret(made):
    place = made()
    for path in place.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == 0o700 if path.is_dir() else mode & 0o077 == 0 or path.name == "authority.pem", path


def test_certificates_are_for_the_hosts_that_are_dialled(made):
    place = made("--host", "coordinator=train.example.org", "--host", "learner-pool=2001:db8::7")
    loopback = {"localhost", "127.0.0.1", "::1"}
    assert hosts(place / "coordinator") == {"coordinator", "train.example.org", *loopback}
    assert hosts(place / "learner-pool") == {"learner-pool", "2001:db8::7", *loopback}
    for service in SERVICES:
        check_served(f"{place / service}/certificate.pem", f"{place / service}/key.pem", service)
    for process in (*SERVICES, *WORKERS):
        check_shown(f"{place / process}/certificate.pem", f"{place / process}/key.pem")


def test_a_second_run_makes_new_certificates_and_keeps_the_rest(made):
    place = made()
    before = {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    made()
    after = {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert before.keys() == after.keys()
    renewed = {Path(path).name for path in before if before[path] != after[path]}
    assert renewed == {"certificate.pem", "key.pem"}


def test_a_rotated_token_reaches_its_workers_with_the_next_run(made, marless):
    place = made()
    assert marless("tokens", place / "tokens", "--rotate", "actor")[0] == 0
    made()
    assert (place / "actor-worker" / "actor").read_text() == (place / "tokens" / "actor").read_text()


@pytest.mark.parametrize("host", ["train.example.org", "train=a", "coordinator=", "coordinator=a,DNS:b"])
def test_a_host_that_cannot_be_certified_is_one_sentence(marless, tmp_path, host):
    code, _, said = marless("credentials", tmp_path / "credentials", "--host", host)
    assert code == 2
    assert said.startswith(f"marless: --host {host}: give SERVICE=HOST, e.g. coordinator=train.example.org")
    assert not (tmp_path / "credentials").exists()


def test_without_openssl_it_says_what_to_install(marless, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, said = marless("credentials", tmp_path / "credentials")
    assert code == 2
    assert said == "marless: openssl, which makes certificates, is not installed: `apt install openssl`\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_root_gives_them_to_the_user_that_containers_run_as_also_again(marless, tmp_path):
    place = tmp_path / "credentials"
    for _ in range(2):
        code, _, said = marless("credentials", place)
        assert (code, said) == (0, "")
    assert {path.stat().st_uid for path in (place / "tokens").iterdir()} == {CONTAINER_UID}
    assert {path.stat().st_uid for path in (place / "client").iterdir()} == {0}
    assert (place / "authority.key").stat().st_uid == 0
