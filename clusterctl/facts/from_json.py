"""Builds frozen dataclasses from JSON by their annotations; the inverse of `wire.plain`."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_Reader = Callable[[object, str, bool], Any]
"""Builds a value, or raises for a place; with True, only of finite numbers."""
LARGEST = 1 << 64
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
    return _reader(wanted)(value, where, finite)


@cache
def _reader(wanted: Any) -> _Reader:  # noqa: ANN401  (any annotation)
    """Return what builds values of a type; to study its annotation takes longer than to build."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if wanted is Any:
        return lambda value, _where, _finite: value
    if origin in {Union, UnionType}:
        arm = _reader(next(arm for arm in inner if arm is not NoneType))
        return partial(_optional, arm) if NoneType in inner else arm
    if dataclasses.is_dataclass(wanted):
        return partial(_object, wanted)
    if origin is tuple:
        any_number = inner[-1] is Ellipsis
        return partial(_tuple, tuple(map(_reader, inner[: -1 if any_number else None])), any_number)
    return partial(_simple, wanted, origin, inner)


def _optional(arm: _Reader, value: object, where: str, finite: bool) -> Any:  # noqa: ANN401, FBT001
    return None if value is None else arm(value, where, finite)


def _simple(
    wanted: Any,  # noqa: ANN401  (any annotation)
    origin: object,
    inner: tuple[Any, ...],
    value: object,
    where: str,
    finite: bool,  # noqa: FBT001  (of a _Reader)
) -> Any:  # noqa: ANN401
    if wanted is str and type(value) is str:
        return value
    if wanted is float and type(value) is int and abs(value) < LARGEST:
        return float(value)
    if origin is Literal:
        fits = value in inner
    elif origin is not None:
        fits = isinstance(value, origin)  # type: ignore[arg-type]
    else:
        fits = type(value) is wanted
    bounded = not isinstance(value, (int, float)) or -LARGEST < value < LARGEST
    if wanted is float and isinstance(value, float) and not math.isfinite(value):
        bounded = not finite
    if not fits or not bounded:
        name = getattr(wanted, "__name__", str(wanted))
        raise DocumentError(f"{where}: expected {name}, found {_SHOWN.repr(value)}")
    return value


def _tuple(
    readers: tuple[_Reader, ...],
    any_number: bool,  # noqa: FBT001
    value: object,
    where: str,
    finite: bool,  # noqa: FBT001
) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise DocumentError(f"{where}: expected a list, found {_SHOWN.repr(value)}")
    if any_number:
        readers *= len(value)
    if len(readers) != len(value):
        raise DocumentError(f"{where}: expected {len(readers)} values, found {len(value)}")
    pairs = enumerate(zip(readers, value, strict=True))
    return tuple(read(item, f"{where}[{i}]", finite) for i, (read, item) in pairs)


def _object(wanted: Any, value: object, where: str, finite: bool) -> Any:  # noqa: ANN401, FBT001
    if not isinstance(value, Mapping):
        raise DocumentError(f"{where}: expected an object, found {_SHOWN.repr(value)}")
    fields = {
        name: read(value[name], f"{where}.{name}", finite)
        for name, read in _fields(wanted).items()
        if name in value
    }
    try:
        return wanted(**fields)
    except (TypeError, ValueError) as error:
        raise DocumentError(f"{where}: {error}") from error


@cache
def _fields(kind: type) -> Mapping[str, _Reader]:
    return {name: _reader(hint) for name, hint in type_hints(kind).items()}


@cache
def type_hints(kind: type) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields."""
    return get_type_hints(kind)
