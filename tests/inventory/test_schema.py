"""The JSON Schema for editors: the shipped file is that of the models, and it means the same."""

from __future__ import annotations

import json
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


def validate(value: object) -> None:
    jsonschema.Draft202012Validator(json_schema()).validate(value)


def test_the_shipped_schema_is_that_of_the_models() -> None:
    """Write it anew with: python -m tests.inventory.test_schema."""
    shipped = resources.files("clusterctl.inventory") / "hosts.schema.json"
    assert shipped.read_text(encoding="utf-8") == as_text()


def as_text() -> str:
    return json.dumps(json_schema(), indent=2) + "\n"


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


def test_every_key_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "reference" / "inventory.md").read_text()
    sections = [json_schema(), *json_schema()["$defs"].values()]
    keys = {key for section in sections for key in section["properties"]}
    assert {key for key in keys if f"`{key}`" not in reference} == set()


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


if __name__ == "__main__":
    (ROOT / "clusterctl/inventory/hosts.schema.json").write_text(as_text(), encoding="utf-8")
