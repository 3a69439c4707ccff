"""Checks a process's own TLS certificate before others see it: its key, its dates, and the host that it is for.

The certificate is presented to a verifier in this process, by the handshake of Python's `ssl` in memory. The
certificate itself is the verifier's authority: which authority others trust is theirs to decide.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from marless.core.errors import SpecError

_EXPIRED, _NOT_YET_VALID = 10, 9  # X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID of OpenSSL
_RENEW = "make a new one, and start this process again"


def check_pair(cert: str, key: str) -> None:
    """Raise SpecError unless this is a certificate and its key."""
    _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key)


def check_served(cert: str, key: str, host: str) -> float:
    """Check the certificate of a server that others dial at `host` ("": at no host, but at a unix socket).

    Returns:
        Its end, in seconds since the epoch.

    Raises:
        SpecError: if a file cannot be used, if the certificate has expired, or if it is for other hosts.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(server, cert, key)
    _trust(client, cert)
    client.check_hostname = bool(host)
    try:
        verified = _shake_hands(client, server, host).getpeercert() or {}
        return float(ssl.cert_time_to_seconds(str(verified["notAfter"])))
    except ssl.SSLCertVerificationError as error:
        if outdated := _outdated(cert, error):
            raise outdated from None
        raise SpecError(
            f"the TLS certificate {cert} is not for {host}, where --advertise or --listen tells others to dial: "
            f"{_reason(error)}; set --advertise to a host that it is for, or make one for {host}"
        ) from None
    except ssl.SSLError as error:
        raise _unusable(cert, key, error) from None


def check_shown(cert: str, key: str) -> None:
    """Check the certificate that a client shows to servers. Raises SpecError if it cannot be used or has expired."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Only what the client shows is in question, so it does not look at the server's, which is the same certificate.
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    _load(client, cert, key)
    _load(server, cert, key)
    _trust(server, cert)
    server.verify_mode = ssl.CERT_REQUIRED
    try:
        _shake_hands(client, server, "")
    except ssl.SSLCertVerificationError as error:
        raise _outdated(cert, error) or _unusable(cert, key, error) from None
    except ssl.SSLError as error:
        raise _unusable(cert, key, error) from None


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """Let both sides finish a handshake; returns the client's. Raises SSLError, for either side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname=host or None)
    waiting = [asking, server.wrap_bio(to_server, to_client, server_side=True)]
    while waiting:
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    return asking


def _load(context: ssl.SSLContext, cert: str, key: str) -> None:
    for path in (cert, key):
        read(path)
    try:
        context.load_cert_chain(cert, key, password="")  # without one, OpenSSL asks on the terminal
    except ssl.SSLError as error:
        raise _unusable(cert, key, error) from None


def _trust(context: ssl.SSLContext, cert: str) -> None:
    context.load_verify_locations(cert)
    # Without this flag OpenSSL takes only a root as an authority, and this certificate may be signed by another one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _outdated(cert: str, error: ssl.SSLCertVerificationError) -> SpecError | None:
    if error.verify_code == _EXPIRED:
        return SpecError(f"the TLS certificate {cert} has expired; {_RENEW}")
    if error.verify_code == _NOT_YET_VALID:
        return SpecError(f"the TLS certificate {cert} is not valid yet; set this machine's clock, or {_RENEW}")
    return None


def _unusable(cert: str, key: str, error: ssl.SSLError) -> SpecError:
    return SpecError(f"the TLS certificate {cert} and the key {key} cannot be used: {_reason(error)}")


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    return (error.reason or str(error)).replace("_", " ").lower()


def read(path: str) -> bytes:
    """The content of a PEM file. Raises SpecError."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SpecError(f"TLS file {path} cannot be read ({error.strerror})") from None
