"""Validates the sections of a document: reports every problem, keeps the valid values."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from clusterctl.inventory import schema
from clusterctl.inventory.problems import Path, Problems, nearest, printable, shown

S = TypeVar("S", bound=schema.Section)

_KEY_OF_ITEM = len(("env", "NAME", "[key]"))

_PLACES = {
    name: place
    for place, section in (
        ("job", schema.JobSection),
        ("network", schema.NetworkSection),
        ("an entry of nodes", schema.NodeSection),
        ("defaults", schema.DefaultsSection),
        ("ssh", schema.SshSection),
        ("the top of the file", schema.HostsFile),
    )
    for name in section.model_fields
}
"""The section of each key; if several have it, the last one here."""


def read_section(model: type[S], value: object, path: Path, problems: Problems) -> S | None:
    """Validate one mapping; report what is wrong and leave it out.

    Returns:
        The section of what was right; None if a required key is missing or wrong.
    """
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    if value is None and not required:
        value = {}  # `job:` whose keys were all removed
    if not isinstance(value, dict):
        problems.add(path, wanted="a mapping (key: value)", found=shown(value))
        return None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        details = error.errors()
    right = copy.deepcopy(value)
    for detail in details:
        where = detail["loc"]
        if len(where) == _KEY_OF_ITEM and where[-1] == "[key]":
            where = where[:-1]  # pydantic's mark for the name of a variable, next to its value
        wanted, found = _wanted_and_found(model, detail)
        problems.add((*path, *where), wanted=wanted, found=found)
        _remove(right, where)
    return model.model_validate(right) if required <= right.keys() else None


def _wanted_and_found(model: type[schema.Section], detail: ErrorDetails) -> tuple[str, str]:
    """Return the two halves of our message for one error of pydantic."""
    *outer, last = map(str, detail["loc"])
    match detail["type"]:
        case "value_error":
            invalid = detail["ctx"]["error"]
            return invalid.wanted, invalid.found
        case "missing":
            return model.model_fields[last].description or "a value", "nothing"
        case "extra_forbidden":
            section: Any = schema.HostsFile if model is schema.TopSection else model
            for part in outer:
                section = section.model_fields[part].annotation
            return _suggestion(last, section.model_fields), f'"{printable(last)}"'
        case _:
            return "a mapping (key: value)", shown(detail["input"])


def _remove(values: dict[str, Any], place: Sequence[object]) -> None:
    """Remove a wrong part of a mapping, or the whole list that it is in."""
    key, *inner = place
    if inner and isinstance(values.get(str(key)), dict):
        _remove(values[str(key)], inner)
    else:
        values.pop(str(key), None)


def _suggestion(key: str, known: Iterable[str]) -> str:
    """Return the key that was probably meant, or the section where this one belongs."""
    names = sorted(known)
    if key in _PLACES:
        return f"{key} in {_PLACES[key]}"
    near = nearest(key, names)
    if near is not None:
        return f'"{near}"'
    return "one of " + ", ".join(names)
