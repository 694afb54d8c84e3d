"""The sandboxes' folder, where another user put something else first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.sandbox import sandbox
from clusterctl.sandbox.backend import SandboxSpec


def make_file(path: Path) -> None:
    path.write_text("")


def make_link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


def make_link(path: Path) -> None:
    path.symlink_to(path.parent)


def make_open_folder(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


@pytest.mark.parametrize("squat", [make_file, make_link, make_link_to_nothing, make_open_folder])
def test_every_action_refuses_a_squatted_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squat: Callable[[Path], None]
) -> None:
    base = tmp_path / "sandboxes"
    squat(base)
    monkeypatch.setenv("CLUSTERCTL_SANDBOXES", str(base))
    for action in (partial(sandbox.up, spec=SandboxSpec()), sandbox.find, sandbox.remove):
        with pytest.raises(UsageError, match="expected a folder that only this user may write to"):
            action("lab")
    assert list(tmp_path.iterdir()) == [base]
