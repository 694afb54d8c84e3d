"""Which runs hold a machine or a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, texts
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLock:
    """The run that holds the node."""

    run: str = ""
    """Empty: no process."""
    user: str = ""
    since: str = ""
    about: str = ""
    """Its name, command and origin, by its supervisor."""
    holds: tuple[str, ...] = ()
    """UUIDs of its GPUs, and `port-N` if its ranks meet here; empty: it holds the whole machine."""


@Fact("lock")
def parse_lock(answers: Answers) -> RunLock | None:
    """Return the run that holds the whole machine; each node is asked for it by `request.lock`."""
    lock = answers.object("lock")
    if not lock:
        return None
    return RunLock() if lock.get("holder") is None else _held_by(lock["holder"])


@Fact("sharing")
def parse_sharing(answers: Answers) -> tuple[RunLock, ...]:
    """Return the runs that hold some of its GPUs each."""
    holders = answers.object("lock").get("sharing")
    return tuple(map(_held_by, holders)) if isinstance(holders, list) else ()


def _held_by(told: object) -> RunLock:
    who: Mapping[str, Any] = told if isinstance(told, dict) else {}
    began = _moment(who.get("since"))
    return RunLock(
        run=str(who.get("run") or f"unknown, of pid {who.get('pid', '?')}"),
        user=str(who.get("user") or who.get("uid", "")),
        since=f"{began:%Y-%m-%d %H:%M} UTC" if began else "",
        about=str(who.get("about") or ""),
        holds=texts(who.get("holds")),
    )


def _moment(since: object) -> datetime | None:
    """Return the time in a lock file, which any user may write: it may be any value."""
    try:
        return datetime.fromtimestamp(since, UTC) if isinstance(since, (int, float)) else None
    except (ValueError, OverflowError, OSError):
        return None
