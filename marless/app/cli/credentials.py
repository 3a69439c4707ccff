"""The commands `credentials`, for everything secret that a deployment on several hosts or in containers needs, and
`tokens`, for the tokens alone.

`credentials` writes:

DIR/authority.pem, .key     the certificate authority; the key is for this command only
DIR/tokens/                 a token for each role, for the services
DIR/<process>/              certificate.pem, key.pem and authority.pem of one service or kind of worker
DIR/param-store/            also the password of its user of Redis
DIR/actor-worker/, …        also the token of the worker's role
DIR/redis/users.acl         the users of Redis, with hashes of their passwords
DIR/client/                 authority.pem and the token with which jobs are submitted
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from marless.app.cli.output import say
from marless.core import private_files
from marless.core.errors import SpecError, denied
from marless.rpc.roles import Role

SERVICES = ("coordinator", "actor-pool", "learner-pool", "param-store")
WORKERS = {"actor-worker": "actor", "learner-worker": "learner"}
"""Kinds of workers that dial in, and the roles of their tokens."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
DAYS, AUTHORITY_DAYS = 398, 3650
CONTAINER_UID = 1000
"""The user that the images of deploy/ run as by default."""
_SETTINGS = """
[req]
distinguished_name = name
prompt = no
[name]
CN = {name}
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[process]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = {hosts}
"""


def credentials(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the credentials; created if missing.")],
    host: Annotated[
        list[str],
        typer.Option(metavar="SERVICE=HOST", help="A further host that clients or workers dial this service at."),
    ] = [],  # noqa: B006  # typer's way
    owner: Annotated[
        int | None,
        typer.Option(metavar="UID", help="User that the services run as; default: this user, or 1000 for root."),
    ] = None,
) -> None:
    """Make certificates, a token for each role, and Redis's users: everything secret that deploy/ needs.

    If run again, it makes new certificates and keeps everything else. Nothing secret is ever printed.
    """
    from marless.rpc import tokens as files

    hosts, owner = _hosts(host), (os.geteuid() or CONTAINER_UID) if owner is None else owner
    try:
        home = private_files.directory(directory)
        # Taken back from the services' user first, because files of other users are not trusted.
        _give_to(home, os.geteuid())
        authority = _Authority(home)
        files.create(home / "tokens")
        for process, names in hosts.items():
            authority.certify(private_files.directory(home / process), names)
        _hand_out(home)
        _give_to(home, owner)
    except OSError as error:
        raise SpecError(denied(error)) from None
    if owner not in (CONTAINER_UID, 0):  # containers do not run as root
        say(f"the services run as user {owner}: put MARLESS_UID={owner} into deploy/.env before you build the images")
    print(directory)  # noqa: T201  # the command's data


def tokens(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the tokens; created if missing.")],
    rotate: Annotated[
        list[Role], typer.Option(metavar="ROLE", help="Make a new token for this role; the old one stays valid.")
    ] = [],  # noqa: B006  # typer's way
    retire: Annotated[
        list[Role], typer.Option(metavar="ROLE", help="Remove all tokens of this role but the newest.")
    ] = [],  # noqa: B006  # typer's way
) -> None:
    """Make a directory with a token for each role: client, operator, actor, learner, service.

    Services take it as --tokens ($MARLESS_TOKENS), and read it again when it changes. No token is ever printed.
    """
    from marless.rpc import tokens as files

    files.create(directory)
    for role in rotate:
        files.rotate(directory, role)
        say(f"{role}: a new token was made; the old one stays valid until `marless tokens {directory} --retire {role}`")
    for role in retire:
        files.retire(directory, role)
        say(f"{role}: only the newest token is valid now")
    print(directory)  # noqa: T201  # the command's data


def _hosts(given: list[str]) -> Mapping[str, tuple[str, ...]]:
    """The hosts that each process's certificate is for."""
    hosts: dict[str, tuple[str, ...]] = {service: (service, *LOOPBACK) for service in SERVICES}
    hosts |= {worker: (worker,) for worker in WORKERS}
    for text in given:
        service, equals, host = text.partition("=")
        if not equals or not host or service not in SERVICES or any(part in host for part in ",\n "):
            raise SpecError(
                f"--host {text}: give SERVICE=HOST, e.g. coordinator=train.example.org; services are "
                f"{', '.join(SERVICES)}"
            )
        # Addresses of IPv6 are dialled in brackets, and certified without.
        hosts[service] += (host.strip("[]"),)
    return hosts


class _Authority:
    """The certificate authority of a directory, made on first use, and its work, done by openssl."""

    def __init__(self, home: Path) -> None:
        self._cert, self._key = home / "authority.pem", home / "authority.key"
        if not (self._cert.exists() and self._key.exists()):
            # The host is a placeholder, in the section of processes, which this certificate does not use.
            with _settings(home, _SETTINGS.format(name="marless authority", hosts="DNS:none")) as settings:
                of_authority = ("-config", settings, "-extensions", "authority", "-out", self._cert)
                _openssl("req", "-x509", *_new_key(self._key), *of_authority, *_serial(AUTHORITY_DAYS))

    def certify(self, folder: Path, hosts: tuple[str, ...]) -> None:
        """Write a new certificate for these hosts into a folder, with its key and the authority's certificate."""
        names = ",".join(f"IP:{host}" if _is_ip(host) else f"DNS:{host}" for host in hosts)
        with _settings(folder, _SETTINGS.format(name=hosts[0], hosts=names)) as settings:
            request = folder / ".request"
            partial = {name: folder / f".{name}" for name in ("key.pem", "certificate.pem")}
            _openssl("req", "-new", *_new_key(partial["key.pem"]), "-config", settings, "-out", request)
            signer = ("-CA", self._cert, "-CAkey", self._key, "-extfile", settings, "-extensions", "process")
            signed = ("-in", request, "-out", partial["certificate.pem"])
            _openssl("x509", "-req", *signed, *signer, *_serial(DAYS))
            request.unlink()
            for name, path in partial.items():
                path.replace(folder / name)
        shutil.copyfile(self._cert, folder / self._cert.name)


def _new_key(path: Path) -> tuple[object, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path)


def _serial(days: int) -> tuple[object, ...]:
    return ("-days", days, "-sha256", "-set_serial", f"0x{secrets.token_hex(16)}")


@contextmanager
def _settings(folder: Path, text: str) -> Iterator[Path]:
    path = folder / ".openssl.cnf"
    path.write_text(text, encoding="ascii", errors="xmlcharrefreplace")
    try:
        yield path
    finally:
        path.unlink()


def _openssl(*arguments: object) -> None:
    """Run openssl, whose files only this user can read. Raises SpecError with the end of what it says."""
    try:
        command = ["openssl", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, umask=0o077)
    except FileNotFoundError:
        raise SpecError("openssl, which makes certificates, is not installed: `apt install openssl`") from None
    if done.returncode:
        raise SpecError(f"openssl {command[1]} failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")


def _is_ip(host: str) -> bool:
    import ipaddress

    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _hand_out(home: Path) -> None:
    """Give each process its part of the tokens and passwords, and no more."""
    from marless.rpc.own_redis import ACL_FILE, STORE, RedisUsers

    store = home / "param-store"
    _write(store / "redis_password", RedisUsers.of(store).passwords[STORE])
    _write(private_files.directory(home / "redis") / ACL_FILE, (store / ACL_FILE).read_text(encoding="ascii"))
    client = private_files.directory(home / "client")
    shutil.copyfile(home / "authority.pem", client / "authority.pem")
    for folder, role in ({"client": "client"} | WORKERS).items():
        _write(home / folder / role, (home / "tokens" / role).read_text(encoding="ascii"))


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}")
    # Left by a run that was killed; O_EXCL refuses to open what is there, and so follows nobody's link.
    with suppress(FileNotFoundError):
        partial.unlink()
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(text)
    partial.replace(path)


def _give_to(home: Path, owner: int) -> None:
    """Give the files of all processes that exist to this user; only root can do so for another user."""
    for folder in (*SERVICES, *WORKERS, "tokens", "redis"):
        for path in (home / folder, *(home / folder).glob("*")):
            if path.exists() and path.stat().st_uid != owner:
                os.chown(path, owner, -1)
