"""The options of a launch, as the flags of the command have them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from clusterctl.errors import LargeCopy, UsageError
from clusterctl.inventory import kinds
from clusterctl.inventory.cluster import LauncherName
from clusterctl.inventory.problems import InvalidValue, Plain
from clusterctl.plan.options import FLAGGED, SETTINGS, Options

if TYPE_CHECKING:
    from clusterctl.verbs.launch.options import LaunchOptions

F = TypeVar("F", bound=Callable[..., object])


class LaunchFlags(TypedDict, total=False):
    """The options of `launch`, which `resume` takes too: each is the command's flag."""

    launcher: LauncherName | None
    launcher_args: Sequence[str] | None
    nodes: str | int | None
    """Names and ranges such as `gpu[02-04,07]`, or the first so many."""
    exclude: str | None
    exclude_unhealthy: bool
    exclude_quarantined: bool
    gpus: int | None
    procs_per_node: int | None
    workdir: str | None
    name: str | None
    env: Mapping[str, str] | None
    env_from: Sequence[str] | None
    """Variables of this process that the ranks get, besides those of the inventory."""
    master_port: int | None
    max_restarts: int | None
    max_time: float | None
    start_timeout: float | None
    lost_after: float | None
    restarts: int | None
    spares: int | None
    min_nodes: int | None
    hang_after: float | None
    hang_action: str | None
    debug: bool
    no_check: bool
    no_sync: bool
    delete: bool
    yes: bool | Callable[[LargeCopy], bool]
    """Copy however much the sync has to; a function is asked."""
    force: bool
    wait: float | None
    """Seconds to wait until no one else uses the nodes; None: a busy node refuses the launch."""
    run_id: str | None
    """The id that the run gets; None: a new one."""
    origins: Mapping[str, str] | None
    """Where a value is from that is not the caller's own, for `plan` to show."""


def lists_flags(function: F) -> F:
    """Let `help` and completion list the flags that a function takes as `**flags`."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    flags = []
    for name, kind in LaunchFlags.__annotations__.items():
        annotation = getattr(kind, "__forward_arg__", kind)
        default = False if annotation == "bool" else None
        flag = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        flags.append(flag.replace(annotation=annotation))
    function.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    return function


def launch_options(command: Sequence[str], flags: LaunchFlags) -> LaunchOptions:
    """Return a command and flags as the use case takes them.

    Raises:
        TypeError: there is no such flag.
        UsageError: a value cannot be.
    """
    from clusterctl.verbs.launch.options import LaunchOptions

    unknown = sorted(flags.keys() - LaunchFlags.__annotations__.keys())
    if unknown:
        raise TypeError(f"launch has no flag {unknown[0]!r}")
    args = flags.get("launcher_args")
    for name, words in (("command", command), ("launcher_args", args)):
        if isinstance(words, str):
            raise UsageError(
                f"{name}: expected a list of words, found {words!r}", hint="shlex.split(...)"
            )
    settings: dict[str, Any] = {name: _setting(name, flags.get(name)) for name in SETTINGS}
    settings |= {"command": tuple(command), "workdir": folder(flags.get("workdir"))}
    settings["launcher_args"] = None if args is None else tuple(args)
    overrides = Options(
        **settings,
        env=tuple((flags.get("env") or {}).items()),
        env_from=tuple(map(_variable, flags.get("env_from") or ())),
        debug=bool(flags.get("debug")),
        origins=flags.get("origins") or {},
    )
    return LaunchOptions(
        overrides=overrides,
        name=flags.get("name") or "",
        run=flags.get("run_id") or "",
        check=not flags.get("no_check"),
        sync=not flags.get("no_sync"),
        delete=bool(flags.get("delete")),
        may_copy=agreement(flags.get("yes", False)),
        force=bool(flags.get("force")),
        wait=flags.get("wait") or 0.0,
        exclude_unhealthy=bool(flags.get("exclude_unhealthy")),
    )


def agreement(yes: bool | Callable[[LargeCopy], bool]) -> Callable[[LargeCopy], bool]:  # noqa: FBT001
    """Return what says whether a sync may copy very much."""
    return yes if callable(yes) else lambda _: yes


def _setting(name: str, value: object) -> object:
    """Read a text as the flag would, such as `max_time="12h"`."""
    kind = FLAGGED[name].kind if name in FLAGGED else None
    if not isinstance(value, str) or not isinstance(kind, kinds.Kind) or kind.bounds is None:
        return value
    try:
        return kind.read(Plain(value))
    except InvalidValue as error:
        raise UsageError(f"{name}: expected {error.wanted}, found {value!r}") from error


def _variable(name: str) -> str:
    try:
        return str(kinds.VARIABLE.read(name))
    except InvalidValue as error:
        raise UsageError(f"env_from: expected {error.wanted}, found {name!r}") from error


def folder(workdir: str | None) -> str | None:
    """Return a folder on the nodes.

    Raises:
        UsageError: it is relative, or the root.
    """
    try:
        return None if workdir is None else kinds.FOLDER.read(workdir)
    except InvalidValue as error:
        raise UsageError(f"workdir: expected {error.wanted}, found {workdir!r}") from error


def ids_of(ids: str | Sequence[str]) -> tuple[str, ...]:
    """Return the ids of checks, which the command line separates by commas."""
    listed = ids.split(",") if isinstance(ids, str) else ids
    return tuple(one.strip() for one in listed if one.strip())
