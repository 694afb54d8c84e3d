"""How a job is launched."""

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

from clusterctl.errors import LargeCopy, UsageError
from clusterctl.model.node_run import Resumed
from clusterctl.model.quarantine import Quarantined
from clusterctl.plan.options import Options
from clusterctl.values import dataclass

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How a job is launched."""

    overrides: Options = field(default_factory=Options)
    """What the cluster has from flags, for the record: a later resume keeps it."""
    source: Path = field(default_factory=Path.cwd)
    """The folder that is synced."""
    name: str = ""
    """A name of the person's own for the run."""
    run: str = ""
    """The id that the run gets; empty: a new one."""
    check: bool = True
    sync: bool = True
    delete: bool = False
    """The sync may delete also what the command names, or most of what was placed."""
    may_copy: Callable[[LargeCopy], bool] = lambda _: False
    """Says whether the sync may copy very much."""
    force: bool = False
    """Continue in spite of checks that failed."""
    exclude_unhealthy: bool = False
    """Leave out the nodes on which a check failed."""
    quarantined: Mapping[str, Quarantined] | None = None
    """What is remembered against nodes, by name; None: it was not read."""
    left_out: tuple[Quarantined, ...] = ()
    """The nodes that are left out for that."""
    wait: float = 0.0
    """Seconds to wait until the nodes are free; 0: a busy node refuses the launch."""
    resumed: Resumed | None = None
    """`run` and `checkpoint` that it resumes, and that run's `tree` and `commit`."""

    def __post_init__(self) -> None:
        """Refuse a name that no file could have, and to wait for nodes that are left out."""
        if self.wait and self.exclude_unhealthy:
            raise UsageError(
                "--wait waits for busy nodes, and --exclude-unhealthy leaves them out: expected one"
                " of them, found both"
            )
        if self.name and not _NAME.fullmatch(self.name):
            expected = "letters, digits, '.', '_', '-'"
            raise UsageError(f"--name: expected {expected}, found {self.name!r}")
