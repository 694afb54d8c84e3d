"""Whether what a file held is of the types that a dataclass names: a file may be damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_LARGEST = 1 << 53
"""Larger numbers nobody wrote."""


def fits(value: object, kind: Any) -> bool:  # noqa: ANN401  (a type, or what `typing` has for one)
    """Tell whether a value is of a type; a list counts as a tuple, for JSON has no other."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if kind is Any or origin is Literal:
        return kind is Any or value in inner
    if origin is tuple:
        return isinstance(value, (tuple, list)) and _all_fit(value, inner)
    if kind in (int, float):
        numbers = (int, float) if kind is float else int
        is_number = isinstance(value, numbers) and not isinstance(value, bool)
        return is_number and -_LARGEST < value < _LARGEST  # type: ignore[operator]  # nan is not
    if is_dataclass(kind):
        names = hints(kind)  # type: ignore[arg-type]  # a class, as annotations have it
        return isinstance(value, kind) and all(  # type: ignore[arg-type]
            fits(getattr(value, name), one) for name, one in names.items()
        )
    return isinstance(value, origin or kind)


@cache
def hints(kind: type) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields."""
    return get_type_hints(kind)


def _all_fit(values: tuple[object, ...] | list[object], inner: tuple[Any, ...]) -> bool:
    if inner[-1] is Ellipsis:
        return all(fits(one, inner[0]) for one in values)
    return len(values) == len(inner) and all(map(fits, values, inner))
