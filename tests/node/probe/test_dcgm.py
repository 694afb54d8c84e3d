"""What `dcgmi diag -r 1 -j` says: the forms of DCGM 3 and 4, and what is none of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.probe.trial.dcgm import diagnose, is_broken, parse


def four(*results: dict[str, Any]) -> str:
    tests = [{"name": "software", "results": list(results), "test_summary": {"status": "Pass"}}]
    body = {"test_categories": [{"category": "Deployment", "tests": tests}]}
    return json.dumps({"DCGM Diagnostic": body, "metadata": {"version": "4.2.3"}})


def result(gpu: int, status: str, *warnings: dict[str, Any]) -> dict[str, Any]:
    said = {"warnings": list(warnings)} if warnings else {}
    return {"entity_group": "GPU", "entity_id": gpu, "status": status, **said}


PERSISTENCE = {
    "error_category": 8, "error_id": 29, "error_severity": 5,
    "warning": "Persistence Mode: Persistence mode for GPU 1 is disabled.",
}  # fmt: skip
MEMORY = {"error_id": 1, "error_severity": 2, "warning": "uncorrectable memory errors"}

STOPPED = "Error: Unable to connect to host engine. Host engine connection invalid/disconnected."
THREE = """Successfully ran diagnostic for group.
{
  "DCGM GPU Diagnostic" : {
    "test_categories" : [
      {
        "category" : "Deployment",
        "tests" : [
          {"name" : "Denylist", "results" : [{"gpu_ids" : "0,1,2,3", "status" : "PASS"}]},
          null,
          {"name" : "Inforom", "results" : [
            {"gpu_id" : "2", "status" : "Fail", "warnings" : ["the InfoROM is corrupt"]}]}
        ]
      }
    ],
    "version" : "3.3.8"
  }
}
"""


def test_the_form_of_dcgm_4_is_read_per_gpu() -> None:
    found = parse(four(result(0, "Pass"), result(1, "Fail", MEMORY)), 226)

    assert (found["state"], found["version"]) == ("ok", "4.2.3")
    assert [(t["gpus"], t["status"], t["words"]) for t in found["tests"]] == [
        ([0], "pass", ""),
        ([1], "fail", "uncorrectable memory errors"),
    ]
    assert is_broken(found)


def test_the_form_of_dcgm_3_is_read_with_text_around_it() -> None:
    found = parse(THREE, 1)

    assert (found["state"], found["version"]) == ("ok", "3.3.8")
    assert [(t["name"], t["gpus"], t["status"], t["words"]) for t in found["tests"]] == [
        ("Denylist", [0, 1, 2, 3], "pass", ""),
        ("Inforom", [2], "fail", "the InfoROM is corrupt"),
    ]
    assert is_broken(found)


def test_a_failure_by_a_setting_breaks_nothing_unless_there_is_another() -> None:
    assert not is_broken(parse(four(result(1, "Fail", PERSISTENCE)), 226))
    assert is_broken(parse(four(result(1, "Fail", PERSISTENCE, MEMORY)), 226))


@pytest.mark.parametrize(
    ("text", "state", "words"),
    [
        (f"{STOPPED}\n", "no-hostengine", STOPPED),
        ('{"DCGM Diagnostic": {"runtime_error": "no supported GPU"}}', "error", "no supported GPU"),
        ("", "error", "exit code 3, without output"),
        ("{not JSON}", "error", "{not JSON}"),
        ('{"DCGM Diagnostic": [1]}', "error", '{"DCGM Diagnostic": [1]}'),
    ],
)  # fmt: skip
def test_what_has_no_tests_says_why(text: str, state: str, words: str) -> None:
    assert parse(text, 3) == {"state": state, "words": words}


def test_it_is_run_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert diagnose(5.0, lambda: None) == {"state": "absent"}

    program = tmp_path / "dcgmi"
    program.write_text(
        '#!/bin/sh\n[ "$*" = "diag -r 1 -j" ] && echo Unable to connect to host engine\n'
    )
    program.chmod(0o755)
    assert diagnose(5.0, lambda: None)["state"] == "no-hostengine"

    program.write_text("#!/bin/sh\nexec /bin/sleep 1000\n")
    assert diagnose(0.2, lambda: None)["state"] == "timeout"
