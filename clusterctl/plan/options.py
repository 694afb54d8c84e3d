"""What the command line adds to an inventory, and the flag or variable that each value is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterctl.inventory.cluster import LauncherName


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices of one launch; None: nothing was said, so the inventory or we decide."""

    launcher: LauncherName | None = None
    command: tuple[str, ...] = ()
    """After `--`; empty: the job's."""
    env: tuple[tuple[str, str], ...] = ()
    master_port: int | None = None
    gpus: int | None = None
    """Of every node, at most."""
    procs_per_node: int | None = None
    workdir: str | None = None
    """Of every node."""
    max_restarts: int | None = None
    start_timeout: float | None = None
    lost_after: float | None = None
    debug: bool = False
    origins: Mapping[str, str] = field(default_factory=dict)
    """Field, or `env.NAME` → where its value is from, such as `--gpus` or `CLUSTERCTL_GPUS`."""

    def says(self, name: str) -> bool:
        """Tell whether a field was said at all; 0 is a choice too."""
        return getattr(self, name) not in (None, ())

    def origin(self, name: str) -> str:
        """Return where the value of a field is from."""
        usual = "after `--`" if name == "command" else "--" + name.replace("_", "-")
        return self.origins.get(name, usual)
