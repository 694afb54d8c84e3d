"""What `check --deep` tried on a node, one rung after the other, until one was broken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One step of the ladder on a node."""

    name: str
    """`sum`, `gpus`, `dcgm`, `inside` or `across`."""
    works: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTrial:
    """One GPU, tried alone or as a rank among those of its node."""

    index: int
    """As the vendor's tool numbers it."""
    state: str = "ok"
    """`ok`, `error`, or `timeout`: its process was killed."""
    error: str = ""
    free_mib: int | None = None
    wrong_numbers: int | None = None
    """Of a product whose result is known."""
    wrong_copies: int | None = None
    """Numbers that differ after a copy within the memory."""
    tflops: float | None = None
    memory_gb_s: float | None = None
    right: bool | None = None
    """The sum over the node's GPUs was the right one."""
    gbps: float | None = None
    """Data that it moved in that sum, by the usual formula."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmTest:
    """The result of one of DCGM's tests, on one GPU or on all."""

    name: str
    status: str
    """`pass`, `fail`, `warn` or `skip`."""
    gpus: tuple[int, ...] = ()
    words: str = ""
    setting: bool = False
    """It failed because of a setting of the machine, such as persistence mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dcgm:
    """DCGM's short diagnostic."""

    state: str
    """`ok` (it has tests), `absent`, `not-asked`, `no-hostengine`, `timeout` or `error`."""
    version: str = ""
    tests: tuple[DcgmTest, ...] = ()
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """How far a node came."""

    rungs: tuple[Rung, ...] = ()
    """Those that it tried, in order."""
    stopped: str = ""
    """The rung that broke on some node; empty if none did."""
    blamed: tuple[str, ...] = ()
    """The nodes where it broke."""
    gpus: tuple[GpuTrial, ...] = ()
    dcgm: Dcgm | None = None
    inside: tuple[GpuTrial, ...] = ()
    error: str = ""
    """Why it does not know more."""
