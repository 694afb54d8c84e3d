"""IPv4 or IPv6: what kind of socket an address needs; without `ipaddress`, for start-up counts."""

from __future__ import annotations

import _socket


def address_family(address: str) -> int:
    """Return AF_INET6 for an IPv6 address, else AF_INET."""
    return _socket.AF_INET6 if ":" in address else _socket.AF_INET
