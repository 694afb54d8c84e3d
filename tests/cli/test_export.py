"""`clusterctl export` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.cli.nodes import export
from clusterctl.cli.shared.main import main
from clusterctl.inventory.other_programs.export import FORMATS

HOSTS = """\
cluster: lab
ssh: {user: ada}
defaults: {gpus: 8}
nodes: ["gpu[01-02]", {host: gpu03, port: 2222}]
"""


@pytest.fixture(autouse=True)
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERCTL_INVENTORY", raising=False)
    Path("hosts.yaml").write_text(HOSTS)


def test_every_format_can_be_asked_for() -> None:
    assert tuple(FORMATS) == export.FORMATS


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (
            ["--to", "deepspeed", "--nodes", "gpu[01-02]"],
            (
                "# Users, ports and keys: clusterctl export --to ssh_config\n"
                "gpu01 slots=8\ngpu02 slots=8\n"
            ),
        ),
        (
            ["--to", "ssh_config", "--exclude", "gpu01"],
            "Host gpu02\n  User ada\n\nHost gpu03\n  User ada\n  Port 2222\n",
        ),
        (
            ["--to", "ansible", "--nodes", "1"],
            (
                "all:\n  children:\n    lab:\n      hosts:\n        gpu01:\n"
                "          ansible_user: ada\n"
            ),
        ),
    ],
)
def test_the_hosts_are_printed(
    capsys: pytest.CaptureFixture[str], words: list[str], printed: str
) -> None:
    assert main(["export", *words]) == 0
    assert capsys.readouterr() == (printed, "")


def test_the_nodes_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--json", "--exclude", "gpu02"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["cluster"]) == (1, "lab")
    first, second = document["nodes"]
    assert first == {
        "node": "gpu01", "host": "gpu01", "user": "ada", "port": None, "identity": None,
        "jump": None, "gpus": 8, "python": None, "workdir": None, "address": None,
    }  # fmt: skip
    assert (second["node"], second["port"]) == ("gpu03", 2222)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--to", "nomad"], "--to: expected deepspeed, mpi, ansible, ssh_config; found 'nomad'"),
        (["--json", "--to", "mpi"], "--json"),
        ([], "hint: clusterctl export --to deepspeed\n"),
    ],
)
def test_what_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["export", *words]) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""
