"""Ids of runs, `<cluster>-<UTC second>-<four random>`, which sort by time."""

from __future__ import annotations

import datetime as dt
import re
import secrets

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_WORD = re.compile(r"[a-z0-9][a-z0-9-]*")
_PATTERN = re.compile(r"(?P<cluster>[a-z0-9-]{1,24})-[0-9]{8}t[0-9]{6}-[a-z0-9]{4}")


def make_run_id(cluster: str, now: dt.datetime | None = None) -> str:
    """Return the id of a new run."""
    moment = (now or dt.datetime.now(dt.UTC)).astimezone(dt.UTC)
    random = "".join(secrets.choice(_ALPHABET) for _ in range(4))
    return f"{cluster}-{moment:%Y%m%dt%H%M%S}-{random}"


def cluster_of(run: str) -> str | None:
    """Return the cluster in a run's id; None if the text is not an id."""
    found = _PATTERN.fullmatch(run)
    return found["cluster"] if found else None


def is_word(run: str) -> bool:
    """Tell whether a run's id needs no quotes in a command."""
    return _WORD.fullmatch(run) is not None
