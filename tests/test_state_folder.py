"""One folder for all that this machine keeps of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.state_folder import state_folder
from clusterctl.transport.ssh.host_keys import own_file
from clusterctl.verbs.runs.records import Records


def test_runs_and_keys_are_kept_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path))
    assert own_file("lab") == tmp_path / "lab" / "known_hosts"
    assert Records().folder("lab", "run") == tmp_path / "lab" / "run"


def test_without_the_variable_it_is_the_users_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_STATE", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "clusterctl"


def test_a_link_to_another_disk_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "state").symlink_to("scratch")
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    assert state_folder() == tmp_path / "scratch"
