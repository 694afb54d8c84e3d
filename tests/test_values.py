"""A value behaves as the standard library's dataclass does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from clusterctl import values


class _Plain:
    """Fields of every kind."""

    count: int
    name: str = "none"
    found: list[int] = dataclasses.field(default_factory=list)
    secret: str = dataclasses.field(default="key", repr=False)
    place: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(self.count)


def _made(decorator: Any) -> Any:
    made = type("Value", (), dict(vars(_Plain)))
    return decorator(frozen=True, slots=True, kw_only=True)(made)


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A value that another extends."""

    a: int = 1


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Child(Parent):
    """It has a method of its own where others are written."""

    b: tuple[int, ...]

    def __repr__(self) -> str:
        return "own"


@pytest.mark.parametrize("make", [values.dataclass, dataclasses.dataclass])
def test_a_value_is_a_dataclass(make: Any) -> None:
    kind = _made(make)
    one = kind(count=1)
    assert repr(one) == "Value(count=1, name='none', found=[], place='')"
    assert (one.secret, one.found) == ("key", [])
    assert one.found is not kind(count=1).found
    assert one == kind(count=1, place="elsewhere") != kind(count=2)
    assert one != dataclasses.make_dataclass("Value", ["count"])(1)
    assert dataclasses.replace(one, count=3, found=[1]) == kind(count=3, found=[1])
    assert hash(kind(count=1, found=())) == hash(kind(count=1, found=(), place="x"))
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'count'"):
        one.count = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'count'"):
        del one.count
    for wrong, told in (
        ({}, r"Value\.__init__\(\) missing 1 required keyword-only argument: 'count'"),
        ({"count": 1, "sum": 2}, r"got an unexpected keyword argument 'sum'"),
    ):
        with pytest.raises(TypeError, match=told):
            kind(**wrong)
    with pytest.raises(ValueError, match="-1"):
        kind(count=-1)


def test_a_value_extends_another() -> None:
    child = Child(b=(2,))
    assert (child.a, child.b, repr(child)) == (1, (2,), "own")
    assert Parent(a=1) == Parent() != child
    assert copy.deepcopy(child) == pickle.loads(pickle.dumps(child)) == child
