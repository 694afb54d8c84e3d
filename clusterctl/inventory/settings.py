"""A setting, declared once: as the field of a value of `cluster.py`, or of a section of the file.

Its key in `hosts.yaml` and the key's JSON Schema, its flag and variable, its row in the reference,
its place in `job.json` and what a resume makes of it are derived from the declaration.
"""

import dataclasses
from typing import Any, ClassVar, Literal, TypeVar

from clusterctl.inventory.kinds import Kind
from clusterctl.values import dataclass

T = TypeVar("T")

WhoseValue = Literal["run's", "run's or file's", "file's"]
"""Whose value counts in a resume: the run's, and `resume` reports that the inventory's differs;
the inventory's where the run had none, for it is often written later; the inventory's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known of a setting besides its name and its type."""

    kind: Kind[Any] | type
    """A type is a section inside."""
    default: Any = None
    description: str = ""
    """For editors, and what a file without it is asked for; empty: it is no key of the file."""
    required: bool = False
    instead_of: str = ""
    """The setting of the same section that has no value if this one has."""
    flag: str = ""
    """The help of its flag, `--NAME` with dashes; its variable is `CLUSTERCTL_NAME`."""
    metavar: str = ""
    """Of the flag's value."""
    on_nodes: bool = False
    """Every node gets it: `job.json` has it by the same name."""
    resumed: WhoseValue = "run's"

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Of a number."""
        return self.kind.bounds if isinstance(self.kind, Kind) else None

    @property
    def schema(self) -> dict[str, object]:
        """What editors check."""
        kind = self.kind
        schema = kind.schema if isinstance(kind, Kind) else {"$ref": f"#/$defs/{title(kind)}"}
        return {**schema, "description": self.description}


def setting(
    kind: Kind[T] | type[T],
    description: str = "",
    default: Any = None,  # noqa: ANN401  (a T, or None: it has no value unless it is set)
    **more: Any,  # noqa: ANN401  (the other fields of Setting)
) -> T:
    """Declare a setting as the field of a class."""
    found = Setting(kind=kind, description=description, default=default, **more)
    field: Any = dataclasses.field(default=default, metadata={"setting": found})
    return field  # type: ignore[no-any-return]


def settings_of(model: Any) -> dict[str, Setting]:  # noqa: ANN401  (a dataclass)
    """Return the settings among a value's fields, by name."""
    fields = dataclasses.fields(model)
    return {one.name: one.metadata["setting"] for one in fields if "setting" in one.metadata}


def keys_of(model: type) -> dict[str, Setting]:
    """Return the settings that are keys of the file."""
    if issubclass(model, Section):
        return model.keys
    return {name: one for name, one in settings_of(model).items() if one.description}


class Section:
    """A mapping of the file that no value is like: `vars` of one are the keys written there."""

    keys: ClassVar[dict[str, Setting]] = {}

    def __init_subclass__(cls, like: type | None = None) -> None:
        """Note the keys, after those of the value `like`; leave each one's default in its place."""
        own = {
            name: one.metadata["setting"]
            for name, one in vars(cls).items()
            if isinstance(one, dataclasses.Field)
        }
        first = keys_of(like) if like else {}
        cls.keys = {**cls.keys, **first, **own}
        for name, one in own.items():
            setattr(cls, name, one.default)

    def __init__(self, **written: Any) -> None:  # noqa: ANN401  (each key has its own type)
        vars(self).update(written)


def title(model: type) -> str:
    """Return the name of a section in the JSON Schema."""
    return f"{model.__name__.removesuffix('Section')}Section"
