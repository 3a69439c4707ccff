"""Certificates for tests."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def made(directory: Path, *addresses: str) -> dict[str, str]:
    """An authority, and certificates for these addresses, right and wrong ones, with keys; PEM files by name."""
    issuers = {
        "ca": "ca",
        "stranger": "stranger",
        "server": "ca",
        "worker": "ca",
        "expired": "ca",
        "forged": "stranger",
    }
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in issuers}
    names = {name: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in keys}
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)

    def certificate(name: str, issuer: str) -> x509.Certificate:
        served = x509.SubjectAlternativeName([_name(each) for each in addresses])
        return (
            x509.CertificateBuilder(names[issuer], names[name], keys[name].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * day)
            .not_valid_after(now + (-day if name == "expired" else day))
            .add_extension(served, critical=False)
            .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
            .sign(keys[issuer], hashes.SHA256())
        )

    pem = serialization.Encoding.PEM
    for name, issuer in issuers.items():
        (directory / f"{name}.pem").write_bytes(certificate(name, issuer).public_bytes(pem))
        key = keys[name].private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (directory / f"{name}.key").write_bytes(key)
    return {path.name: str(path) for path in directory.iterdir()}


def _name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)
