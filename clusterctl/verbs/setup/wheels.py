"""Downloads the wheels that nodes without a network need, for their platform and their Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from clusterctl.errors import ClusterError
from clusterctl.verbs.setup.requirements import Requirements

KEPT_LINES = 8
_RETRY = "WARNING: Retrying "
"""How a line of pip begins that tells of an index it cannot reach."""
_GLIBC = (17, 28, 34, 35)
"""Minor versions of glibc that wheels are built for, besides the node's own."""
_MUSL = (2, 1)


def platforms(arch: str, glibc: str) -> tuple[str, ...]:
    """Return the platform tags of wheels that run on a node: `manylinux_2_28_x86_64`.

    A node without glibc has musl, and Python 3.9 or newer comes with musl 1.2.
    """
    if not glibc:
        return tuple(f"musllinux_1_{minor}_{arch}" for minor in _MUSL)
    found = re.fullmatch(r"2\.(\d{1,3})", glibc)
    minor = int(found[1]) if found else _GLIBC[0]
    known = sorted({*(each for each in _GLIBC if each <= minor), minor}, reverse=True)
    return (*(f"manylinux_2_{each}_{arch}" for each in known), f"manylinux2014_{arch}")


def download(
    requirements: Requirements, python: str, tags: tuple[str, ...], folder: Path
) -> tuple[Path, ...]:
    """Download the wheels of the requirements and of all that these need.

    Args:
        requirements: what to install.
        python: the nodes' version, such as `3.11`.
        tags: platforms that run there.
        folder: where to.

    Raises:
        ClusterError: one cannot be had, with pip's last lines.
    """
    file = folder / "requirements.txt"
    file.write_text(requirements.text)
    place = folder / "wheels"
    argv = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"),
        *("--quiet", "--dest", str(place), "--only-binary=:all:", "--python-version", python),
        *(f"--platform={tag}" for tag in tags),
        *("--requirement", str(file)),
    ]
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        told = [line for line in said if not line.startswith(_RETRY)]
        lines = "\n".join(told[-KEPT_LINES:])
        hint = "only wheels can be sent to a node without a network, no sources"
        if len(told) < len(said):
            hint = (
                "name a package index that this machine reaches: set PIP_INDEX_URL,"
                " or correct --index-url in the requirements, which goes first"
            )
        message = f"cannot download wheels for Python {python} on {tags[0]}:\n{lines}"
        raise ClusterError(message, hint=hint)
    return tuple(sorted(place.iterdir()))
