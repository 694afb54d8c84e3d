"""The command line of `check`: what can go wrong before a node is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.api.session import Session
from clusterctl.cli.shared.main import main

HOSTS = "cluster: lab\nnodes: [10.255.255.1]\n"


def test_an_explanation_needs_no_inventory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--explain", "storage.shared"]) == 0
    assert "one filesystem" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--explain", "storage.share"], "hint: clusterctl check --explain storage.shared\n"),
        (["--explain", "network"], "hint: clusterctl check --explain network."),
        (["--only", "netwrk"], "--only: expected checks or areas, found 'netwrk'"),
        (["--only", "ssh,netwrk"], "hint: clusterctl check --only ssh,network\n"),
        (["--skip", "foo"], "hint: clusterctl check --list\n"),
        (["--facts", "none.json"], "none.json: No such file or directory"),
        (["--facts", "bad.json"], "bad.json: not saved facts: expected an object with a list"),
        (["--facts", "hosts.yaml"], "hosts.yaml: not saved facts"),
        (["--facts", "facts.json", "--report", "x.pdf"], "expected a name that ends in .html"),
        (["--frobnicate"], "clusterctl check: there is no flag --frobnicate"),
    ],
)
def test_a_wrong_option_is_a_message_and_exit_code_2(
    options: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    (tmp_path / "bad.json").write_text("[]")
    (tmp_path / "facts.json").write_text('{"nodes": []}')

    assert main(["check", *options]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_a_report_in_no_form_is_refused_before_any_node_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    monkeypatch.setattr(Session, "check", None)
    assert main(["check", "--report", "x.pdf"]) == 2
    assert "expected a name that ends in .html" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--save-facts", "--report"])
def test_a_file_that_cannot_be_written_does_not_cost_the_verdict(
    flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    (tmp_path / "facts.json").write_text('{"nodes": []}')
    assert main(["check", "--facts", "facts.json", "--json", flag, "none/x.html"]) == 2
    captured = capsys.readouterr()
    assert "none/x.html: expected a place to write, found: No such file" in captured.err
    assert json.loads(captured.out)["cluster"] == "lab"


def test_saved_facts_that_lack_a_node_say_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    (tmp_path / "facts.json").write_text('{"nodes": []}')

    assert main(["check", "--facts", "facts.json", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["check"], finding["found"]) == ("ssh.connect", "the saved facts do not have it")


def test_a_strict_check_fails_on_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    facts = {"nodes": [{"node": "10.255.255.1", "reach": {"ping": "silent"}}]}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    options = ["check", "--facts", "facts.json", "--only", "ssh"]

    assert main(options) == 0
    assert main([*options, "--strict"]) == 1
    assert "WARN ssh.ping  10.255.255.1" in capsys.readouterr().out


def test_explain_names_the_list_for_an_id_that_resembles_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "--explain", "foo"]) == 2
    assert "hint: clusterctl check --list\n" in capsys.readouterr().err


def test_without_a_workdir_it_says_that_no_code_is_brought(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "facts.json").write_text('{"nodes": []}')
    for text, warns in ((HOSTS, True), (f"{HOSTS}workdir: /code\n", False)):
        (tmp_path / "hosts.yaml").write_text(text)
        main(["check", "--facts", "facts.json"])
        assert ("no workdir: launch and sync" in capsys.readouterr().err) is warns
