"""What nodes send while a push is under way."""

from __future__ import annotations

from typing import Annotated

from clusterctl.model.from_json import Bounds, Count, Port
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`push-list`: what a path has; the body lists the files."""

    bytes: Count
    files: Count
    blocks: Count
    content: str
    """Its hash."""
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPath:
    """What a node has of one path."""

    exists: bool
    bytes: Count | None = None
    files: Count | None = None
    sketch: str = ""
    """Equal where the contents are."""
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAnswer:
    """`push-look`."""

    found: Annotated[tuple[FoundPath, ...], Bounds(1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a node lacks, and its room."""

    missing: Count
    """Bytes."""
    files: Count
    free: Count
    free_files: Count | None = None
    replaced: Count = 0
    """Files of other contents that are in the way."""
    replaced_paths: tuple[str, ...] = ()
    """The first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushMessage:
    """A message of a push: all that it may hold; it has one or two of these."""

    hashed: Count | None = None
    ready: bool | None = None
    seen: tuple[str, ...] | None = None
    compared: Count = 0
    found: Compared | None = None
    listening: Port | None = None
    received: Count = 0
    complete: bool | None = None
    extra: tuple[str, ...] = ()
    extras: Count = 0
    sent: str | None = None
    lost: str | None = None
    why: str = ""
    bad: Count | None = None
    right: bool | None = None
    failed: str | None = None
    feeding: bool | None = None
    block: Count | None = None
    more: bool = False
    to: str | None = None
