"""Facts as a JSON document, and back: what `--save-facts` writes and `--facts` judges again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.model.from_json import DocumentError, from_json
from clusterctl.wire import SCHEMA, plain


def to_document(facts: Mapping[str, NodeFacts]) -> dict[str, Any]:
    """Return the document of these facts."""
    return {"schema": SCHEMA, "nodes": [plain(node) for node in facts.values()]}


def from_document(document: object) -> dict[str, NodeFacts]:
    """Read facts by node name; raise DocumentError if the document does not hold them."""
    if not isinstance(document, Mapping) or not isinstance(document.get("nodes"), list):
        raise DocumentError("expected an object with a list `nodes`")
    nodes = from_json(tuple[NodeFacts, ...], document["nodes"], "nodes", finite=False)
    return {node.node: node for node in nodes}
