"""What a node asks for while it makes its environment."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.verbs.events import ignore
from clusterctl.verbs.setup import setup as module
from clusterctl.verbs.setup.requirements import Requirements
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.setup.wheelhouse import write_wheel


def test_wheels_are_sent_once_however_often_a_node_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path, "alpha", "1.0")
    text = f"--no-index\n--find-links {tmp_path}\nalpha\n"
    made = Message({"state": "created", "version": "3.11", "packages": {"alpha": "1.0"}})
    answers = {
        "platform": [Message({"python": "3.11", "arch": "x86_64", "glibc": "2.36"})],
        "make-venv": [*(Message({"wants": True}) for _ in range(100)), made],
    }
    target = Node(host="gpu1", name="gpu1", ssh=Ssh(), python="/venv/bin/python")
    pool = FakePool(Cluster(name="lab", nodes=(target,)), {"gpu1": answers})
    wanted = Requirements(source=tmp_path / "requirements.txt", text=text)
    sent: list[tuple[Path, ...]] = []
    monkeypatch.setattr(module, "_send_wheels", lambda _call, wheels: sent.append(wheels))
    before = set(threading.enumerate())
    result = module.setup(pool, wanted, module.SetupOptions(offline=True), emit=ignore)
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert result.exit_code == 0
    assert [[wheel.name for wheel in wheels] for wheels in sent] == [["alpha-1.0-py3-none-any.whl"]]
