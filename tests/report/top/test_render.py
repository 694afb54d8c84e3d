"""`top` at several widths: worst first, equal nodes as one line, nothing wider than a screen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.logs.progress_line import JobProgress
from clusterctl.model.checkpoint import Checkpoint
from clusterctl.model.from_json import from_json
from clusterctl.model.node_run import NodeRun
from clusterctl.model.verdict import Verdict
from clusterctl.report.top.look import Look
from clusterctl.report.top.render import render
from clusterctl.verbs.runs.run_state import NodeAnswer
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.verbs.top.snapshot import Top, TopNode
from clusterctl.verbs.top.use import NodeNow, RankNow
from tests.verbs.hostile import ESCAPES, UNSAFE

NOW = 1_790_000_000.0
GIB = 1 << 30


def node(number: int, *, busy: float = 97.0, gpus: int = 8, **told: Any) -> TopNode:
    """Return a node whose GPUs are so busy; `told` is what it tells of the run."""
    name = f"node{number + 1:02d}"
    first = number * gpus
    ranks = tuple(
        RankNow(
            rank=first + n, gpu=n, percent=busy, memory_bytes=71 * GIB, memory_total_bytes=80 * GIB,
            watts=612, celsius=61, cpu_percent=101, trend=(97.0,) * 30 + (busy,) * 30,
        )
        for n in range(gpus)
    )  # fmt: skip
    now = NodeNow(
        time=NOW, percent=busy, cpu_percent=12.4, memory_bytes=91 * GIB,
        memory_total_bytes=500 * GIB, gpu_memory_bytes=71 * GIB, gpu_memory_total_bytes=80 * GIB,
        watts=612 * gpus, celsius=61, receive_bytes_s=1.2e9, send_bytes_s=1.1e9, read_bytes_s=0,
        write_bytes_s=52e6, trend=ranks[0].trend, ranks=ranks,
    )  # fmt: skip
    running = [{"rank": one.rank, "state": "running"} for one in ranks]
    answer = {"run": "lab-1", "state": "running", "ranks": running, "began": NOW - 5400, **told}
    error = told.get("error")
    return TopNode(
        answer=NodeAnswer(
            node=Node(host=name, name=name, ssh=Ssh()),
            node_run=from_json(NodeRun, answer, ""),
            error=error and NodeError("lost", "follow", error, node=name),
        ),
        now=now,
    )


def top_of(*nodes: TopNode, **more: Any) -> Top:
    view = RunStatus(
        run="lab-1",
        cluster="lab",
        nodes=tuple(one.answer for one in nodes),
        began=NOW - 5400,
        checkpoint=Checkpoint(path="out/step-40", step=40, time=NOW - 240, format="", run=""),
    )
    progress = JobProgress(
        step=53, total=2000, steps_per_s=0.4, eta_s=4867.0, loss=2.947, tokens_per_s=1812.4
    )
    known = {"printed_age_s": 2.0, "lines": ("Step 53/2000 | Loss: 2.947",), "lines_of": "node01:0"}
    return Top(time=NOW, status=view, nodes=nodes, progress=progress, **{**known, **more})


def shown(top: Top, **look: Any) -> list[str]:
    lines, _ = render(top, Look(**{"width": 120, **look}))
    return [line.plain for line in lines]


SLOW = {
    "rank": 9, "since": NOW - 60, "lost_percent": 34, "reason": "GPU 1: too hot", "where": "a.py:3"
}  # fmt: skip
FELL = {"what": "GPU", "numbers": [3], "since": NOW - 3600, "before": 97, "now": 12}


def test_80_columns_have_the_run_its_nodes_and_its_ranks() -> None:
    lines = shown(top_of(node(0, gpus=2), node(1, gpus=2)), width=80)
    assert lines[:6] == [
        "lab-1  running, 2 h, 2/2 nodes, 4 ranks",
        "step 53/2000, 2.5 s a step, 1 h 21 min left, loss 2.947, 1812 tok/s",
        "printed 2 s ago, checkpoint 4 min ago (step 40)",
        "node      state     GPU                  GPU mem   power   temp    CPU    memory",
        "node01    running  97 %  ████████████  71/80 GiB  1224 W  61 °C   12 %  91.0 GiB",
        "  rank 0  running  97 %  ████████████  71/80 GiB   612 W  61 °C  101 %",
    ]
    assert lines[-1] == "[node01:0] Step 53/2000 | Loss: 2.947"


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_64_nodes_of_8_gpus_are_a_few_lines(width: int) -> None:
    nodes = [node(n, busy=94 + n % 4) for n in range(61)]
    nodes += [node(61, stragglers=[{**SLOW, "rank": 489}]), node(62, fell=FELL)]
    nodes += [node(63, error="no answer for 12 s")]
    lines = shown(top_of(*nodes), width=width)
    assert all(cell_len(line) <= width for line in lines)
    at = next(n for n, line in enumerate(lines) if line.startswith("node "))
    table = lines[at + 1 : at + 5]
    assert [line.split()[0] for line in table] == ["node64", "node62", "node63", "61"]
    if width >= 80:
        assert "unreachable" in table[0]
        assert "rank 489 slow" in table[1]
        assert "use fell" in table[2]
        assert "61 nodes: node[01-61]" in table[3]
        assert "94-97 %" in table[3]
    assert len(lines) < 16


def test_what_is_wrong_is_said_above_the_table() -> None:
    top = top_of(node(0), node(1, stragglers=[SLOW], fell=FELL))
    text = "\n".join(shown(top))
    assert (
        "the others wait 34 % of the time for rank 9 on node02, at a.py:3: GPU 1: too hot" in text
    )
    assert "on node02: GPU 3, from 97 % to 12 %" in text
    hung = [node(n, hung={"since": NOW - 400, "quiet_s": 300.0}) for n in range(2)]
    assert "hung: no rank has shown a sign of life for 7 min" in shown(top_of(*hung))


@pytest.mark.parametrize("width", [80, 200])
def test_the_rank_for_which_a_hung_run_waits_is_on_top(width: int) -> None:
    top = top_of(*(node(n, hung={"since": NOW - 400, "quiet_s": 300.0}) for n in range(64)))
    found = Verdict(kind="elsewhere", ranks=(489,), nodes=("node62",), text="rank 489 sleeps")
    top = replace(top, status=replace(top.status, verdict=found))
    lines = shown(top, width=width)
    first, rest = [line for line in lines if "hung  " in line and "node" in line][-2:]
    assert first.startswith("node62")
    assert "rank 489: others" in first
    assert "63 nodes" in rest
    one = replace(top, nodes=top.nodes[61:62])
    (rank,) = [line for line in shown(one, width=200) if line.endswith("  others wait")]
    assert rank.startswith("  rank 489 ")


@pytest.mark.parametrize("height", [1, 5, 10, 24, 50])
def test_a_terminal_is_filled_and_never_exceeded(height: int) -> None:
    nodes = [node(n, busy=3.0 * n) for n in range(30)]
    for selected in (0, 12, 29, 99):
        look = Look(width=80, height=height, help="q quit", selected=selected, fold=False)
        lines, targets = render(top_of(*nodes), look)
        assert len(lines) == height
        assert lines[-1].plain.startswith("q quit")
        assert len(targets) == 30
        if height >= 24:
            marked = [line.plain for line in lines if str(line.style) == "reverse"]
            assert marked[0].startswith(f"node{min(selected, 29) + 1:02d}")


def test_nodes_open_and_are_sorted_by_what_keys_choose() -> None:
    top = top_of(*(node(n, busy=90 - 30 * n) for n in range(3)))

    def names(**look: Any) -> list[str]:
        lines, _ = render(top, Look(width=120, **look))
        return [" ".join(line.plain.split()[:2]) for line in lines if " running  " in line.plain]

    assert names(all_open=False) == ["node01 running", "node02 running", "node03 running"]
    assert names(all_open=False, sort="use")[0] == "node03 running"
    opened = names(all_open=False, open=frozenset({"node02"}))
    assert opened[1:4] == ["node02 running", "rank 8", "rank 9"]
    assert names(all_open=True, fold=True)[:2] == ["node01 running", "ranks 0-7"]


def test_until_nodes_answer_nothing_is_said_to_be_lost() -> None:
    asked = [replace(node(n), asked=True, now=None) for n in range(2)]
    asked = [replace(one, answer=NodeAnswer(node=one.answer.node)) for one in asked]
    lines = shown(top_of(*asked))
    assert lines[0].startswith("lab-1  asked")
    assert not any(word in line for line in lines for word in ("lost", "absent"))


def test_no_node_can_drive_the_terminal() -> None:
    evil = [node(0, error=ESCAPES, fell=FELL, stragglers=[{**SLOW, "reason": ESCAPES}])]
    top = top_of(*evil, lines=(ESCAPES, ESCAPES), lines_of=ESCAPES)
    for line in shown(top, width=200):
        assert not UNSAFE.search(line)


def test_ascii_is_enough() -> None:
    assert "#" in shown(top_of(node(0)), blocks=False)[4]
