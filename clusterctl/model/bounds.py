"""The kinds of numbers that nodes answer with, each with its bounds."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from clusterctl.model.from_json import Bounds

Whole: TypeAlias = Annotated[int, Bounds(-(10**100), 10**100)]
Count: TypeAlias = Annotated[int, Bounds(0, 1 << 53)]
SignedCount: TypeAlias = Annotated[int, Bounds(-(1 << 53), 1 << 53)]
Rank: TypeAlias = Annotated[int, Bounds(0, 1 << 20)]
Pid: TypeAlias = Annotated[int, Bounds(0, 1 << 31)]
Port: TypeAlias = Annotated[int, Bounds(0, 65535)]
ExitCode: TypeAlias = Annotated[int, Bounds(-255, 255)]
Signal: TypeAlias = Annotated[int, Bounds(0, 127)]
"""A run that a signal ended exits with 128 more: 256 would mean success."""
Amount: TypeAlias = Annotated[float, Bounds(0, 1 << 53)]
Seconds: TypeAlias = Annotated[float, Bounds(0, 1e11)]
"""A time since 1970 that a calendar has, or a length of time."""
Offset: TypeAlias = Annotated[float, Bounds(-1e10, 1e10)]
"""Seconds between two clocks."""
