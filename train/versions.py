"""The oldest supported and the tested versions of the packages that compute, in one table.

Nothing is imported to read a version: an older package may fail to import.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from train.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What train/ supports of one package."""

    oldest: str
    """An older one is refused; train/'s tests once ran with this one."""
    tested: str
    """All tests run with this one; a newer one is a remark."""


TABLE = {
    "torch": Versions(oldest="2.11", tested="2.13"),
    "transformers": Versions(oldest="5.17", tested="5.24"),
    "peft": Versions(oldest="0.21", tested="0.21"),
    "accelerate": Versions(oldest="1.15", tested="1.15"),
}


version = cache(metadata.version)
"""The version of an installed package. Reading one takes milliseconds."""


def installed() -> dict[str, str]:
    """Return the versions of the table's packages, as they name themselves."""
    found = dict.fromkeys(TABLE, "unknown")  # absent, or built in place without metadata
    for name in TABLE:
        with suppress(metadata.PackageNotFoundError):
            found[name] = version(name)
    return found


def release(text: str) -> tuple[int, ...]:
    """Return a version's numbers: `2.11.0a0+nv26.02` is 2.11.0; empty if it begins with none.

    A snapshot counts as the release it leads to. Images from NVIDIA hold such builds.
    """
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(map(int, match[1].split("."))) if match else ()


def older() -> tuple[str, ...]:
    """Return the installed packages that are too old, each as `NAME: expected, found`."""
    return tuple(
        f"{name}: expected >= {TABLE[name].oldest}, found {text}"
        for name, text in installed().items()
        if release(text) and release(text) < release(TABLE[name].oldest)
    )


def remarks() -> tuple[str, ...]:
    """Return the installed packages that are newer than tested, or have no release number."""
    found = []
    for name, text in installed().items():
        tested, oldest, numbers = TABLE[name].tested, TABLE[name].oldest, release(text)
        if numbers[: len(release(tested))] > release(tested):
            found.append(f"{name} {text} is newer than the tested {tested}")
        elif not numbers:
            found.append(f"{name}: expected >= {oldest}, found version {text}, not compared")
    return tuple(found)


def refuse_older() -> None:
    """Refuse packages that are too old, before one of them fails to import."""
    if problems := older():
        names = {problem.partition(":")[0] for problem in problems}
        raise ConfigError(*problems, hint=install(**{n: TABLE[n].oldest for n in sorted(names)}))


def install(**least: str) -> str:
    """Return the command that installs packages; `least` has the oldest of each, empty for any."""
    if importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", "install"]
    else:  # uv leaves it out
        command = ["uv", "pip", "install", "--python", sys.executable]
    managed = Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED"
    if sys.prefix == sys.base_prefix and managed.exists():  # the system's own Python
        command.append("--break-system-packages")
    return shlex.join((*command, *(f"{n}>={v}" if v else n for n, v in least.items())))
