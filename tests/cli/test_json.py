"""Documents for programs have the keys that the reference and its JSON schema name."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.cli.conftest import MakeProject
from tests.cli.runs import Project
from tests.conftest import MakeSandbox

DOCS = Path(__file__).parents[2] / "docs"


def loaded(path: Path) -> ModuleType:
    """Return a script as a module: its types are looked up by the module's name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


for part in ("json_nodes", "json_runs"):  # which the next imports
    loaded(DOCS / f"{part}.py")
MAKE = loaded(DOCS / "make_json.py")
JOB = """\
import os, sys, time
print("step 1", flush=True)
if "--fail" in sys.argv and os.environ["RANK"] == "1":
    raise RuntimeError("bad")
if "--stay" in sys.argv:
    time.sleep(1000)
"""


def strict(value: Any) -> Any:
    """Return a schema that allows no other keys."""
    if isinstance(value, list):
        return [strict(one) for one in value]
    if not isinstance(value, dict):
        return value
    closed = {"additionalProperties": False} if "properties" in value else {}
    return closed | {key: strict(one) for key, one in value.items()}


@cache
def closed_schema() -> Any:
    """Return the schema of the code, with no keys but those that it names."""
    return strict(MAKE.schema())


def validate(name: str, document: Any) -> None:
    validator = Draft202012Validator({**closed_schema(), "$ref": f"#/$defs/{name}"})
    errors = list(validator.iter_errors(document))
    assert not errors, [(error.json_path, error.message) for error in errors]


def test_the_page_and_the_schema_are_those_of_the_code() -> None:
    assert (DOCS / "reference" / "json.md").read_text() == MAKE.render()
    assert json.loads((DOCS / "reference" / "json.schema.json").read_text()) == MAKE.schema()


def test_a_document_with_another_key_is_refused_here() -> None:
    validate("runs-prune", {"schema": 1, "removed": [], "kept": [], "troubles": []})
    for wrong in ({"schema": 1}, {"schema": 1, "removed": [], "kept": [], "troubles": [], "x": 1}):
        with pytest.raises(AssertionError):
            validate("runs-prune", wrong)


@pytest.fixture
def project(make_sandbox: MakeSandbox, make_project: MakeProject) -> Project:
    made = make_project(make_sandbox(nodes=2))
    (made.folder / "job.py").write_text(JOB)
    return made


@pytest.mark.netns
def test_verbs_print_what_the_schema_says(project: Project, tmp_path: Path) -> None:
    def document(name: str, *words: str) -> Any:
        printed = json.loads(project.run(*words, "--json").stdout)
        validate(name, printed)
        return printed

    def events(*words: str) -> list[str]:
        direct = ("--launcher", "direct", "--", "job.py")
        done = project.run(words[0], "--json", *direct[:2], *words[1:2], *direct[2:], *words[2:])
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        for line in lines:
            validate(f"event-{line['kind']}" if "kind" in line else "detached", line)
        return [line.get("kind", "detached") for line in lines]

    document("check", "check", "--explain-network")
    document("check-list", "check", "--list")
    document("check-explain", "check", "--explain", "storage.needs")
    assert document("sync", "sync")["nodes"]
    done = project.run("exec", "--json", "--", "hostname")
    assert done.returncode == 0
    validate("exec", json.loads(done.stdout))
    assert events("launch", "--dry-run") == ["message", "check", "plan"]
    kinds = events("launch", "--no-check", "--fail")
    assert {"sync", "plan", "started", "event", "line", "ended"} <= set(kinds)
    assert document("status", "status")["first_cause"]["node"] == "node2"
    tools = "/var/tmp/clusterctl-*/.tools"
    project.run("exec", "--", "sh", "-c", f"rm -rf {tools}")
    assert events("launch", "--detach", "--stay")[-1] == "detached"
    brought = project.run("exec", "--", "sh", "-c", f"ls {tools}/py-spy-*")
    assert brought.returncode == 0, "for the nodes' own looks"
    assert document("status", "status")["state"] == "running"
    for line in project.run("logs", "--json").stdout.splitlines():
        validate("event-line", json.loads(line))
    assert document("dump", "dump")["nodes"][0]["ranks"]
    assert document("stop", "stop", "--dump")["runs"]
    assert document("dump", "dump")["nodes"][0]["ranks"], "it was kept"
    assert len(document("runs", "runs")["runs"]) == 2
    one = document("runs", "runs", "--failed")["runs"][0]
    assert one["reason"].startswith("node2, rank ")
    assert document("runs-show", "runs", "show", one["short"])["run"] == one["run"]
    for line in project.run("logs", one["short"], "--chain", "--json").stdout.splitlines():
        validate("event-line", json.loads(line))
    gone = document("runs-prune", "runs", "--prune", "1", "--all", "--yes")["removed"]
    assert gone == [one["run"]]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tokens.bin").write_text("1")
    document("push", "push", f"{tmp_path / 'data'}:/workspace/data")
    validate("sandbox-status", json.loads(json.dumps(project.sandbox.to_json())))
