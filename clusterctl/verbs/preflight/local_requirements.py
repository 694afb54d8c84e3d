"""The packages that the folder's requirements.txt names, as the sync will bring it."""

import re
from pathlib import Path

from clusterctl.checks.software.packages import metadata_name
from clusterctl.errors import ClusterError
from clusterctl.verbs.setup.requirements import read_requirements

NAME = "requirements.txt"
_PLAIN = re.compile(
    r"([A-Za-z0-9][\w.-]*)\s*(?:\[[\w\s,.-]*\])?\s*((?:(?:===?|~=|!=|[<>]=?)\s*[\w.*+!-]+\s*,?\s*)*)"
)
"""A name and versions; not a URL, nor a line that only holds on some machines."""
_MOST = 200
"""Lines that are compared."""


def local_requirements(source: Path) -> tuple[tuple[str, str], ...]:
    """Return the names as packages' metadata has them, each with its versions, as `>=2.4,<3`."""
    if (source / "uv.lock").exists() or not (source / NAME).is_file():
        return ()  # of both, setup takes the lock, which only uv reads
    try:
        lines = read_requirements(source / NAME, source).text.splitlines()
    except ClusterError:
        return ()  # setup says what is wrong with it
    found = filter(None, (_PLAIN.fullmatch(line.strip()) for line in lines[:_MOST]))
    return tuple((metadata_name(one[1]), "".join(one[2].split())) for one in found)
