"""From a document to validated sections: every problem noted, whatever can be read kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from clusterctl.inventory.problems import Path, Problems, nearest, printable, shown
from clusterctl.inventory.schema import (
    DefaultsSection,
    HostsFile,
    JobSection,
    NetworkSection,
    NodeSection,
    Section,
    SshSection,
    TopSection,
)

S = TypeVar("S", bound=Section)

_KEY_OF_ITEM = len(("env", "NAME", "[key]"))

_PLACES = {
    name: place
    for place, section in (
        ("job", JobSection),
        ("network", NetworkSection),
        ("an entry of nodes", NodeSection),
        ("defaults", DefaultsSection),
        ("ssh", SshSection),
        ("the top of the file", HostsFile),
    )
    for name in section.model_fields
}
"""Where each key belongs; the last section that has it wins."""


def read_section(model: type[S], value: object, path: Path, problems: Problems) -> S | None:
    """Validate one mapping; what is wrong is noted and left out.

    Returns:
        The section of what was right; None where a key that must be there is missing or wrong.
    """
    if not isinstance(value, dict):
        problems.add(path, wanted="a mapping (key: value)", found=shown(value))
        return None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        wrong = [_note(model, detail, path, problems) for detail in error.errors()]
    right = _without(value, wrong)
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    return model.model_validate(right) if required <= right.keys() else None


def _note(model: type[Section], detail: ErrorDetails, path: Path, problems: Problems) -> Path:
    """Note one problem of pydantic in our words.

    Returns:
        Where in the section it lies.
    """
    where = detail["loc"]
    if len(where) == _KEY_OF_ITEM and where[-1] == "[key]":
        where = where[:-1]  # pydantic's mark for the name of a variable, beside its value
    last = str(where[-1])
    place = (*path, *where)
    match detail["type"]:
        case "unwanted":
            context = detail["ctx"]
            problems.add(place, wanted=context["wanted"], found=context["found"])
        case "missing":
            wanted = model.model_fields[last].description or "a value"
            problems.add(place, wanted=wanted, found="nothing")
        case "extra_forbidden":
            section = _section_at(model, where[:-1])
            known = HostsFile if section is TopSection else section
            wanted = _meant(last, known.model_fields)
            problems.add(place, wanted=wanted, found=f'"{printable(last)}"')
        case _:
            problems.add(place, wanted="a mapping (key: value)", found=shown(detail["input"]))
    return where


def _without(value: dict[str, object], wrong: Iterable[Path]) -> dict[str, object]:
    """Return a mapping without what is wrong in it; a list with a wrong item goes as a whole."""
    right = _copy(value)
    for place in wrong:
        inner, key = right, str(place[0])
        for part in place[1:]:
            deeper = inner.get(key)
            if not isinstance(deeper, dict):
                break
            inner, key = deeper, str(part)
        inner.pop(key, None)
    return right


def _copy(value: dict[str, object]) -> dict[str, object]:
    return {key: _copy(inner) if isinstance(inner, dict) else inner for key, inner in value.items()}


def _section_at(model: type[Section], where: Iterable[object]) -> type[Section]:
    for part in where:
        inner = model.model_fields[str(part)].annotation
        assert isinstance(inner, type)
        assert issubclass(inner, Section)
        model = inner
    return model


def _meant(key: str, known: Iterable[str]) -> str:
    """Say which key was probably meant, or where it belongs."""
    names = sorted(known)
    near = nearest(key, names)
    if near is not None:
        return f'"{near}"'
    if key in _PLACES:
        return f"{key} in {_PLACES[key]}"
    return "one of " + ", ".join(names)
