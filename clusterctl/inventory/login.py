"""Splits `user@host:port`, the form that ssh takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PORTED = re.compile(r"(?P<host>[^:]*|\[[^\[\]]*:[^\[\]]*\]):(?P<port>[0-9]+)")
"""One colon, or brackets around the address: the colons of a bare IPv6 address are its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The three parts; None if one is absent."""

    user: str | None
    host: str
    port: str | None


def split_login(text: str) -> Login:
    """Split a login; the host may be any text."""
    user, at, host = text.rpartition("@")
    ported = _PORTED.fullmatch(host)
    return Login(
        user=user if at else None,
        host=ported["host"] if ported else host,
        port=ported["port"] if ported else None,
    )
