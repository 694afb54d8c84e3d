"""Copies the training program into a project: it is the person's own from then on."""

import importlib.metadata
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import clusterctl
from clusterctl.errors import ClusterError, UsageError

NAME = "train"
REQUIREMENTS = "requirements.txt"
_EXTRA = re.compile(r"""\s*;\s*extra\s*==\s*['"]train['"]\s*$""")


def program() -> Path:
    """Return the folder of the training program: in the wheel, else in the checkout."""
    package = Path(clusterctl.__file__).parent
    installed = package / "program" / NAME
    return installed if installed.is_dir() else package.parent / NAME


def requirements() -> Iterator[str]:
    """Yield the packages of `clusterctl[train]`, as they are written in a requirements.txt."""
    for requirement in importlib.metadata.requires("clusterctl") or ():
        if _EXTRA.search(requirement):
            yield _EXTRA.sub("", requirement)


def expect_no_train(folder: Path) -> None:
    """Refuse to touch a program that is there."""
    if (folder / NAME).exists():
        raise UsageError(
            f"--with-train: expected no {NAME} in {folder} yet, found one",
            hint=f"to keep it, leave out --with-train; to replace it: mv {NAME} {NAME}.old",
        )


def copy_train(folder: Path) -> Path:
    """Copy the program into a folder, with the list of its packages; return its path."""
    made = folder / NAME
    try:
        shutil.copytree(program(), made, ignore=shutil.ignore_patterns("__pycache__"))
        packages = "".join(f"{line}\n" for line in requirements())
        (made / REQUIREMENTS).write_text(packages)
    except OSError as error:
        raise ClusterError(f"cannot write {made}: {error}") from error
    return made
