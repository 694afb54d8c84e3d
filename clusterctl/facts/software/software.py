"""The interpreter of the job, its packages, and how the job's own check ended."""

from __future__ import annotations

from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """What torch itself reports; asked only if GPUs are planned."""

    cuda_available: bool
    device_count: int
    nccl: str = ""
    error: str = ""
    archs: tuple[str, ...] = ()
    """What torch has code for: `sm_90`, `compute_90` (PTX, for newer ones too), `gfx942`."""
    devices: tuple[str, ...] = ()
    """The architectures of the GPUs that it sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An installed package of the job's interpreter."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignImport:
    """A package whose import loads a file outside of the interpreter's own folders."""

    name: str
    file: str
    hides: str = ""
    """The interpreter's own file that is not loaded; empty: it has none."""
    origin: str = ""
    """What put the folder on the path: `PYTHONPATH`, `user site`, a `.pth` file; empty: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """The job's interpreter in a non-interactive shell."""

    asked: str
    container: str = ""
    """The image that it is in; empty: it is on the node itself."""
    found: bool = False
    executable: str = ""
    version: str = ""
    packages: tuple[Package, ...] = ()
    """The installed ones of those that matter to training."""
    foreign: tuple[ForeignImport, ...] | None = None
    """None: not asked."""
    torch_build: str = ""
    """What torch was built for: `cpu`, a CUDA version, `rocm…`; empty for no torch."""
    torch: Torch | None = None
    on_path: str = ""
    """The `python` that a shell would start after `env_init`; empty: not known, or none."""
    problem: str = ""
    """Why it could not be started or did not answer."""

    def package(self, name: str) -> str:
        """Return the package's version, empty for not installed."""
        return next((p.version for p in self.packages if p.name == name), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The image of the job's container on a node."""

    id: str = ""
    problem: str = ""
    """Why there is none: in the words of the program that starts containers."""
    installed: bool = True
    """That program is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPython:
    """The Python that runs clusterctl's own code on the node."""

    executable: str
    lacks: tuple[str, ...] = ()
    """Modules of the standard library that a run may need and this build does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How `job.check` ended."""

    exit_code: int | None
    """None: it could not be started or did not end in time."""
    output: str = ""
    """Its last lines."""
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A variable, and the file that sets it."""

    name: str
    value: str
    origin: str
