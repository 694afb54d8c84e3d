"""The certificate and token by which the supervisors of one run trust each other."""

import secrets
from dataclasses import field
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from clusterctl.node.push.ticket import ticket
from clusterctl.values import dataclass

VALID = (datetime(1970, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
"""Practically unlimited: supervisors pin the certificate, and a node's clock may be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The credentials of one run's supervisors; only the certificate may be stored."""

    certificate: str
    """PEM; the only certificate that the supervisors trust."""
    key: str = field(repr=False)
    """PEM; only for the master's supervisor."""
    token: str = field(repr=False)
    """Only for the master's supervisor; each worker's is derived from it."""

    def ticket(self, number: int) -> str:
        """Return what one sender of a push shows to the receiver that has this identity."""
        return ticket(self.token, number).decode()


def make_identity(run: str) -> Identity:
    """Create the credentials of a new run."""
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
