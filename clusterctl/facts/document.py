"""Facts as a JSON document, and back: what `--save-facts` writes and `--facts` judges again."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.wire import SCHEMA, plain


class DocumentError(ValueError):
    """The JSON is not facts of ours; `str()` says where it departs."""


def to_document(facts: Mapping[str, NodeFacts]) -> dict[str, Any]:
    """Return the document of these facts."""
    return {"schema": SCHEMA, "nodes": [plain(node) for node in facts.values()]}


def from_document(document: object) -> dict[str, NodeFacts]:
    """Read facts by node name; keys that we do not know are ignored.

    Raises:
        DocumentError: it is something else.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("nodes"), list):
        raise DocumentError("wanted an object with a list `nodes`")
    nodes = [_decode(NodeFacts, node, f"nodes[{i}]") for i, node in enumerate(document["nodes"])]
    return {node.node: node for node in nodes}


def _decode(wanted: Any, value: object, where: str) -> Any:  # noqa: ANN401  (any annotation)
    """Build a value of the annotated type `wanted` from JSON."""
    origin = get_origin(wanted)
    if origin in {Union, types.UnionType}:
        if value is None:
            return None
        inner = next(arm for arm in get_args(wanted) if arm is not type(None))
        return _decode(inner, value, where)
    if dataclasses.is_dataclass(wanted):
        return _decode_fields(wanted, value, where)
    if origin is tuple:
        return _decode_tuple(get_args(wanted), value, where)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise DocumentError(f"{where}: wanted {wanted.__name__}, found {value!r}")
    return value


def _decode_tuple(arms: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise DocumentError(f"{where}: wanted a list, found {value!r}")
    if arms[-1] is not Ellipsis:
        if len(arms) != len(value):
            raise DocumentError(f"{where}: wanted {len(arms)} values, found {len(value)}")
        return tuple(
            _decode(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(arms, value, strict=True))
        )
    return tuple(_decode(arms[0], item, f"{where}[{i}]") for i, item in enumerate(value))


def _decode_fields(wanted: Any, value: object, where: str) -> Any:  # noqa: ANN401  (a class)
    if not isinstance(value, Mapping):
        raise DocumentError(f"{where}: wanted an object, found {value!r}")
    hints = get_type_hints(wanted)
    fields = {
        name: _decode(hint, value[name], f"{where}.{name}")
        for name, hint in hints.items()
        if name in value
    }
    try:
        return wanted(**fields)
    except (TypeError, ValueError) as error:
        raise DocumentError(f"{where}: {error}") from error
