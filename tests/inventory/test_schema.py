"""The JSON Schema for editors: the shipped file is that of the models, and it means the same."""

from __future__ import annotations

import json
import runpy
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from clusterctl.inventory.schema import json_schema
from tests.installed import LOCATION

ROOT = Path(__file__).parent.parent.parent
BAD = Path(__file__).parent / "bad"
MAKE = runpy.run_path(str(ROOT / "docs" / "make_inventory.py"))


def validate(value: object) -> None:
    jsonschema.Draft202012Validator(json_schema()).validate(value)


def test_the_shipped_schema_is_that_of_the_models() -> None:
    """Write it anew with: python docs/make_inventory.py."""
    shipped = resources.files("clusterctl.inventory") / "hosts.schema.json"
    assert shipped.read_text(encoding="utf-8") == MAKE["schema"]()


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


def test_every_key_says_what_it_is_for() -> None:
    schema = json_schema()
    sections = [schema, *schema["$defs"].values()]
    silent = [
        f"{section['title']}.{key}"
        for section in sections
        for key, value in section["properties"].items()
        if "description" not in value
    ]
    assert silent == []


def test_every_key_has_its_row_in_the_reference_with_its_default() -> None:
    page = MAKE["PAGE"].read_text()
    assert MAKE["render"](page) == page
    entry = page.partition("## nodes")[2]
    assert {
        key for key in ("host", "address", "workdir", "master") if f"| `{key}` |" not in entry
    } == set()


def test_a_row_that_is_missing_is_made_from_the_declaration() -> None:
    page = MAKE["PAGE"].read_text()
    rows = [
        line for line in page.splitlines() if line.startswith(("| `env_init` |", "| `grace` |"))
    ]
    for row in rows:
        page = page.replace(f"{row}\n", "")
    wrong = page.replace("| `torchrun` |\n", "| `direct` |\n")
    found = MAKE["render"](wrong).splitlines()
    line = "a shell line run on the node first; its changes of environment stay"
    at = found.index(f"| `env_init` | {line} | none |")
    assert found[at - 1].startswith("| `env_from` |")
    assert "| `grace` | seconds until KILL | 60 |" in found
    assert not any(row.endswith("| `direct` |") for row in found)


def test_the_example_is_right() -> None:
    validate(yaml.safe_load((ROOT / "hosts.example.yaml").read_text()))


def test_the_example_names_the_schema_for_editors() -> None:
    first = (ROOT / "hosts.example.yaml").read_text().splitlines()[0]
    path = first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads((LOCATION / path).read_text()) == json_schema()


def test_a_host_alone_is_right() -> None:
    validate({"cluster": "lab", "nodes": ["gpu[01-04]", {"host": "a", "gpus": "auto"}]})


@pytest.mark.parametrize(
    "case", ["misspelt", "types", "numbers", "choices", "no-nodes", "name", "nothing-written"]
)
def test_editors_see_what_the_loader_refuses(case: str) -> None:
    value: Any = yaml.safe_load((BAD / f"{case}.yaml").read_text())
    with pytest.raises(jsonschema.ValidationError):
        validate(value)
