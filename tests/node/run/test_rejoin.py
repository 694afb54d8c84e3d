"""The folder of a node that joins again: as new for a stop, and as before if the start fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.rejoin import continued_folder


def test_a_stop_amid_the_start_takes_the_earlier_supervisor_for_nobody(tmp_path: Path) -> None:
    """Otherwise it would write no end for this start to find."""
    paths = NodePaths(str(tmp_path))
    earlier = {path: Path(path) for path in (paths.supervisor, paths.end)}
    for path in earlier.values():
        path.write_text("{}")
    with pytest.raises(OSError, match="no room"), continued_folder(paths):  # noqa: PT012
        assert not any(path.exists() for path in earlier.values())
        raise OSError("no room")
    assert all(path.read_text() == "{}" for path in earlier.values())
