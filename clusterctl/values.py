"""`dataclass` as the standard library's, but a value's constructor is compiled at its first call.

A command makes few of the values that it knows of. To compile the methods of all took it half of
the time until its first line of work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(**options: bool) -> Callable[[type], type]:
        """Return the decorator of a value; any other dataclass is the standard library's."""
        is_value = options == {"frozen": True, "slots": True, "kw_only": True}
        return _value if is_value else dataclasses.dataclass(**options)


def _value(plain: type) -> type:
    own = set(vars(plain))
    plain.__doc__ = plain.__doc__ or plain.__name__  # else its signature is looked for
    make: Callable[[type], Any] = dataclasses.dataclass(
        init=False, repr=False, eq=False, slots=True, kw_only=True
    )
    made = make(plain)

    def __init__(self: Any, *args: object, **given: object) -> None:  # noqa: ANN401, N807
        made.__init__ = _constructor(made)
        self.__init__(*args, **given)

    for method in (__init__, *_METHODS):
        if method.__name__ not in own:
            setattr(made, method.__name__, method)
    return made  # type: ignore[no-any-return]


def _constructor(made: Any) -> Any:  # noqa: ANN401
    space: dict[str, Any] = {"put": object.__setattr__}
    words, lines = ["self"], ["pass"]
    for at, field in enumerate(dataclasses.fields(made)):
        word = value = name = field.name
        if field.default_factory is not dataclasses.MISSING:
            space[f"absent_{at}"], space[f"make_{at}"] = object(), field.default_factory
            word, value = f"{name}=absent_{at}", f"make_{at}() if {name} is absent_{at} else {name}"
        elif field.default is not dataclasses.MISSING:
            space[f"default_{at}"] = field.default
            word = f"{name}=default_{at}"
        words += ["*", word] if at == 0 else [word]
        lines.append(f"put(self, {name!r}, {value})")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(words)}):\n " + "\n ".join(lines), space)  # noqa: S102
    space["__init__"].__qualname__ = f"{made.__qualname__}.__init__"
    return space["__init__"]


def _compared(value: Any) -> tuple[object, ...]:  # noqa: ANN401
    return tuple(getattr(value, each.name) for each in dataclasses.fields(value) if each.compare)


def __repr__(self: Any) -> str:  # noqa: ANN401, N807
    names = (each.name for each in dataclasses.fields(self) if each.repr)
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
    return f"{type(self).__qualname__}({shown})"


def __eq__(self: object, other: object) -> bool:  # noqa: N807
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _compared(self) == _compared(other)


def __hash__(self: object) -> int:  # noqa: N807
    return hash(_compared(self))


def __setattr__(self: object, name: str, value: object) -> NoReturn:  # noqa: N807
    del self, value
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def __delattr__(self: object, name: str) -> NoReturn:  # noqa: N807
    del self
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def __getstate__(self: Any) -> list[object]:  # noqa: ANN401, N807
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def __setstate__(self: Any, state: list[object]) -> None:  # noqa: ANN401, N807
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


_METHODS: tuple[Callable[..., object], ...] = (
    __repr__, __eq__, __hash__, __setattr__, __delattr__, __getstate__, __setstate__,
)  # fmt: skip
