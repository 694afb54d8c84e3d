"""Builds frozen dataclasses from JSON by their annotations; the inverse of `wire.plain`.

What a node answers becomes a value here or an error: `Annotated` numbers have bounds, lists have a
least length, and nothing of a value's size or depth survives that its annotation does not name.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import chain
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

_Reader = Callable[[object, str, bool], Any]
"""Builds a value, or raises for a place; with True, only of finite numbers."""
LARGEST = 1 << 64
"""No value that clusterctl writes is larger, unless it has bounds of its own."""
_DEEPEST = 16
"""The most levels of nested values where any are allowed."""
_SHOWN = reprlib.Repr()
"""Of a value that does not fit, for the error: a node may send any, of any size and depth."""
_SHOWN_CHARACTERS = _SHOWN.maxstring = _SHOWN.maxother = 200


class DocumentError(ValueError):
    """The JSON does not match the annotations; `str()` names the place."""


class Bounds(NamedTuple):
    """The least and the most that an `Annotated` number may be, or a list may have items.

    Such a number stays what it was in JSON, whole or not; True and False are none.
    """

    least: float
    most: float = math.inf


Whole: TypeAlias = Annotated[int, Bounds(-(10**100), 10**100)]
Count: TypeAlias = Annotated[int, Bounds(0, 1 << 53)]
SignedCount: TypeAlias = Annotated[int, Bounds(-(1 << 53), 1 << 53)]
Rank: TypeAlias = Annotated[int, Bounds(0, 1 << 20)]
Pid: TypeAlias = Annotated[int, Bounds(0, 1 << 31)]
Port: TypeAlias = Annotated[int, Bounds(0, 65535)]
ExitCode: TypeAlias = Annotated[int, Bounds(-255, 255)]
Signal: TypeAlias = Annotated[int, Bounds(0, 127)]
"""A run that a signal ended exits with 128 more: 256 would mean success."""
Amount: TypeAlias = Annotated[float, Bounds(0, 1 << 53)]
Seconds: TypeAlias = Annotated[float, Bounds(0, 1e11)]
"""A time since 1970 that a calendar has, or a length of time."""
Offset: TypeAlias = Annotated[float, Bounds(-1e10, 1e10)]
"""Seconds between two clocks."""


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


def invalid(wanted: Any, value: object, where: str = "") -> str:  # noqa: ANN401
    """Return why `from_json` makes no value of this; empty: it does."""
    try:
        from_json(wanted, value, where)
    except DocumentError as error:
        return str(error)
    return ""


@cache
def _reader(wanted: Any) -> _Reader:  # noqa: ANN401  (any annotation)
    """Return what builds values of a type; to study its annotation takes longer than to build."""
    origin, inner = get_origin(wanted), get_args(wanted)
    read: _Reader = partial(_simple, wanted, origin, inner)
    if wanted is Any:
        read = _any
    elif origin is Annotated:
        kinds = {int: int, float: (int, float)}.get(inner[0])
        sized = partial(_sized, _reader(inner[0]), inner[1])
        read = partial(_number, kinds, inner[1]) if kinds else sized
    elif origin in {Union, UnionType}:
        arm = _reader(next(arm for arm in inner if arm is not NoneType))
        read = partial(_optional, arm) if NoneType in inner else arm
    elif dataclasses.is_dataclass(wanted):
        read = partial(_object, wanted)
    elif origin is tuple:
        any_number = inner[-1] is Ellipsis
        items = tuple(map(_reader, inner[: -1 if any_number else None]))
        read = partial(_tuple, items, any_number)
    elif origin is Mapping:
        read = partial(_mapping, _reader(inner[1]))
    return read


def _any(value: object, where: str, finite: bool) -> Any:  # noqa: ANN401, FBT001
    """Take any value that can be printed and written as JSON."""
    level: list[object] = [value]
    for _ in range(_DEEPEST):
        if finite and any(isinstance(one, float) and not math.isfinite(one) for one in level):
            raise DocumentError(f"{where}: expected finite numbers, found NaN or an infinite one")
        lists = [one for one in level if isinstance(one, list)]
        objects = [one.values() for one in level if isinstance(one, dict)]
        level = [*chain.from_iterable(lists), *chain.from_iterable(objects)]
        if not level:
            return value
    raise DocumentError(f"{where}: expected at most {_DEEPEST} levels of values, found more")


def _number(kinds: Any, bounds: Bounds, value: Any, where: str, finite: bool) -> Any:  # noqa: ANN401, FBT001
    del finite
    fits = isinstance(value, kinds) and not isinstance(value, bool)
    if not fits or not bounds.least <= value <= bounds.most:
        name = "a whole number" if kinds is int else "a number"
        wanted = f"{name} from {bounds.least:.12g} to {bounds.most:.12g}"
        raise _mismatch(where, wanted, value)
    return value


def _sized(read: _Reader, bounds: Bounds, value: object, where: str, finite: bool) -> Any:  # noqa: ANN401, FBT001
    if isinstance(value, list) and not bounds.least <= len(value) <= bounds.most:
        few = len(value) < bounds.least
        wanted = f"at least {bounds.least:g}" if few else f"at most {bounds.most:g}"
        raise DocumentError(f"{where}: expected {wanted}, found {len(value)}")
    return read(value, where, finite)


def _mapping(read: _Reader, value: object, where: str, finite: bool) -> Mapping[str, Any]:  # noqa: FBT001
    if not isinstance(value, Mapping):
        raise _mismatch(where, "an object", value)
    # A node chooses the keys: the error shows no more of one than of a value.
    place = where or "it"
    return {key: read(one, f"{place}[{_SHOWN.repr(key)}]", finite) for key, one in value.items()}


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
        raise _mismatch(where, name, value)
    return value


def _tuple(
    readers: tuple[_Reader, ...],
    any_number: bool,  # noqa: FBT001
    value: object,
    where: str,
    finite: bool,  # noqa: FBT001
) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _mismatch(where, "a list", value)
    if any_number:
        readers *= len(value)
    if len(readers) != len(value):
        raise DocumentError(f"{where}: expected {len(readers)} values, found {len(value)}")
    pairs = enumerate(zip(readers, value, strict=True))
    return tuple(read(item, f"{where}[{i}]", finite) for i, (read, item) in pairs)


def _object(wanted: Any, value: object, where: str, finite: bool) -> Any:  # noqa: ANN401, FBT001
    if not isinstance(value, Mapping):
        raise _mismatch(where, "an object", value)
    inside = f"{where}." if where else ""
    fields = {}
    for name, (read, null, required) in _fields(wanted).items():
        if name in value and (null or value[name] is not None):
            fields[name] = read(value[name], f"{inside}{name}", finite)
        elif required:
            raise DocumentError(f"{inside}{name}: expected a value, found none")
    try:
        return wanted(**fields)
    except (TypeError, ValueError) as error:
        raise DocumentError(f"{where or 'it'}: {error}") from error


def _mismatch(where: str, wanted: str, value: object) -> DocumentError:
    found = _SHOWN.repr(value)[:_SHOWN_CHARACTERS]
    return DocumentError(f"{where or 'it'}: expected {wanted}, found {found}")


@cache
def _fields(kind: type) -> Mapping[str, tuple[_Reader, bool, bool]]:
    """Return how each field is read, whether null is a value of it, and whether it is required.

    Elsewhere null means the field's default, as if it were absent.
    """
    hints, found = type_hints(kind), {}
    for field in dataclasses.fields(kind):
        hint, required = hints[field.name], not _has_default(field)
        found[field.name] = _reader(hint), required or NoneType in get_args(hint), required
    return found


def _has_default(field: dataclasses.Field[Any]) -> bool:
    absent = dataclasses.MISSING
    return field.default is not absent or field.default_factory is not absent


@cache
def type_hints(kind: type) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields, with their bounds."""
    return get_type_hints(kind, include_extras=True)
