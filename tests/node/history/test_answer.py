"""`watch` and `samples` answer with what a run's folder has, and each sample once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.history import answer
from clusterctl.node.run.files.run_files import write_json
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.status import use_that_fell
from clusterctl.node.run.samples.kept import append_row
from clusterctl.wire import Message
from tests.node.run.samples.rows import BEGAN, row


class Channel:
    """A controller that reads; something happens after each message."""

    disconnected = False

    def __init__(self, *then: Any) -> None:
        self.sent: list[Message] = []
        self.then = list(then)

    def send(self, message: Message) -> None:
        self.sent.append(message)
        self.then.pop(0)()


@pytest.fixture
def args(tmp_path: Path) -> dict[str, Any]:
    found = {"state": str(tmp_path), "cluster": "lab", "run": "lab-1", "node": "a"}
    paths = NodePaths.of(found)
    Path(paths.folder).mkdir(0o700, parents=True)
    write_json(paths.job, {"run": "lab-1", "node": "a"})
    os.utime(paths.job, (BEGAN, BEGAN))
    write_json(paths.supervisor, {"pid": os.getpid(), "state": "running"})
    for number in range(3):
        append_row(paths.samples, row(number, cpu=[100.0]))
    return found


def ask(op: Any, args: dict[str, Any], *then: Any) -> list[dict[str, Any]]:
    channel = Channel(*then)
    last = op(args, b"", channel)
    return [message.head for message in (*channel.sent, last)]


def test_samples_are_those_after_a_time_and_at_most_so_many(args: dict[str, Any]) -> None:
    (told,) = ask(answer.samples, args)
    assert told["samples"]["time"] == [BEGAN + 5, BEGAN + 10, BEGAN + 15]
    (told,) = ask(answer.samples, {**args, "since": BEGAN + 5, "most": 1})
    assert (told["samples"]["time"], told["samples"]["seconds"]) == ([BEGAN + 15], [10.0])
    with pytest.raises(OperationError, match=r"folder of run .* is not on this node"):
        ask(answer.samples, {**args, "run": "lab-2"})


def test_what_is_watched_comes_once_and_until_the_run_is_over(
    args: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(answer, "is_over", lambda paths: Path(paths.end).exists())
    paths = NodePaths.of(args)

    def ends() -> None:
        append_row(paths.samples, row(4))
        write_json(paths.end, {"state": "finished", "time": BEGAN})

    past = time.time() - BEGAN
    asked = {**args, "follow": True, "past": past, "since": BEGAN + 5}
    told = ask(answer.watch, asked, lambda: append_row(paths.samples, row(3)), ends, int, int)
    times = [moment for each in told for moment in each["samples"]["time"]]
    assert times == [BEGAN + 5 * n for n in (2, 3, 4, 5)]
    assert told[-1]["node"]["state"] == "finished"
    (once,) = ask(answer.watch, {**args, "past": past})
    assert len(once["samples"]["time"]) == 5


def test_use_before_this_attempt_is_not_compared_with(args: dict[str, Any]) -> None:
    paths = NodePaths.of(args)
    for number in range(3, 400):
        append_row(paths.samples, row(number, cpu=[100.0 if number < 200 else 1.0]))
    fell = use_that_fell(paths)
    assert fell is not None
    assert fell["since"] == BEGAN + 1000
    os.utime(paths.job, (BEGAN + 1000, BEGAN + 1000))  # it has started again, and loads
    assert use_that_fell(paths) is None
