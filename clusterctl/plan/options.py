"""The options of a launch, and the flag or variable that each value comes from."""

from collections.abc import Mapping
from dataclasses import field, fields

from clusterctl.errors import UsageError
from clusterctl.inventory import kinds
from clusterctl.inventory.cluster import Job, LauncherName
from clusterctl.inventory.problems import InvalidValue
from clusterctl.inventory.settings import Setting, setting, settings_of
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one launch; None: not set, so the inventory or clusterctl decides.

    An option of the same name as a setting of the job overrides that, and has its flag.
    """

    launcher: LauncherName | None = None
    launcher_args: tuple[str, ...] | None = None
    """Instead of the inventory's."""
    gpus: int | None = setting(kinds.COUNT, flag="GPUs to use on every node at most", metavar="N")
    """The most GPUs of each node."""
    procs_per_node: int | None = None
    workdir: str | None = setting(
        kinds.FOLDER,
        flag="folder on the nodes that gets the code and runs it, instead of the inventory's",
        metavar="DIR",
    )
    """For every node."""
    command: tuple[str, ...] = ()
    """After `--`; empty: the job's."""
    env: tuple[tuple[str, str], ...] = ()
    env_from: tuple[str, ...] = ()
    """Besides the inventory's."""
    master_port: int | None = setting(kinds.PORT, flag="port of the rendezvous", metavar="P")
    max_restarts: int | None = setting(
        kinds.COUNT, flag="let the launcher restart ranks", metavar="N"
    )
    max_time: float | None = None
    start_timeout: float | None = None
    lost_after: float | None = None
    restarts: int | None = setting(
        kinds.RESTARTS,
        flag="let the nodes start the run again after failures, so many times at most; 0: never",
        metavar="N",
    )
    spares: int | None = setting(
        kinds.NODES,
        flag="let the last N nodes stand by: one takes the place of a node that a restart leaves"
        " out; instead of `spare: true` in the inventory",
        metavar="N",
    )
    min_nodes: int | None = setting(
        kinds.NODES,
        flag="let a restart continue with N nodes at least if no spare node is left; 0: never",
        metavar="N",
    )
    hang_after: float | None = setting(
        kinds.DURATION,
        flag="time without a sign of life until the run is hung, such as 90s or 5m; 0: never",
        metavar="T",
    )
    hang_action: str | None = setting(
        kinds.HANG_ACTION,
        flag="what becomes of a run that is hung: report, stop or restart",
        metavar="ACTION",
    )
    debug: bool = False
    origins: Mapping[str, str] = field(default_factory=dict)
    """Field, or `env.NAME` → the origin of its value, such as `--gpus` or `CLUSTERCTL_GPUS`."""

    def __post_init__(self) -> None:
        """Raise UsageError for a number that is out of bounds."""
        for name, flagged in FLAGGED.items():
            value, (least, most) = getattr(self, name), flagged.bounds or (None, None)
            if flagged.kind is kinds.HANG_ACTION and value is not None:
                _require_action(value)
            if value is None or least is None:
                continue
            if not (least <= value <= most and value < kinds.INFINITE):
                limit = f"{least} or more" if most == kinds.INFINITE else f"{least} to {most}"
                raise UsageError(f"{name}: expected {limit}, found {value}")

    def says(self, name: str) -> bool:
        """Tell whether an option is set; 0 is a value, too, and so are no launcher's arguments."""
        return bool(getattr(self, name) != _UNSET[name])

    def origin(self, name: str) -> str:
        """Return the origin of a field's value."""
        usual = "after `--`" if name == "command" else "--" + name.replace("_", "-")
        return self.origins.get(name, usual)


def _require_action(value: object) -> None:
    try:
        kinds.HANG_ACTION.read(value)
    except InvalidValue as error:
        raise UsageError(f"hang_action: expected {error.wanted}, found {value!r}") from None


def _flagged() -> dict[str, Setting]:
    known = {**settings_of(Job), **settings_of(Options)}
    names = (one.name for one in fields(Options) if one.name in known)
    return {name: known[name] for name in names if known[name].flag}


_UNSET = {one.name: one.default for one in fields(Options)}
FLAGGED = _flagged()
"""The settings of a launch that have a flag."""
_MANY = frozenset({"env", "env_from", "debug", "origins"})
SETTINGS = tuple(one.name for one in fields(Options) if one.name not in _MANY)
"""The options that are one value each; the variables of `env` have an origin each."""
