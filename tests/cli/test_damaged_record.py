"""Verbs about a run whose record on this machine is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.cli.shared.main import main
from clusterctl.inventory import load
from clusterctl.verbs.runs.records import Records, RunRecord

RUN = "lab-20260101t000000-abcd"
UNKNOWN, BUG = 3, 70
VERBS = (
    ["status", RUN], ["stop", RUN], ["logs", RUN], ["runs"],
    ["resume", RUN, "--checkpoint", "latest"],
)  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        {},
        {"plan": 5},
        {"plan": {"nodes": 5}},
        {"plan": {"nodes": [{}]}},
        {"plan": {"nodes": [{"node": "localhost"}]}},
        {"options": {"env": [["A"]]}},
        {"resumed": {"command": 5}},
        {"began": None},
    ],
    ids=str,
)
def test_no_verb_takes_it_for_a_bug_of_ours(
    damage: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text(f"cluster: lab\nnodes: [{{host: localhost, state: {tmp_path}/nodes}}]\n")
    record = RunRecord(run=RUN, began=1.0, cluster=load(inventory))
    file = Records().write(record) / "record.json"
    whole = file.read_text()
    file.write_text(json.dumps({**json.loads(whole), **damage}) if damage else whole[:-100])
    for verb in VERBS:
        code = main(verb)
        said = capsys.readouterr().err
        assert code != BUG, (verb, said)
        assert code in {0, UNKNOWN} or "hint: " in said, (verb, said)
