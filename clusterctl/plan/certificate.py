"""The identity of one run's supervisors: a certificate that is pinned, and a token."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID = (datetime(1970, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
"""For ever: it is trusted by its bytes for one run, and a node's clock may be years off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the supervisors of one run know each other by; only the certificate may be stored."""

    certificate: str
    """PEM; every supervisor trusts this one and no other."""
    key: str = field(repr=False)
    """PEM; for the master's supervisor alone."""
    token: str = field(repr=False)
    """What every supervisor of the run shows to the master's."""


def make_identity(run: str) -> Identity:
    """Make the identity of a new run."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, run)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID[0])
        .not_valid_after(VALID[1])
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Identity(
        certificate=certificate.public_bytes(pem).decode(),
        key=private.decode(),
        token=secrets.token_hex(32),
    )
