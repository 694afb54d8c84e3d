"""The folder in which this machine keeps what it knows of clusters: runs, and hosts' keys."""

import os
from pathlib import Path

VARIABLE = "CLUSTERCTL_STATE"
ANOTHER_FOLDER = f"set {VARIABLE} to another folder"
"""What helps where the folder cannot be used."""


def state_folder() -> Path:
    """Return `$CLUSTERCTL_STATE`, else ours in the user's state folder; where a link leads."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(os.path.realpath(given))
    import platformdirs  # noqa: PLC0415  (`clusterctl --help` must be quick)

    return Path(os.path.realpath(platformdirs.user_state_path("clusterctl")))
