"""The options of a launch, and the flag or variable that each value comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import LauncherName
from clusterctl.values import dataclass

INFINITE = float("inf")
BOUNDS: Mapping[str, tuple[float, float]] = {
    "gpus": (0, INFINITE),
    "procs_per_node": (1, 4096),
    "master_port": (1, 65535),
    "max_restarts": (0, INFINITE),
    "start_timeout": (0.001, INFINITE),
    "lost_after": (0.001, INFINITE),
}


def node_folder(text: str) -> str:
    """Return an absolute path on the nodes, normalized.

    Raises:
        ValueError: it is relative, has `..` in it, or is the root.
    """
    parts = [part for part in text.split("/") if part not in {"", "."}]
    if not text.startswith("/") or ".." in parts or not parts or not text.isprintable():
        wanted = "an absolute path on the nodes, without .."
        raise ValueError(f"expected {wanted}, found {text!r}")
    return "/" + "/".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one launch; None: not set, so the inventory or clusterctl decides."""

    launcher: LauncherName | None = None
    launcher_args: tuple[str, ...] | None = None
    """Instead of the inventory's."""
    command: tuple[str, ...] = ()
    """After `--`; empty: the job's."""
    env: tuple[tuple[str, str], ...] = ()
    master_port: int | None = None
    gpus: int | None = None
    """The most GPUs of each node."""
    procs_per_node: int | None = None
    workdir: str | None = None
    """For every node."""
    max_restarts: int | None = None
    start_timeout: float | None = None
    lost_after: float | None = None
    debug: bool = False
    origins: Mapping[str, str] = field(default_factory=dict)
    """Field, or `env.NAME` → the origin of its value, such as `--gpus` or `CLUSTERCTL_GPUS`."""

    def __post_init__(self) -> None:
        """Raise UsageError for a number that is out of bounds."""
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not (least <= value <= most and value < INFINITE):
                limit = f"{least} or more" if most == INFINITE else f"{least} to {most}"
                raise UsageError(f"{name}: expected {limit}, found {value}")

    def says(self, name: str) -> bool:
        """Tell whether an option is set; 0 is a value, too, and so are no launcher's arguments."""
        value = getattr(self, name)
        return bool(value) if name == "command" else value is not None

    def origin(self, name: str) -> str:
        """Return the origin of a field's value."""
        usual = "after `--`" if name == "command" else "--" + name.replace("_", "-")
        return self.origins.get(name, usual)


SETTINGS = tuple(one.name for one in fields(Options) if one.name not in {"env", "debug", "origins"})
"""The options that are one value each; the variables of `env` have an origin each."""
