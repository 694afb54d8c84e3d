"""What a verb wants to know of a node, beyond what is asked of every node."""

from typing import Any

from clusterctl.values import dataclass

CLOCK_ROUNDS = 5
"""Round trips at most to measure the clock; the shortest bounds the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathQuestion:
    """A path to inspect."""

    path: str
    write: bool = False
    """Try to create a file there."""
    speed: bool = False
    """Measure how fast a small file is written and read there."""
    digest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerWords:
    """How a program is run in the job's container, and how its image is identified."""

    plain: tuple[str, ...]
    nvidia: tuple[str, ...]
    """With the node's GPUs."""
    amd: tuple[str, ...]
    image: str
    image_id: tuple[str, ...]
    """Prints the image's id; empty: the image is a file."""
    env: tuple[tuple[str, str], ...] = ()
    """The job's, which may say where the daemon is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactRequest:
    """What to ask one node, beyond what is asked of every node."""

    python: str | None = None
    """The job's interpreter; None: python3 of the session."""
    gpus: int | None = None
    """GPUs that are planned; None: all."""
    places: tuple[PathQuestion, ...] = ()
    lock: str = "clusterctl-run"
    """The name of the node's lock."""
    env_init: str | None = None
    """The shell line that the job's environment needs."""
    packages: tuple[str, ...] = ()
    """Names of packages to look for besides the usual ones."""
    container: ContainerWords | None = None
    """The container that the job runs in, with its interpreter; None: it runs on the node."""
    python_env: tuple[tuple[str, str], ...] = ()
    """The job's variables that Python itself reads, such as PYTHONPATH."""
    launcher_file: str = ""
    """The launcher's own configuration: a path, `~` for the home; empty: it has none."""
    build_locks: tuple[str, ...] = ()
    """Patterns of the locks of torch's extension builds; `~` for the home."""
    only: frozenset[str] = frozenset()
    """Names of the facts that are wanted; empty: all."""
    listeners: bool = True
    """Ask which ports are in use: only the master, where the rendezvous needs one."""

    @property
    def interpreter(self) -> str:
        """The interpreter's path or name."""
        return self.python or "python3"


GPU_SECONDS = 20.0
"""A healthy driver answers in 2; nvidia-smi without persistence mode in 10."""
PROGRAM_SECONDS = 5.0
AMD = "/dev/kfd"
NVIDIA = ("/dev/nvidiactl", "/dev/dxg")
"""If one of these exists, there is a driver of the vendor's GPUs."""


def program(
    key: str, argv: list[str], limit_s: float = PROGRAM_SECONDS, *, only_if: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the question to a program; `only_if`: paths of which one must exist."""
    condition = {"only_if": list(only_if)} if only_if else {}
    return {"key": key, "argv": argv, "limit_s": limit_s, **condition}


def interpreter(
    key: str,
    wanted: FactRequest,
    limit_s: float,
    *args: str,
    container: tuple[str, ...] | None = None,
    only_if: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the command that runs our source with the job's interpreter and environment."""
    around = wanted.container.plain if wanted.container is not None else ()
    words = [*(container or around), wanted.interpreter, "-c"]
    command = {
        **program(key, [*words, *args], limit_s, only_if=only_if),
        "source": "clusterctl.node.probe.job_interpreter",
        "source_at": len(words),
        "cwd": "/",
    }
    return {**command, **job_environment(wanted)}


def job_environment(wanted: FactRequest) -> dict[str, Any]:
    """Return what gives a command the job's environment, if that changes what is asked."""
    env = wanted.container.env if wanted.container is not None else wanted.python_env
    if not env and not wanted.env_init:
        return {}
    asked = [[name, value, "asked"] for name, value in env]
    return {"job": {"env": asked, "env_init": wanted.env_init, "workdir": "/"}}
