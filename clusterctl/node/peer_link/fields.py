"""Reads what another node tells: each value has a kind and a bound, or the message is refused.

A reader takes a value and what it is called, and returns it as it is safe to act on.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List

Reader = Callable[[object, str], Any]

TIME_LIMIT = 10.0**11
WHOLE_LIMIT = 2**53


class MessageError(ValueError):
    """A message of a peer that cannot be acted on."""


def refusal(found: object, name: str) -> MessageError:
    """Return the error for a value that cannot be."""
    return MessageError("%s: found %.200r" % (name, found))


def flag(found: object, _name: str) -> bool:
    """Tell whether it is true; whatever else it is, it is not."""
    return found is True


def mapping(found: object, name: str) -> Dict[str, Any]:
    """Return an object that is read later."""
    if not isinstance(found, dict):
        raise refusal(found, name)
    return found


def number(most: float = TIME_LIMIT, *, cut: bool = False) -> Reader:
    """Read a number from 0 to below `most`; with `cut`, `most` instead of a larger one."""

    def read(found: object, name: str) -> float:
        if not isinstance(found, (int, float)) or not (0 <= found < most or (cut and found >= 0)):
            raise refusal(found, name)
        return float(min(found, most))

    return read


def whole(most: int = WHOLE_LIMIT, *, least: int = 0) -> Reader:
    """Read a whole number."""

    def read(found: object, name: str) -> int:
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise refusal(found, name)
        return found

    return read


def text(most: int, *, least: int = 0, cut: bool = False) -> Reader:
    """Read a text of so many characters; with `cut`, the beginning of a longer one."""

    def read(found: object, name: str) -> str:
        if not isinstance(found, str) or not least <= len(found) <= (len(found) if cut else most):
            raise refusal(found, name)
        return found[:most]

    return read


def words(most: int, *, least: int = 0) -> Reader:
    """Read a text that can be encoded: JSON can bring in half a character."""
    read = text(most, least=least)
    return lambda found, name: read(found, name).encode("utf-8", "replace").decode()


def optional(reader: Reader, default: object = None) -> Reader:
    """Read what may be null or absent."""
    return lambda found, name: default if found is None else reader(found, name)


def many(reader: Reader, most: int, *, least: int = 0) -> Reader:
    """Read a list."""

    def read(found: object, name: str) -> List[Any]:
        if not isinstance(found, (list, tuple)) or not least <= len(found) <= most:
            raise refusal(found, name)
        return [reader(each, name) for each in found]

    return read


def table(reader: Reader, most: int, *, name_limit: int) -> Reader:
    """Read an object whose keys are names; a longer name is cut."""

    def read(found: object, name: str) -> Dict[str, Any]:
        if len(mapping(found, name)) > most:
            raise refusal(found, name)
        items = mapping(found, name).items()
        return {str(key)[:name_limit]: reader(value, name) for key, value in items}

    return read


def record(**fields: Reader) -> Reader:
    """Read an object with these keys; any others are left out."""

    def read(found: object, name: str) -> Dict[str, Any]:
        told = mapping(found, name)
        return {key: each(told.get(key), "%s of %s" % (key, name)) for key, each in fields.items()}

    return read
