"""The options that several verbs share, and readers that check a value against its bounds."""

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from clusterctl.errors import InventoryError, UsageError
from clusterctl.inventory import default_path, kinds, load
from clusterctl.inventory.cluster import Cluster, LauncherName
from clusterctl.inventory.kinds import Kind
from clusterctl.inventory.load import DEFAULT, VARIABLE
from clusterctl.inventory.problems import InvalidValue
from clusterctl.plan.options import FLAGGED

T = TypeVar("T")


def add_inventory(parser: argparse.ArgumentParser) -> None:
    """Add `-i FILE`."""
    action = parser.add_argument(
        "-i",
        "--inventory",
        type=Path,
        metavar="FILE",
        help=f"inventory (default: ${VARIABLE}, else ./{DEFAULT})",
    )
    complete_files(action)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add `-i FILE`, `--nodes` and `--exclude`."""
    add_inventory(parser)
    parser.add_argument(
        "--nodes",
        metavar="SPEC|N",
        help="only these nodes: names and ranges such as gpu[02-04,07], or the first N",
    )
    parser.add_argument("--exclude", metavar="SPEC", help="leave these nodes out")


def add_login(parser: argparse.ArgumentParser) -> None:
    """Add `--accept-new` and `--fanout N`."""
    parser.add_argument(
        "--accept-new", action="store_true", help="record the keys of hosts not known yet"
    )
    add_fanout(parser)


def add_fanout(parser: argparse.ArgumentParser) -> None:
    """Add `--fanout N`."""
    parser.add_argument(
        "--fanout",
        type=whole(1),
        metavar="N",
        help="most logins and starts at once (default: as many as answer in time)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, of a verb that prints one document."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def complete_files(action: argparse.Action) -> None:
    """Let shells complete an argument to file names (shtab.FILE, without importing it)."""
    words = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
    action.complete = words  # type: ignore[attr-defined]


def inventory_path(args: argparse.Namespace) -> Path:
    """Return the inventory's path: the flag, the variable, else ./hosts.yaml."""
    return args.inventory or default_path()


def load_all(args: argparse.Namespace, *, hosts: Sequence[str] = ()) -> Cluster:
    """Load the inventory with all its nodes; raise InventoryError if it has problems.

    Args:
        args: those of the verb. Inside of a batch job, the inventory is what it was submitted with.
        hosts: as `load` has it.
    """
    path = inventory_path(args)
    try:
        return load(path, launcher=_launcher(args), hosts=hosts, kept=_submitted(args))
    except InventoryError as error:
        if not path.exists() and args.inventory is None:
            from clusterctl.verbs.runs.records import Records  # noqa: PLC0415  (only for an error)

            newest = next(Records().newest_first(), None)
            file = newest and newest.inventory
            flag = f"-i {shlex.quote(str(file))}" if file else ""
            error.hint = "\n".join(filter(None, (flag, error.hint)))
        raise


def _submitted(args: argparse.Namespace) -> Path | None:
    """Return the copy of the inventory that this batch job was submitted with."""
    run = getattr(args, "run_id", None)
    if run is None:
        return None
    from clusterctl.verbs.batch.job import BatchJobs  # noqa: PLC0415  (only inside of a job)
    from clusterctl.verbs.runs.records import Records  # noqa: PLC0415

    return BatchJobs(Records()).inventory(run)


def _launcher(args: argparse.Namespace) -> LauncherName | None:
    """Return the launcher of the command line, which decides where the nodes come from."""
    if "launcher" not in args:
        return None
    return cast("LauncherName | None", flag_or_variable(args, "launcher")[0])


def add_workdir(parser: argparse.ArgumentParser) -> None:
    """Add `--workdir DIR`."""
    add_setting(parser, "workdir")


def add_setting(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the flag of a setting."""
    setting = FLAGGED[name]
    kind, text = setting.kind, setting.flag
    more: dict[str, Any] = {"type": _reader(name), "metavar": setting.metavar}
    if kind is kinds.BOOLEAN:
        more = {"action": "store_true"}
    elif kind is kinds.WORDS:
        more |= {"action": "extend", "metavar": f"'{setting.metavar}'"}
    elif kind is kinds.TIMEOUT:
        text = f"{text} (default: {setting.default:g})"
    elif "enum" in setting.schema:
        more = {"choices": sorted(cast("list[str]", setting.schema["enum"]))}
    parser.add_argument(f"--{name.replace('_', '-')}", help=text, **more)


def given_workdir(args: argparse.Namespace) -> str | None:
    """Return the folder of `--workdir`, else of the variable; raise UsageError if it is none."""
    return cast("str | None", flag_or_variable(args, "workdir")[0])


def flag_or_variable(args: argparse.Namespace, name: str) -> tuple[object, str]:
    """Return the value of a setting's flag, else of its variable, with the name of that."""
    value, variable = getattr(args, name), f"CLUSTERCTL_{name.upper()}"
    if value is not None or not os.environ.get(variable):
        return value, ""
    try:
        return _reader(name)(os.environ[variable]), variable
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{variable}: {error}") from error


def _reader(name: str) -> Callable[[str], object]:
    """Return what reads the text of a setting's flag or variable."""
    kind, bounds = FLAGGED[name].kind, FLAGGED[name].bounds
    if kind is kinds.TIMEOUT:
        return positive_seconds
    if kind in (kinds.DURATION, kinds.MAX_TIME, kinds.FOLDER):
        return partial(read_as, kind)
    if bounds:
        return whole(*bounds)
    return _words if kind is kinds.WORDS else str


def _words(text: str) -> tuple[str, ...]:
    """Read words as a shell would."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected words, found {text!r}: {error}") from error


def whole(least: float, most: float = kinds.INFINITE) -> Callable[[str], int]:
    """Return a reader of whole numbers within bounds."""

    def read(text: str) -> int:
        wanted = f"{least} or more" if most == kinds.INFINITE else f"{least} to {most}"
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number, {wanted}, found {text!r}")
        return number

    return read


def seconds(text: str) -> float:
    """Read a length of time that is not negative, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds, 0 or more, found {text!r}")
    return number


def read_as(kind: Kind[T], text: str) -> T:
    """Read a value as the inventory has it, such as the time 90s, for argparse."""
    try:
        return cast("T", kind.read(text))
    except InvalidValue as invalid:
        raise argparse.ArgumentTypeError(f"expected {invalid.wanted}, found {text!r}") from invalid


def positive_seconds(text: str) -> float:
    """Read a length of time that is not 0, for argparse."""
    number = seconds(text)
    if number == 0:
        raise argparse.ArgumentTypeError(f"expected more than 0 seconds, found {text!r}")
    return number
