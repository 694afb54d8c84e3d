"""Which inventory counts for a recorded run, and what is reported of a difference."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.cli.shared import run_option
from clusterctl.cli.shared.parser import build_parser
from clusterctl.errors import InventoryError, UsageError
from clusterctl.inventory import load, select
from clusterctl.inventory.cluster import Cluster
from clusterctl.verbs.runs.find_run import SeveralLive
from clusterctl.verbs.runs.recorded_job import nodes_again, reached
from clusterctl.verbs.runs.records import RunRecord
from clusterctl.verbs.runs.run_status import RunStatus

WRITTEN = "cluster: lab\nssh: {{port: {port}}}\ndefaults: {{python: {python}}}\nnodes: [{nodes}]\n"


def write(path: Path, *, port: int = 22, python: str = "/a/python", nodes: str = "a, b, c") -> Path:
    path.write_text(WRITTEN.format(port=port, python=python, nodes=nodes))
    return path


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERCTL_INVENTORY", raising=False)
    lab = load(write(tmp_path / "then.yaml"))
    return RunRecord(run="lab-1", began=1.0, cluster=lab.with_nodes(lab.nodes[:2]))


def given(path: Path | None = None) -> argparse.Namespace:
    return argparse.Namespace(inventory=path, nodes=None)


def asked(args: argparse.Namespace, record: RunRecord) -> Cluster:
    """Return the nodes that are asked about a run, as a session has them."""
    return reached(record, run_option.to_ask(args, record))


def resumed(args: argparse.Namespace, record: RunRecord) -> Cluster:
    """Return the nodes to resume on, as a session picks them."""
    cluster = run_option.to_resume(args, record)
    return select(cluster, ",".join(node.name for node in record.cluster.nodes))


def test_without_an_inventory_the_record_counts(record: RunRecord) -> None:
    assert asked(given(), record) == record.cluster
    assert resumed(given(), record) == record.cluster


def test_an_inventory_as_it_was_is_not_parsed_again(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_option, "load_all", lambda _args: pytest.fail("it was parsed"))
    assert run_option.to_ask(given(tmp_path / "then.yaml"), record) is record.cluster


@pytest.mark.parametrize("change", ["text", "folder", "machine"])
def test_an_inventory_that_may_mean_something_else_is_parsed(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = tmp_path / "then.yaml"
    if change == "text":
        path.write_text(path.read_text() + "# more\n")
    elif change == "folder":  # an identity may be named as it lies beside the file
        (tmp_path / "other").mkdir()
        path = path.rename(tmp_path / "other" / "then.yaml")
    else:
        monkeypatch.setattr(run_option, "is_here", lambda host, _own: host == "b")
    parsed = []

    def parse(args: argparse.Namespace) -> Cluster:
        parsed.append(args.inventory)
        return load(args.inventory)

    monkeypatch.setattr(run_option, "load_all", parse)
    run_option.to_ask(given(path), record)
    assert parsed == [path]


@pytest.mark.parametrize("by", ["flag", "variable", "folder"])
def test_an_inventory_of_the_cluster_says_how_its_nodes_are_reached(
    record: RunRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    by: str,
) -> None:
    path = write(tmp_path / ("hosts.yaml" if by == "folder" else "x.yaml"), port=2222, python="/b")
    if by == "variable":
        monkeypatch.setenv("CLUSTERCTL_INVENTORY", str(path))
    args = given(path if by == "flag" else None)
    with caplog.at_level(logging.WARNING):
        now = asked(args, record)
    assert [node.ssh.port for node in now.nodes] == [2222, 2222]
    assert [node.python for node in now.nodes] == ["/a/python", "/a/python"]
    assert "ssh of a changed since lab-1 was launched; using the inventory's" in caplog.text
    again = resumed(args, record)
    assert [(node.name, node.ssh.port, node.python) for node in again.nodes] == [
        ("a", 2222, "/b"), ("b", 2222, "/b"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("nodes: [a, c]", "it lacks b"),
        ("cluster: other\nnodes: [a, b]", ""),
        ("nodes: 5", "hosts.yaml:2: nodes: expected a list of hosts"),
    ],
)
def test_another_inventory_in_the_folder_does_not_count(
    record: RunRecord, caplog: pytest.LogCaptureFixture, change: str, told: str
) -> None:
    text = change if "cluster" in change else "cluster: lab\n" + change
    Path("hosts.yaml").write_text(text + "\n")
    with caplog.at_level(logging.WARNING):
        assert asked(given(), record) == record.cluster
        assert resumed(given(), record).nodes == record.cluster.nodes
    assert (told in caplog.text) if told else not caplog.text


def test_a_file_that_is_named_must_be_right(record: RunRecord, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("nodes: 5\n")
    with pytest.raises(InventoryError):
        asked(given(bad), record)
    fewer = write(tmp_path / "fewer.yaml", nodes="a")
    with pytest.raises(UsageError):
        resumed(given(fewer), record)


def test_what_a_flag_set_at_the_launch_is_no_difference(
    record: RunRecord, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = tuple(replace(n, gpus_limit=2, workdir="/x") for n in record.cluster.nodes)
    launched = replace(record, cluster=record.cluster.with_nodes(nodes))
    write(tmp_path / "hosts.yaml")
    with caplog.at_level(logging.WARNING):
        resumed(given(), launched)
        assert asked(given(), launched).nodes == nodes
    assert not caplog.text


def test_an_inventory_that_lacks_a_node_still_has_the_job(
    record: RunRecord, tmp_path: Path
) -> None:
    hosts = write(tmp_path / "hosts.yaml", nodes="a")
    hosts.write_text(hosts.read_text() + "job: {checkpoints: out}\n")
    again = resumed(given(), record)
    assert (again.nodes, again.job.checkpoints) == (record.cluster.nodes, "out")


def test_a_node_that_the_inventory_no_longer_has_can_be_excluded(
    record: RunRecord, tmp_path: Path
) -> None:
    """Typed with -i, the inventory alone counts: the hint picks those that it has."""
    hosts = write(tmp_path / "hosts.yaml", nodes="a, c")
    args = build_parser(["resume"]).parse_args(
        ["resume", "lab-1", "--checkpoint", "latest", "--exclude", "b"]
    )
    left = select(run_option.to_resume(args, record), "a,b", "b").nodes
    assert [node.name for node in left] == ["a"]
    with pytest.raises(UsageError, match=r"nodes of lab-1, found that it lacks b$") as caught:
        nodes_again(record, run_option.to_resume(given(hosts), record))
    assert caught.value.hint == "--nodes a"
    assert nodes_again(record, record.cluster) == "a,b"


@pytest.mark.parametrize(
    ("words", "hints"),
    [
        (
            ["stop", "--grace", "5"],
            ["stop lab-1 --grace 5", "stop lab-2 --grace 5", "stop --all --grace 5"],
        ),
        (["runs", "show", "--json"], ["runs show lab-1 --json", "runs show lab-2 --json"]),
        (["status"], ["status lab-1", "status lab-2"]),
    ],
)
def test_of_several_live_runs_each_is_a_command(words: list[str], hints: list[str]) -> None:
    args = build_parser([words[0]]).parse_args(words, argparse.Namespace(words=words))
    several = SeveralLive([RunStatus(run=f"lab-{n}", cluster="lab", nodes=()) for n in (1, 2)])
    run_option.name_each_run(args, several)
    assert (several.hint or "").splitlines() == [f"clusterctl {hint}" for hint in hints]
    for hint in hints:
        build_parser([words[0]]).parse_args(hint.split())
