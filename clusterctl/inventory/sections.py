"""Validates the sections of a document: reports every problem, keeps the valid values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from clusterctl.inventory import schema
from clusterctl.inventory.fields import Kind
from clusterctl.inventory.problems import Path, Problems, nearest, printable, shown
from clusterctl.inventory.readers import InvalidValue

S = TypeVar("S", bound=schema.Section)

_MAPPING = "a mapping (key: value)"
_WRONG = object()
"""What is read of a wrong value."""

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
    for name in section.keys
}
"""The section of each key; if several have it, the last one here."""


def read_section(model: type[S], value: object, path: Path, problems: Problems) -> S | None:
    """Validate one mapping; report what is wrong and leave it out.

    Returns:
        The section of what was right; None if a required key is missing or wrong.
    """
    required = {name for name, key in model.keys.items() if key.required}
    if value is None and not required:
        value = {}  # `job:` whose keys were all removed
    if not isinstance(value, dict):
        problems.add(path, wanted=_MAPPING, found=shown(value))
        return None
    right: dict[str, Any] = {}
    for name, key in model.keys.items():
        if name in value:
            found = _read_key(key, value[name], (*path, name), problems)
            if found is not _WRONG:
                right[name] = found
        elif key.required:
            problems.add((*path, name), wanted=key.description, found="nothing")
    known = schema.HostsFile.keys if model is schema.TopSection else model.keys
    for name in value:
        if name not in model.keys:
            wanted, found = _suggestion(name, known), f'"{printable(name)}"'
            problems.add((*path, name), wanted=wanted, found=found)
    return model(**right) if required <= right.keys() else None


def _read_key(key: schema.Key, value: object, path: Path, problems: Problems) -> object:
    """Return the value of a key, without the variables that are wrong; _WRONG if all of it is."""
    if value is None:
        # A list or mapping may be empty, as `env:` whose variables were all removed.
        if key.default is None or isinstance(key.default, (str, int, float)):
            problems.add(path, wanted=key.description, found="nothing")
            return _WRONG
        value = [] if key.default == () else {}
    if isinstance(key.kind, Kind):
        return _read(key.kind, value, path, problems)
    return read_section(key.kind, value, path, problems) or _WRONG


def _read(kind: Kind[Any], value: object, path: Path, problems: Problems) -> object:
    try:
        read = kind.read(value)
    except InvalidValue as invalid:
        problems.add(path, wanted=invalid.wanted, found=invalid.found)
        return _WRONG
    items, names = kind.items, kind.names
    if items is None:
        return read
    if names is None:
        found = [_read(items, one, (*path, at), problems) for at, one in enumerate(read)]
        return _WRONG if _WRONG in found else tuple(found)
    pairs = [
        (_read(names, name, (*path, name), problems), _read(items, one, (*path, name), problems))
        for name, one in read.items()
    ]
    return {name: one for name, one in pairs if _WRONG not in (name, one)}


def _suggestion(key: str, known: Iterable[str]) -> str:
    """Return the key that was probably meant, or the section where this one belongs."""
    names = sorted(known)
    if key in _PLACES:
        return f"{key} in {_PLACES[key]}"
    near = nearest(key, names)
    if near is not None:
        return f'"{near}"'
    return "one of " + ", ".join(names)
