"""Names of runs: `<cluster>-<UTC second>-<four random>`, in the order of their beginnings."""

from __future__ import annotations

import datetime as dt
import re
import secrets

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_PATTERN = re.compile(r"(?P<cluster>[a-z0-9-]{1,24})-(?P<second>\d{8}t\d{6})-[a-z0-9]{4}")


def make(cluster: str, now: dt.datetime | None = None) -> str:
    """Return a new run's name."""
    moment = (now or dt.datetime.now(dt.UTC)).astimezone(dt.UTC)
    random = "".join(secrets.choice(_ALPHABET) for _ in range(4))
    return f"{cluster}-{moment:%Y%m%dt%H%M%S}-{random}"


def cluster_of(run: str) -> str | None:
    """Return the cluster that a run's name says; None: it is no run's name."""
    found = _PATTERN.fullmatch(run)
    return found["cluster"] if found else None


def began(run: str) -> dt.datetime | None:
    """Return the second in which a run was named."""
    found = _PATTERN.fullmatch(run)
    if found is None:
        return None
    return dt.datetime.strptime(found["second"] + "+0000", "%Y%m%dt%H%M%S%z")
