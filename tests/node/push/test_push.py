"""What a node says to the controller, and when."""

from __future__ import annotations

import io
import os
import time
import zlib
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


class Reached(CallChannel):
    """Leads a source that reaches nodes by SSH only."""

    def __init__(self, *steps: Message) -> None:
        super().__init__(io.BytesIO(), -1)
        self.heard: list[dict[str, Any]] = []
        self._steps = list(steps)
        self._relays = len(steps) - 1

    def receive(self) -> Message | None:
        message = self._steps.pop(0)
        if message.head["step"] == "end":
            wait_until(lambda: sum(bool(ENDS & {*h}) for h in self.heard) == self._relays)
        return message

    def send(self, message: Message) -> None:
        self.heard.append(message.head)


def relay(peer: str, body: bytes) -> Message:
    return Message({"step": "relay", "peer": peer}, body)


END = Message({"step": "end"})
ENDS = {"sent", "lost", "failed"}


@pytest.mark.parametrize("body", [b"garbage", zlib.compress(b"\2"), b""])
def test_a_node_that_says_nonsense_ends_no_push(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "f").write_bytes(b"data")
    manifest = read_tree(os.fsencode(tmp_path / "f"), lambda _: None).encode()
    controller = Reached(relay("bad", body), relay("good", zlib.compress(b"\0")), END)
    args = {"target": str(tmp_path / "f"), "source": True}
    assert module.push(args, manifest, controller).head["complete"] is True
    lost = {"lost": "bad", "why": "it is not a node of this push"}
    block = {"block": 0, "to": "good", "more": False}
    told = [head for head in controller.heard if {"lost", "block", "sent"} & {*head}]
    assert told == [lost, block, {"sent": "good"}]


def test_a_file_of_the_source_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"data")
    manifest = read_tree(os.fsencode(tmp_path / "f"), lambda _: None).encode()
    (tmp_path / "f").unlink()
    controller = Reached(relay("a", zlib.compress(b"\0")), END)
    module.push({"target": str(tmp_path / "f"), "source": True}, manifest, controller)
    assert {"failed": f"{tmp_path}/f: No such file or directory"} in controller.heard
