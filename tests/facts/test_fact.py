"""The registry of facts: each fills one field of `NodeFacts`, with a value of the field's type."""

from __future__ import annotations

import dataclasses
import functools
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import pytest

from clusterctl.facts.fact import Fact
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.parse_facts import EVERY_FACT, folder_questions, read_arguments
from clusterctl.facts.request import FactRequest
from clusterctl.model.from_json import type_hints

READ_LATER = {
    "node", "reach", "clock", "gaps", "timed_out",
    "firewall_chains", "between", "job_check", "collective", "across", "ladder", "requirements",
    "quarantine",
}  # fmt: skip
"""Fields that no parser of the first round trip fills."""


def test_each_field_is_filled_by_a_fact_or_later() -> None:
    fields = {field.name for field in dataclasses.fields(NodeFacts)}

    assert {fact.name for fact in EVERY_FACT} == fields - READ_LATER


@pytest.mark.parametrize("fact", EVERY_FACT, ids=lambda fact: fact.name)
def test_a_parser_returns_what_its_field_holds(fact: Fact) -> None:
    parser: Any = fact.parse.args[1] if isinstance(fact.parse, functools.partial) else fact.parse
    returned = type_hints(parser).get("return")

    assert returned is None or known(returned) == known(type_hints(NodeFacts)[fact.name])


def known(hint: object) -> set[object]:
    """Return the types of a value that is known."""
    return set(get_args(hint)) - {NoneType} if get_origin(hint) in {Union, UnionType} else {hint}


def test_what_several_facts_ask_for_is_asked_once() -> None:
    asked = read_arguments(FactRequest(launcher_file="~/launcher.yaml"))

    for key in ("files", "globs", "links", "variables", "programs"):
        assert sorted(asked[key]) == sorted(set(asked[key])), key
    assert folder_questions({"/a": ("x",)}, {"/a": ("y", "x"), "/b": ("z",)}) == [
        {"path": "/a", "files": ["x", "y"]},
        {"path": "/b", "files": ["z"]},
    ]


def test_a_home_on_a_dead_mount_is_looked_at_last_and_the_slowest_program_starts_first() -> None:
    asked = read_arguments(FactRequest(launcher_file="~/launcher.yaml"))

    in_home = [pattern.startswith("~") for pattern in asked["globs"]]
    assert in_home == sorted(in_home)
    assert sum(in_home) == len(["~/.nccl.conf", "~/launcher.yaml"])
    limits = [command["limit_s"] for command in asked["commands"]]
    assert limits == sorted(limits, reverse=True)
