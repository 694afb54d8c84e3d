"""Which inventory a verb reads, and how its problems end the command."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from clusterctl.cli.shared.main import main
from clusterctl.cli.shared.options import add_selection, load_all
from clusterctl.errors import InventoryError, UsageError
from clusterctl.inventory import select
from clusterctl.inventory.cluster import Cluster
from clusterctl.verbs.runs.records import Records, RunRecord


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERCTL_INVENTORY", raising=False)
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "no-state"))
    for name in ("hosts.yaml", "flag.yaml", "variable.yaml"):
        (tmp_path / name).write_text(f"cluster: {Path(name).stem}\nnodes: [a, b, c]\n")
    return tmp_path


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_selection(parser)
    return parser.parse_args(words)


def selected(*words: str) -> Cluster:
    """Return what a verb selects, with these words."""
    args = parse(*words)
    return select(load_all(args), args.nodes, args.exclude)


def test_the_flag_comes_first_then_the_variable_then_the_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load_all(parse()).name == "hosts"
    monkeypatch.setenv("CLUSTERCTL_INVENTORY", "variable.yaml")
    assert load_all(parse()).name == "variable"
    assert load_all(parse("-i", "flag.yaml")).name == "flag"
    monkeypatch.setenv("CLUSTERCTL_INVENTORY", "")
    assert load_all(parse()).name == "hosts"


def test_nodes_are_picked() -> None:
    cluster = selected("--nodes", "1", "--exclude", "a")
    assert [node.name for node in cluster.nodes] == ["b"]
    assert len(load_all(parse("--nodes", "1")).nodes) == 3


def test_an_unknown_node_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"--exclude: expected nodes of hosts\.yaml"):
        selected("--exclude", "gpu9")


def test_a_missing_inventory_is_never_this_machine(folder: Path) -> None:
    (folder / "hosts.yaml").unlink()
    with pytest.raises(InventoryError) as caught:
        selected()
    assert str(caught.value) == "hosts.yaml: expected an inventory, found no such file"
    assert caught.value.hint == "write one: clusterctl init gpu1 gpu2"


def test_without_an_inventory_that_of_the_newest_run_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_STATE", str(folder / "state"))
    Records().write(
        RunRecord(run="hosts-1", began=1.0, cluster=load_all(parse()), source=f"{folder}")
    )
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    with pytest.raises(InventoryError) as caught:
        selected()
    assert caught.value.hint == (f"-i {folder}/hosts.yaml\nwrite one: clusterctl init gpu1 gpu2")


@pytest.mark.parametrize("verb", ["check", "sync", "launch", "runs", "forget gpu01"])
def test_every_verb_refuses_a_bad_inventory(
    verb: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "hosts.yaml").write_text("cluster: lab\nnodes: [gpu01, gpu01]\nworkdri: /code\n")
    assert main(verb.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        (
            'error: hosts.yaml:2: nodes[1].host: expected each host once, found "gpu01" again'
            " (first at hosts.yaml:2)"
        ),
        'error: hosts.yaml:3: workdri: expected "workdir", found "workdri"',
        "hint: a valid one to compare with: clusterctl init --no-connect -i new.yaml",
    ]


@pytest.mark.parametrize("verb", ["check", "sync", "launch"])
def test_every_verb_refuses_an_unknown_host(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--nodes", "gpu9"]) == 2
    assert capsys.readouterr().err == (
        'error: --nodes: expected nodes of hosts.yaml (a,b,c), found "gpu9"\n'
        f"hint: clusterctl {verb} --help\n"
    )


def test_a_host_to_forget_that_is_not_there_gets_a_hint_that_can_be_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text("cluster: lab\nnodes: [gpu01, gpu02]\n")
    assert main(["forget", "-i", str(inventory), "gpu1"]) == 2
    assert "hint: clusterctl forget gpu01" in capsys.readouterr().err
