"""`status --watch` prints again until the run is over."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from rich.console import Console

from clusterctl.cli.runs import status
from clusterctl.model.run_record import RunEnd
from clusterctl.report.console import Screen
from clusterctl.verbs.runs.run_state import NodeAnswer
from clusterctl.verbs.runs.run_status import RunStatus
from tests.verbs.run_answers import CLUSTER, RUN, node_run


def views() -> Iterator[RunStatus]:
    for state in ("starting", "running", "finished"):
        answer = NodeAnswer(node=CLUSTER.nodes[0], node_run=node_run("a", state))
        yield RunStatus(run=RUN, cluster="lab", nodes=(answer,))


def watched(*, terminal: bool = False, as_json: bool = False) -> str:
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=terminal, color_system=None, width=100))
    args = argparse.Namespace(watch=0.001, json=as_json, prometheus=False)
    found = views()
    assert status.watch(args, screen, lambda: next(found)).state == "finished"
    return out.getvalue()


def test_without_a_terminal_blocks_are_appended() -> None:
    blocks = watched().split("\n\n")
    assert [block.splitlines()[0] for block in blocks[:3]] == [
        f"{RUN}  {state}" for state in ("starting", "running", "finished")
    ]
    assert "\x1b" not in watched()


def test_a_terminal_is_drawn_anew() -> None:
    assert watched(terminal=True).count("\x1b[2J") == 3


def test_json_is_one_document_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    watched(as_json=True)
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["state"] for document in documents] == ["starting", "running", "finished"]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "base"])
def test_a_wait_that_is_none_is_refused(text: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    status.add_arguments(parser)
    with pytest.raises(argparse.ArgumentError, match=r"expected 0\.5 to 86400 seconds, found"):
        parser.parse_args([f"--watch={text}"])
    assert parser.parse_args(["--watch"]).watch == 2.0
    assert parser.parse_args([]).watch is None


def test_a_queued_job_is_asked_again_until_its_nodes_can_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states = iter(("queued", "starting"))
    batch = SimpleNamespace(run=RUN)
    monkeypatch.setattr(
        status, "batch_of", lambda _: (batch, state) if (state := next(states, None)) else None
    )
    monkeypatch.setattr(
        status,
        "view_of_batch",
        lambda _, state: RunStatus(
            run=RUN, cluster="lab", nodes=(), remembered=RunEnd(state=state)
        ),
    )
    monkeypatch.setattr(status, "_show", lambda args, _: 3 if args.run == RUN else 0)
    args = argparse.Namespace(run=None, watch=0.001, json=True, prometheus=False)
    assert status.run(args) == 3
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["state"] for document in documents] == ["queued", "starting"]
