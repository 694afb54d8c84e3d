"""Faults of storage are on one host alone, and gone after heal."""

from __future__ import annotations

import subprocess

import pytest

from clusterctl.sandbox.sandbox import Sandbox
from tests.conftest import MakeSandbox


@pytest.fixture
def pair(make_sandbox: MakeSandbox) -> Sandbox:
    box = make_sandbox(nodes=2)
    (box.shared / "token").write_text("seen by all")
    return box


def token(box: Sandbox, node: str) -> str:
    return box.on(node, ["cat", "/shared/token"]).stdout


@pytest.mark.parametrize("kind", ["shared-unmounted", "shared-replaced"])
def test_the_shared_folder_is_another_on_one_host(pair: Sandbox, kind: str) -> None:
    pair.fault("node2", kind)
    assert token(pair, "node1") == "seen by all"
    assert token(pair, "node2") == ""
    assert pair.on("node2", ["ls", "/shared"]).returncode == 0
    pair.heal()
    assert token(pair, "node2") == "seen by all"


def test_a_hung_mount_hangs_whoever_looks(pair: Sandbox) -> None:
    pair.fault("node2", "hung-mount")
    with pytest.raises(subprocess.TimeoutExpired):
        pair.on("node2", ["cat", "/shared/token"], timeout=0.5)
    assert token(pair, "node1") == "seen by all"
    pair.heal()
    assert token(pair, "node2") == "seen by all"
