"""`runs`, `runs show` and `logs --chain` over records, on nodes that answer at once."""

from __future__ import annotations

import argparse
import io
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clusterctl.cli.shared.main import main
from clusterctl.cli.shared.run_option import known_cluster
from clusterctl.inventory.cluster import Cluster
from clusterctl.model.node_run import Resumed
from clusterctl.transport import pool as transport
from clusterctl.transport.interface import Request
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.wire import Message
from tests.fake_pool import Answer, FakePool
from tests.verbs.run_answers import CLUSTER, data, part

Read = pytest.CaptureFixture[str]
BASE, AGAIN, LAST, OTHER = (
    f"lab-2026010{day}t000000-{end}" for day, end in enumerate(("abcd", "efgh", "jkmn", "pqrs"))
)
BEGAN = {BASE: 1000.0, AGAIN: 2000.0, LAST: 3000.0, OTHER: 4000.0}
CAUSE = {"node": "b", "rank": 1, "message": "exited with 1: KeyError: 'x'", "kind": "exit"}


def runs_of(node: str) -> list[dict[str, Any]]:
    """Return what a node knows; of the last run only `a` had a part."""
    ends = {BASE: "failed", AGAIN: "stopped", LAST: "finished", OTHER: "finished"}
    return [
        part(node, state, run=run, began=BEGAN[run], progress={"step": 30, "total": 90})
        for run, state in ends.items()
        if run != OTHER or node == "a"
    ]


def answer_of(node: str, op: str, request: Request) -> Answer:
    run = request.args.get("run")
    known = {one["run"]: one for one in runs_of(node)}
    if op == "runs":
        return [Message({"runs": list(known.values())})]
    if op == "status":
        return [Message({"node": known[str(run)]})]
    if op == "samples":
        return [Message({"samples": {"time": [1001.0], "cpu_percent": [150]}})]
    if op == "metrics":
        lines = (json.dumps({"step": n, "loss": 1 / n, "step_s": 0.1}) for n in range(1, 4))
        file = "/w/metrics.jsonl" if node == "a" and "a.jsonl" in str(request.args) else ""
        return [Message({"file": file}, "\n".join(lines).encode())]
    if request.args.get("files") == []:
        began = {"kind": "supervisor-up", "time": BEGAN[str(run)] + 1}
        event = Message({"event": began, "file": "events.jsonl", "offset": 0, "next": 50})
        return [event, Message({"node": known[str(run)]})]
    number = "ab".index(node)
    printed = data(number, 0, f"{run} printed\n".encode(), time=BEGAN[str(run)])
    return [printed, Message({"node": known[str(run)]})]


OPERATIONS = dict.fromkeys(("runs", "status", "tail", "metrics", "samples"), answer_of)


@pytest.fixture(autouse=True)
def week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    """Keep the records of four runs: one with a name, resumed twice, and another."""
    (tmp_path / "hosts.yaml").write_text("cluster: lab\nnodes: [a, b]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "250")

    def pool(cluster: Cluster, **_: object) -> FakePool:
        return FakePool(
            cluster,
            {
                node.name: {
                    op: lambda request, node=node, op=op: OPERATIONS[op](node.name, op, request)
                    for op in OPERATIONS
                }
                | {"prune": [Message({"kept": {}})]}
                for node in cluster.nodes
            },
        )

    monkeypatch.setattr(transport, "Pool", pool)
    records = Records()
    parents = {AGAIN: BASE, LAST: AGAIN}
    for run, began in BEGAN.items():
        parent = parents.get(run)
        resumed = Resumed(run=parent, checkpoint="/c/step_5", step=5) if parent else None
        one = RunRecord(
            run=run, began=began, cluster=CLUSTER, resumed=resumed,
            options={"name": "" if run == OTHER else "base"},
        )  # fmt: skip
        if run == OTHER:
            one = replace(one, cluster=CLUSTER.with_nodes(CLUSTER.nodes[:1]))
        records.write(one)
    records.write_end(
        RunRecord(run=BASE, began=1000.0, cluster=CLUSTER),
        {"state": "failed", "ended_by": "job", "exit_code": 1, "first_cause": CAUSE},
    )
    return records


def listed(capsys: Read, *words: str) -> list[str]:
    assert main(["runs", "--json", *words]) == 0
    return [one["run"].rpartition("-")[2] for one in json.loads(capsys.readouterr().out)["runs"]]


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ((), ["pqrs", "jkmn", "efgh", "abcd"]),
        (("--name", "bas"), ["jkmn", "efgh", "abcd"]),
        (("--failed",), ["abcd"]),
        (("--node", "b"), ["jkmn", "efgh", "abcd"]),
        (("--nodes", "a,b"), ["pqrs", "jkmn", "efgh", "abcd"]),
        (("--since", "1970-01-01T00:45:00+00:00"), ["pqrs", "jkmn", "abcd"]),
        (("--since", "1h", "--name", "x"), []),
    ],
)
def test_the_list_is_of_the_runs_that_are_asked_for(
    words: tuple[str, ...], runs: list[str], capsys: Read
) -> None:
    assert listed(capsys, *words) == runs


def test_a_row_tells_what_became_of_a_run_and_where_it_came_from(capsys: Read) -> None:
    assert main(["runs"]) == 0
    _, _, last, _, base = capsys.readouterr().out.splitlines()
    for word in ("jkmn", "finished", "30/90", "base", "efgh"):
        assert word in last.split()
    assert "b:1: KeyError: 'x'" in base


def test_a_part_of_several_runs_is_refused_with_commands_that_work(capsys: Read) -> None:
    for words in (["status"], ["logs"], ["runs", "show"]):
        assert main([*words, "lab-2026"]) == 2
        hints = [
            line.removeprefix("hint: ")
            for line in capsys.readouterr().err.splitlines()
            if line.startswith("hint: ")
        ]
        assert hints == [shlex.join(["clusterctl", *words, run]) for run in reversed(BEGAN)]
        for hint in hints:
            assert main(shlex.split(hint)[1:]) == 0, hint
        capsys.readouterr()


@pytest.mark.parametrize("word", [AGAIN, "efgh", "20260101t"])
def test_a_part_of_one_run_shows_it_in_full(word: str, capsys: Read) -> None:
    assert main(["runs", "show", word, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["run"], document["parent"], document["short"]) == (AGAIN, BASE, "efgh")
    assert document["chain"] == [BASE, AGAIN, LAST]


def test_runs_are_compared(capsys: Read, tmp_path: Path) -> None:
    assert main(["runs", "compare", "abcd", "pqrs", "--report", "c.html"]) == 0
    shown = capsys.readouterr()
    differs, nodes, *_ = shown.out.splitlines()
    assert differs.split() == ["differs", "abcd", "pqrs"]
    assert nodes.split() == ["nodes:", "nodes", "a,b", "a"]
    assert (
        "hint: name the file: clusterctl runs compare abcd pqrs --report c.html --metrics PATH"
        in shown.err
    )
    assert "What differs" in (tmp_path / "c.html").read_text()

    assert main(["runs", "compare", "abcd", "pqrs", "efgh", "--json", "--metrics", "a.jsonl"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["run"] for one in document["runs"]] == [BASE, OTHER, AGAIN]
    assert [one["steps"] for one in document["runs"]] == [3, 3, 3]
    assert [one["cpu_percent"] for one in document["runs"]] == [150, 150, 150]
    assert [one["metrics"] for one in document["runs"]] == ["a:/w/metrics.jsonl"] * 3


def test_what_happened_in_a_run_is_shown(capsys: Read) -> None:
    assert main(["runs", "show", "abcd", "--events"]) == 0
    _, launched, started = capsys.readouterr().out.splitlines()
    assert launched.split()[0] == "1970-01-01T00:16:40Z"
    assert "launched on 2 nodes" in launched
    assert "the supervisor started" in started

    assert main(["runs", "show", "abcd", "--events", "--json"]) == 0
    moments = json.loads(capsys.readouterr().out)["moments"]
    assert [one["nodes"] for one in moments] == [[], ["a", "b"]]


def test_a_report_is_written_next_to_the_user(capsys: Read, tmp_path: Path) -> None:
    assert main(["report", "abcd"]) == 0
    assert capsys.readouterr().out == f"{BASE}.html\n"
    assert "exited with 1" in (tmp_path / f"{BASE}.html").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("compare abcd", "expected two runs or more, found one"),
        ("compare abcd abcd", "expected different runs"),
        ("delete", "delete: expected a run, found none"),
        ("show abcd --yes", "--yes: expected it with"),
        ("compare abcd efgh --report x.md", "--report x.html"),
        ("show abcd efgh", "hint: clusterctl runs compare abcd efgh"),
        ("show abcd --metrics x", "--metrics: expected it with `compare`"),
        ("--events", "--events: expected it with `show`"),
        ("compare abcd efgh --failed", "expected compare or --failed, found both"),
    ],
)
def test_words_that_make_no_sense_together_are_refused(words: str, told: str, capsys: Read) -> None:
    assert main(["runs", *words.split()]) == 2
    assert told in capsys.readouterr().err


def test_a_word_that_is_no_action_is_told_the_way(capsys: Read) -> None:
    assert main(["runs", "efgh"]) == 2
    assert "hint: clusterctl runs show efgh" in capsys.readouterr().err
    assert main(["runs", "comprae", "abcd", "efgh"]) == 2
    assert "hint: clusterctl runs compare abcd efgh" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["abcd", "efgh", "base"])
def test_a_chain_prints_the_logs_of_all_its_runs_in_order(word: str, capsys: Read) -> None:
    assert main(["logs", word, "--chain", "--rank", "0", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["run"], one["line"]) for one in lines] == [
        (run, f"{run} printed") for run in (BASE, AGAIN, LAST)
    ]


def test_only_the_newest_run_of_a_chain_is_followed(
    capsys: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    follows: dict[str, set[bool]] = {}

    def spy(node: str, op: str, request: Request) -> Answer:
        if op == "tail":
            follows.setdefault(str(request.args["run"]), set()).add(bool(request.args["follow"]))
        return answer_of(node, op, request)

    monkeypatch.setitem(OPERATIONS, "tail", spy)
    assert main(["logs", "efgh", "--chain", "-f", "--rank", "0", "--raw"]) == 0
    assert follows == {BASE: {False}, AGAIN: {False}, LAST: {True}}
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"{run} printed" for run in (BASE, AGAIN, LAST)]


def test_the_logs_of_a_chain_are_copied_into_a_folder_for_each_run(
    capsys: Read, tmp_path: Path
) -> None:
    assert main(["logs", "abcd", "--chain", "--collect", str(tmp_path / "out")]) == 0
    copied = {path.parts[-4:]: path.read_text() for path in tmp_path.glob("out/**/*.log")}
    assert copied == {
        (run, node, "ranks", f"{number}.log"): f"{run} printed\n"
        for run in (BASE, AGAIN, LAST)
        for number, node in enumerate("ab")
    }
    assert capsys.readouterr().out == ""


def test_a_run_of_the_chain_that_is_gone_is_named_and_the_others_are_printed(
    capsys: Read, week: Records
) -> None:
    week.remove("lab", AGAIN)
    gone = Resumed(run="lab-20250101t000000-gone", checkpoint="/c", step=1)
    record = week.with_id(BASE)
    assert record is not None
    week.write(replace(record, resumed=gone))
    assert main(["logs", "abcd", "--chain", "--raw"]) == 0
    out, err = capsys.readouterr()
    assert set(out.splitlines()) == {f"{BASE} printed"}
    assert "warning: lab-20250101t000000-gone: run lab-20250101t000000-gone is known neither" in err


def test_the_records_of_an_earlier_version_are_shown(capsys: Read, week: Records) -> None:
    """They have no options, no commit and no time of the end."""
    for run in (BASE, LAST):
        path = week.folder("lab", run)
        document = json.loads((path / "record.json").read_text())
        kept = {key: document[key] for key in ("schema", "run", "began", "cluster", "plan")}
        (path / "record.json").write_text(json.dumps(kept))
    (week.folder("lab", LAST) / "end.json").write_text('{"state": "finished", "ended_by": "job"}')
    assert listed(capsys) == ["pqrs", "jkmn", "efgh", "abcd"]
    assert main(["runs"]) == 0
    assert main(["runs", "show", "jkmn"]) == 0


class Terminal(io.StringIO):
    """Answers of a person."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("\n", False), ("", False)])
def test_on_a_terminal_pruning_asks_first(
    answer: str,
    gone: bool,  # noqa: FBT001
    capsys: Read,
    week: Records,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["runs", "--prune", "0"]) == 0
    assert "pqrs" in screen.getvalue()
    assert "Delete 1 run with logs and records, here and on the nodes? [y/N] " in screen.getvalue()
    assert (week.with_id(OTHER) is None) is gone
    assert week.with_id(BASE) is not None
    assert capsys.readouterr().out.split() == ([OTHER] if gone else [])


def test_runs_are_deleted_by_their_names(capsys: Read, week: Records) -> None:
    assert main(["runs", "delete", "pqrs"]) == 2
    assert "hint: clusterctl runs delete pqrs --yes" in capsys.readouterr().err
    assert main(["runs", "rm", "pqrs"]) == 2
    assert "hint: clusterctl runs delete pqrs\n" in capsys.readouterr().err
    assert main(["runs", "delete", "pqrs", "abcd", "-y"]) == 1  # it keeps one
    out, err = capsys.readouterr()
    assert out.split() == [OTHER]  # a run that stays goes back to the other
    assert f"{BASE} is kept: {AGAIN} was resumed from it" in err
    assert week.with_id(OTHER) is None
    assert week.with_id(BASE) is not None
    assert main(["runs", "delete", "pqrs", "-y"]) == 2
    assert "no run is called pqrs" in capsys.readouterr().err


def test_a_run_of_another_cluster_is_not_deleted_without_a_word(
    capsys: Read, week: Records
) -> None:
    """Its nodes are not asked, and they may have more than the record."""
    run = "pod-20260101t000000-67sp"
    pod = replace(CLUSTER, name="pod")
    week.write(
        RunRecord(run=run, began=9.0, cluster=pod, options={"name": "q1"}, source="/home/me/pod")
    )
    for word in ("q1", run):
        assert main(["runs", "delete", word, "-y"]) == 2
        err = capsys.readouterr().err
        assert f"delete: expected a run of lab, found {run} of pod\n" in err
        assert "hint: cd /home/me/pod, then the same command\n" in err
    assert week.with_id(run) is not None


def test_a_folder_without_an_inventory_has_that_of_the_newest_run(
    week: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest run may have had some of the nodes, and others live on the rest."""
    record = week.with_id(OTHER)
    assert record is not None
    inventory = tmp_path / "project" / "hosts.yaml"
    inventory.parent.mkdir()
    inventory.write_text("cluster: lab\nnodes: [a, b, c]\n")
    cluster = replace(record.cluster.with_nodes(record.cluster.nodes[:1]), file="hosts.yaml")
    week.write(replace(record, cluster=cluster, source=str(inventory.parent)))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.delenv("CLUSTERCTL_INVENTORY", raising=False)
    args = argparse.Namespace(inventory=None)
    assert [node.name for node in known_cluster(args, week).nodes] == ["a", "b", "c"]
    inventory.unlink()
    assert [node.name for node in known_cluster(args, week).nodes] == ["a"]


def test_a_resume_says_that_the_run_is_of_another_folder(
    capsys: Read, week: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = week.with_id(OTHER)
    assert record is not None
    week.write(replace(record, source="/elsewhere"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text("cluster: lab\nnodes: [a, b]\n")
    told = f"{OTHER} is the newest run of the cluster; it was launched in /elsewhere"
    assert main(["resume", "--checkpoint", "latest"]) != 0  # these nodes have none
    assert told in " ".join(capsys.readouterr().err.split())
    assert main(["resume", OTHER, "--checkpoint", "latest"]) != 0
    err = " ".join(capsys.readouterr().err.split())
    code = f"{OTHER} was launched in /elsewhere, and gets the code of {tmp_path} now"
    assert f"{code} hint: cd /elsewhere, or --no-sync for the code on the nodes" in err
    assert main(["resume", OTHER, "--checkpoint", "latest", "--no-sync"]) != 0
    assert f"{OTHER} was launched in /elsewhere hint:" in " ".join(capsys.readouterr().err.split())


def test_of_many_runs_only_the_one_that_is_meant_is_read(
    week: Records, monkeypatch: pytest.MonkeyPatch, capsys: Read
) -> None:
    record = week.with_id(OTHER)
    assert record is not None
    text = (week.folder("lab", OTHER) / "record.json").read_text()
    for number in range(50):
        run = f"lab-2025010{number % 9}t0000{number:02}-zz{number:02}"
        folder = week.folder("lab", run)
        folder.mkdir()
        (folder / "record.json").write_text(text.replace(OTHER, run))
    seen: list[str] = []
    read = Records.read

    def noted(self: Records, cluster: str, run: str) -> RunRecord | None:
        seen.append(run)
        return read(self, cluster, run)

    monkeypatch.setattr(Records, "read", noted)
    assert main(["status", "efgh"]) == 0
    assert set(seen) <= {AGAIN, BASE}
    capsys.readouterr()


def test_on_a_terminal_it_says_which_nodes_are_asked(
    capsys: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "is_terminal", property(lambda _: True))
    assert main(["runs"]) == 0
    assert "runs 0/2, waiting for a, b" in capsys.readouterr().err
    assert main(["runs", "--prune", "9"]) == 0
    assert "runs 0/2, waiting for a, b" in capsys.readouterr().err
