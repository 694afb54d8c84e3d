"""A node that was lost is kept out until a person takes it back: from the run to the removal."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterctl.cli.shared.main import main
from clusterctl.verbs.quarantine.store import FILE
from tests.cli.conftest import MakeProject
from tests.cli.runs import Project
from tests.cli.test_json import validate
from tests.conftest import MakeSandbox

IN = "node3: in quarantine: the node was lost: node"


def listed(project: Project, **env: str) -> list[dict[str, Any]]:
    answer = project.run("quarantine", "--json", env=env)
    nodes: list[dict[str, Any]] = json.loads(answer.stdout)["nodes"]
    return nodes


def planned(done: subprocess.CompletedProcess[str]) -> list[str]:
    plan = json.loads(done.stdout.splitlines()[-1])
    return [node["node"] for node in plan["nodes"]]


@pytest.mark.netns
def test_a_node_that_was_lost_stays_out_until_it_is_taken_back(
    make_sandbox: MakeSandbox, make_project: MakeProject, tmp_path: Path
) -> None:
    project = make_project(make_sandbox(nodes=3))
    words = ("--launcher", "direct", "--lost-after", "3", "--env", "STEPS=6000", "--", "job.py")
    following = project.start("launch", *words)
    assert following.stdout is not None
    assert any("all met" in line for line in following.stdout)
    project.sandbox.fault("node3", "killed")
    _, said = following.communicate(timeout=100)
    assert following.returncode == 125, said
    assert IN in said
    assert "hint: if repaired: clusterctl quarantine remove node3" in said

    document = project.status()
    validate("status", document)
    run = document["run"]
    (known,) = document["quarantined"]
    assert (known["node"], known["run"]) == ("node3", run)
    assert known["until"] - known["since"] == pytest.approx(7 * 86400)
    assert listed(project)[0]["reason"] == known["reason"]
    end = json.loads((project.state / run.rpartition("-20")[0] / run / "end.json").read_text())
    assert [one["node"] for one in end["quarantined"]] == ["node3"]
    # A machine without the record cannot tell whether a node has invented the run.
    there = {"CLUSTERCTL_STATE": str(tmp_path / "another")}
    assert IN not in project.run("status", run, env=there).stdout
    assert listed(project, **there) == []

    project.sandbox.heal()
    checked = project.run("check", "--only", "node.quarantine")
    assert checked.returncode == 0, checked.stdout
    assert IN.removeprefix("node3: ")[:20] in checked.stdout
    assert f"run {run} failed" in checked.stdout
    assert project.run("check", "--only", "node.quarantine", "--strict").returncode == 1

    dry = ("launch", "--dry-run", "--json", "--no-check", "--launcher", "direct")
    assert planned(project.run(*dry, "--", "job.py")) == ["node1", "node2", "node3"]
    refused = project.run(*dry, "--nodes", "3", "--exclude-quarantined", "--", "job.py")
    assert refused.returncode == 125
    assert "expected 3 nodes, found 2: node3 is in quarantine" in refused.stderr
    goes_on = project.launch("--exclude-quarantined", "--", "job.py")
    assert goes_on.returncode == 0, goes_on.stderr
    assert "left out: node3: in quarantine: the node was lost" in goes_on.stderr
    assert goes_on.stderr.index("left out") < goes_on.stderr.index("direct, 2 ranks")
    shown = json.loads(project.run("runs", "show", "--json").stdout)
    validate("runs-show", shown)
    assert shown["nodes"] == ["node1", "node2"]
    assert [one["node"] for one in shown["left_out"]] == ["node3"]
    inventory = yaml.safe_load(project.inventory.read_text())
    avoiding = inventory | {"quarantine": {"avoid": True}}
    project.inventory.write_text(yaml.safe_dump(avoiding, sort_keys=False))
    assert planned(project.run(*dry, "--", "job.py")) == ["node1", "node2"]

    removed = project.run("quarantine", "remove", "node3")
    assert (removed.returncode, removed.stdout) == (0, "node3: taken out of quarantine\n")
    assert project.status(run)["quarantined"] == []  # the run that is shown again changes nothing
    assert listed(project) == []
    assert planned(project.run(*dry, "--", "job.py")) == ["node1", "node2", "node3"]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("CLUSTERCTL_INVENTORY", raising=False)
    (tmp_path / "hosts.yaml").write_text("cluster: lab\nnodes: ['gpu[1-3]']\n")
    return tmp_path


def test_a_person_adds_lists_and_removes_nodes(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quarantine"]) == 0
    assert "no node is in quarantine" in capsys.readouterr().err
    assert (
        main(["quarantine", "add", "gpu[1-2]", "--reason", "noisy \x1b[2Jfans", "--for", "3d"]) == 0
    )
    shown = capsys.readouterr().out
    assert "noisy fans" in shown
    assert "2 days" in shown or "3 days" in shown
    assert main(["quarantine", "list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    validate("quarantine", document)
    assert [one["node"] for one in document["nodes"]] == ["gpu1", "gpu2"]
    assert main(["quarantine", "remove", "gpu[2-3]"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == (
        "gpu2: taken out of quarantine\n",
        "warning: gpu3: it is not in quarantine\n",
    )
    (lab / "state" / FILE).write_text("{")
    assert main(["quarantine"]) == 1
    assert "it is damaged" in capsys.readouterr().err


def test_several_nodes_are_several_words_too(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quarantine", "add", "gpu1", "gpu[2-3]"]) == 0
    capsys.readouterr()
    assert main(["quarantine", "remove", "gpu1", "gpu3"]) == 0
    out, _ = capsys.readouterr()
    assert out == "gpu1: taken out of quarantine\ngpu3: taken out of quarantine\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("list gpu1", "hint: clusterctl quarantine add gpu1\n"),
        ("gpu1", "action: expected list, add, remove; found 'gpu1'"),
        ("add", "quarantine add: expected NODE, found none\n"),
        ("remove gpu1 --for 3d", "--for: expected it with add\n"),
        (
            "add gpu1 --for 0",
            "expected a time such as 90m, 12h or 7d, from 1 s to 365 days, found '0'",
        ),
        ("add gpu1 --for 0d", "365 days, found '0d'"),
        ("add gpu9", "expected nodes of"),
    ],
)
def test_a_wrong_command_line_is_told(
    lab: Path, words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quarantine", *shlex.split(words)]) == 2
    assert told in capsys.readouterr().err
    assert not (lab / "state").exists()
