"""A program is found as a shell finds it, and a link that leads nowhere is named."""

from __future__ import annotations

import os
from pathlib import Path

from clusterctl.node.program_path import broken_link, find_program


def test_a_link_that_leads_nowhere_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(tmp_path / "gone/python3.13")
    link = os.fsencode(tmp_path / "python")
    assert find_program(link, b"") is None
    assert f"it leads to {tmp_path}/gone/python3.13" in broken_link(link)
    assert broken_link(os.fsencode(tmp_path / "other")) == broken_link(b"python") == ""
