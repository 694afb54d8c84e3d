"""Keeps the speeds of a cluster's good checks with `--deep`, and gives later ones their median."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from clusterctl.checks.finding import Finding
from clusterctl.checks.gpu.speed_history import HISTORY
from clusterctl.facts.ladder import Speeds, UsualSpeeds
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.speeds import speeds_of, usual_of
from clusterctl.model.from_json import DocumentError, from_json
from clusterctl.own_files import make_private
from clusterctl.verbs.runs.records import write_private
from clusterctl.wire import SCHEMA, plain

KEPT = 5
"""Good checks of a node."""
FILE = "deep-speeds.json"

History = Mapping[str, tuple[Speeds, ...]]
"""Of each node the earlier speeds, the newest last."""


def read_history(path: Path) -> dict[str, tuple[Speeds, ...]]:
    """Return what is known; nothing if there is no file, or it is damaged."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(name): from_json(tuple[Speeds, ...], found, name)
            for name, found in document["nodes"].items()
        }
    except (OSError, ValueError, DocumentError, KeyError, TypeError, AttributeError):
        return {}


def with_usual(facts: Mapping[str, NodeFacts], path: Path) -> dict[str, NodeFacts]:
    """Return the facts with each node's usual speeds."""
    history = read_history(path)
    nodes = _took_part(facts)
    found: dict[str, NodeFacts] = {}
    for name, node in facts.items():
        now, earlier = speeds_of(node, nodes), history.get(name, ())
        usual = usual_of(earlier, now) if now else None
        found[name] = node
        if usual and node.ladder:
            speeds, checks = usual
            known = UsualSpeeds(speeds=speeds, checks=checks, file=str(path))
            found[name] = replace(node, ladder=replace(node.ladder, usual=known))
    return found


def keep_speeds(facts: Mapping[str, NodeFacts], findings: tuple[Finding, ...], path: Path) -> None:
    """Add the speeds of the nodes of which no deep check complains, other than of their past.

    So a new speed is the usual one after some checks, and a lucky one is forgotten.
    A folder that cannot be written only costs later comparisons.
    """
    history = read_history(path)
    complained = {
        name
        for finding in findings
        if finding.check.startswith("deep.")
        and finding.check != HISTORY
        and finding.status in {"fail", "warn", "unknown"}
        for name in finding.nodes
    }
    nodes = _took_part(facts)
    good = {
        name: speeds
        for name, node in facts.items()
        if name not in complained and (speeds := speeds_of(node, nodes))
    }
    if not good:
        return
    for name, speeds in good.items():
        history[name] = (*history.get(name, ()), speeds)[-KEPT:]
    document = {"schema": SCHEMA, "nodes": plain(history)}
    try:
        make_private(path.parent.parent, path.parent)
        write_private(path, json.dumps(document, indent=1) + "\n")
    except OSError:
        return


def _took_part(facts: Mapping[str, NodeFacts]) -> int:
    return sum(node.ladder is not None for node in facts.values())
