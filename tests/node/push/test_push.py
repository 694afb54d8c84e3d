"""The order in which a node says how far it is."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.push import push as module
from clusterctl.node.push.manifest import read_tree
from clusterctl.plan.certificate import make_identity
from clusterctl.wire import Message
from tests.waiting import wait_until


class Controller(CallChannel):
    """Leads a node through its steps, and hears of its port only slowly."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        super().__init__(io.BytesIO(), -1)
        self.heard: list[dict[str, Any]] = []
        self._steps = steps

    def receive(self) -> Message | None:
        if self._steps:
            return Message(self._steps.pop(0))
        wait_until(lambda: any("complete" in head for head in self.heard))
        return Message({"step": "end"})

    def send(self, message: Message) -> None:
        if "listening" in message.head:
            time.sleep(0.5)
        self.heard.append(message.head)


def test_a_node_that_has_all_says_so_after_it_has_said_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the controller waits a minute for a node that is done."""
    monkeypatch.setattr(module, "REPORT_SECONDS", 0.05)
    (tmp_path / "f").write_bytes(b"here already")
    own = make_identity("test")
    args = {"certificate": own.certificate, "key": own.key, "token": own.token}
    args |= {"target": str(tmp_path / "f"), "mark": "x"}
    controller = Controller([{"step": "compare"}, {"step": "begin", "address": "127.0.0.1"}])
    body = read_tree(os.fsencode(tmp_path / "f"), lambda _: None).encode()
    assert module.push(args, body, controller).head["complete"] is True
    said = [key for head in controller.heard for key in ("listening", "complete") if key in head]
    assert said == ["listening", "complete"]
