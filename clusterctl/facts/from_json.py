"""Builds frozen dataclasses from JSON by their annotations; the inverse of `wire.plain`."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_LARGEST = 1 << 64
"""No value that clusterctl writes is larger."""
_SHOWN = reprlib.Repr()
"""Of a value that does not fit, for the error: a node may send any, of any size and depth."""
_SHOWN.maxstring = _SHOWN.maxother = 200


class DocumentError(ValueError):
    """The JSON does not match the annotations; `str()` names the place."""


def from_json(
    wanted: Any,  # noqa: ANN401  (any annotation)
    value: object,
    where: str,
    *,
    finite: bool = True,
) -> Any:  # noqa: ANN401
    """Build a value of the annotated type `wanted`; raise DocumentError if `value` is of another.

    Unknown keys of objects are ignored. `finite`: infinite numbers and NaN are refused. The error
    names the place `where`.
    """
    origin, inner = get_origin(wanted), get_args(wanted)
    if wanted is Any or (value is None and NoneType in inner):
        return value
    if origin in {Union, UnionType}:
        arm = next(arm for arm in inner if arm is not NoneType)
        return from_json(arm, value, where, finite=finite)
    if dataclasses.is_dataclass(wanted):
        return _object(wanted, value, where, finite=finite)
    if origin is tuple:
        return _tuple(inner, value, where, finite=finite)
    if wanted is float and type(value) is int and abs(value) < _LARGEST:
        return float(value)
    if origin is Literal:
        fits = value in inner
    elif origin is not None:
        fits = isinstance(value, origin)
    else:
        fits = type(value) is wanted
    bounded = not isinstance(value, (int, float)) or -_LARGEST < value < _LARGEST
    if wanted is float and isinstance(value, float) and not math.isfinite(value):
        bounded = not finite
    if not fits or not bounded:
        name = getattr(wanted, "__name__", str(wanted))
        raise DocumentError(f"{where}: expected {name}, found {_SHOWN.repr(value)}")
    return value


def _tuple(arms: tuple[Any, ...], value: object, where: str, *, finite: bool) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise DocumentError(f"{where}: expected a list, found {_SHOWN.repr(value)}")
    if arms[-1] is Ellipsis:
        arms = arms[:1] * len(value)
    if len(arms) != len(value):
        raise DocumentError(f"{where}: expected {len(arms)} values, found {len(value)}")
    pairs = enumerate(zip(arms, value, strict=True))
    return tuple(from_json(arm, item, f"{where}[{i}]", finite=finite) for i, (arm, item) in pairs)


def _object(wanted: Any, value: object, where: str, *, finite: bool) -> Any:  # noqa: ANN401  (a class)
    if not isinstance(value, Mapping):
        raise DocumentError(f"{where}: expected an object, found {_SHOWN.repr(value)}")
    fields = {
        name: from_json(hint, value[name], f"{where}.{name}", finite=finite)
        for name, hint in type_hints(wanted).items()
        if name in value
    }
    try:
        return wanted(**fields)
    except (TypeError, ValueError) as error:
        raise DocumentError(f"{where}: {error}") from error


@cache
def type_hints(kind: type) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields."""
    return get_type_hints(kind)
