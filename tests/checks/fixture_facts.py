"""The facts of a fixture: given as they are, or parsed from raw answers (see `test_rules`)."""

from __future__ import annotations

import functools
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.facts.nodefacts import to_document
from clusterctl.facts.parse_facts import parse_facts
from clusterctl.facts.request import FactRequest
from clusterctl.inventory import load
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.ranges import expand_hosts
from tests.facts.answering import answers

_TESTS = Path(__file__).parents[1]
FOLDER = Path(__file__).parent
SOURCES = (_TESTS / "recordings", _TESTS / "facts" / "sources")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A fixture of a check."""

    name: str
    cluster: Cluster
    facts: list[dict[str, Any]]
    """Documents, of every node; not to be changed."""
    findings: list[dict[str, Any]]


@functools.cache
def cases_of(identity: str) -> tuple[Case, ...]:
    """Return the fixtures of a check."""
    paths = sorted((FOLDER / identity).glob("*.json"))
    return tuple(_case(path.stem, case) for path in paths for case in read_cases(path))


def read_cases(path: Path) -> list[dict[str, Any]]:
    """Return the cases of a file in full: one, or a list of them."""
    found = json.loads(path.read_text())
    given, *others = found if isinstance(found, list) else [found]
    first = in_full(given, {})
    return [first, *(in_full(case, first) for case in others)]


def in_full(case: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """Return a case with all that it may leave out; it may differ from the first of its file."""
    if "but" in case:
        facts = {entry["node"]: entry for entry in first["facts"]}
        for names, difference in case["but"].items():
            for name in expand_hosts(names):
                if difference is None:
                    del facts[name]
                else:
                    facts[name] = changed(facts.get(name, {"node": name}), expanded(difference))
        case = {"inventory": first["inventory"], **case, "facts": [*facts.values()]}
    else:
        case = {**case, "facts": _each_node(case["facts"])}
    named = {"cluster": "lab", "nodes": [entry["node"] for entry in case["facts"]]}
    findings = [{**one, "nodes": [*expand_hosts(one["nodes"])]} for one in case["findings"]]
    return {"inventory": named, **case, "findings": findings}


def _each_node(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    facts: dict[str, dict[str, Any]] = {}
    for entry in map(expanded, entries):
        like = facts[entry.pop("like")] if "like" in entry else {}
        for name in expand_hosts(entry["node"]):
            facts[name] = {**changed(like, entry), "node": name}
    return [*facts.values()]


def expanded(value: Any) -> Any:
    """Return a value with each fold unfolded: of entries that are alike, and of NVLinks."""
    if isinstance(value, list):
        return [one for entry in value for one in _each(expanded(entry))]
    if isinstance(value, dict):
        links = value.get("nvlinks")
        own = {"nvlinks": [True] * links} if isinstance(links, int) else {}
        return {**{key: expanded(one) for key, one in value.items()}, **own}
    return value


def _each(entry: Any) -> list[Any]:
    for key, kind in (("index", int), ("device", str)):
        folded = entry.get(key) if isinstance(entry, dict) else None
        if isinstance(folded, str) and "[" in folded:
            return [{**entry, key: kind(name)} for name in expand_hosts(folded)]
    return [entry]


def changed(value: Any, difference: Any) -> Any:
    """Return a value with a difference: by key, or in a list by place; null takes a key away."""
    if not isinstance(difference, dict) or not isinstance(value, (dict, list)):
        return difference
    if isinstance(value, list):
        places = ((difference.get(str(place), one), one) for place, one in enumerate(value))
        return [one if new is one else changed(one, new) for new, one in places]
    taken = {key for key, one in difference.items() if one is None and key in value}
    new = {key: changed(value.get(key), one) for key, one in difference.items()}
    return {key: one for key, one in {**value, **new}.items() if key not in taken}


def _case(stem: str, case: dict[str, Any]) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        inventory = Path(folder, "hosts.yaml")
        inventory.write_text(json.dumps(case["inventory"]))
        cluster = load(inventory)
    name = f"{stem}: {case['about']}"
    return Case(name=name, cluster=cluster, facts=facts_of(case), findings=case["findings"])


def facts_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the facts of every node of a case, as documents."""
    return [*map(_facts, case["facts"])]


def _facts(entry: dict[str, Any]) -> dict[str, Any]:
    entry = entry.copy()
    given = entry.pop("answers", None)
    if given is None:
        return entry
    return {**_parsed(json.dumps(given)), **entry}


@functools.cache
def _parsed(answered: str) -> dict[str, Any]:
    """Return what a node's answers say of it, once for all that answer alike."""
    given = json.loads(answered)
    raw = answers(
        {path: str(_raw(text)) for path, text in given.get("files", {}).items()},
        {key: _raw(text) for key, text in given.get("commands", {}).items()},
        given.get("others"),
    )
    (document,) = to_document({"": parse_facts("", raw, FactRequest(), clock=None)})["nodes"]
    return dict(document)


def _raw(given: str | dict[str, Any] | None) -> str | tuple[str, int] | None:
    """Return the text of an answer; of a program that failed, with its exit code."""
    if given is None or isinstance(given, str):
        return given
    text: str = given.get("text", "")
    if "source" in given:
        (path,) = [
            folder / given["source"] for folder in SOURCES if (folder / given["source"]).exists()
        ]
        text = path.read_text()
    text = _replaced(text, given.get("replace", {}))
    if "gpus" in given:
        text = _repeated(text, given["gpus"], given.get("gpu", {}))
    return (text, given["exit_code"]) if "exit_code" in given else text


def _replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, f"{old!r} is not in the recording"
        text = text.replace(old, new)
    return text


_IDENTITY = re.compile(r'<gpu id="[^"]*">|<uuid>[^<]*</uuid>|<pci_bus_id>[^<]*</pci_bus_id>')


def _repeated(text: str, count: int, changes: dict[str, dict[str, str]]) -> str:
    """Repeat the only GPU of a recording, each with an identity of its own, and change some."""
    head, gpu, tail = re.split(r"(<gpu id=.*</gpu>)", text, flags=re.DOTALL)
    made = []
    for index in range(count):
        address = f"00000000:{0x1B + 16 * index:02X}:00.0"
        identity = {
            "<gpu": f'<gpu id="{address}">',
            "<uui": f"<uuid>GPU-00000000-0000-0000-0000-{index:012d}</uuid>",
            "<pci": f"<pci_bus_id>{address}</pci_bus_id>",
        }
        one = _IDENTITY.sub(lambda found, known=identity: known[found[0][:4]], gpu)
        made.append(_replaced(one, changes.get(str(index), {})))
    return head + "\n".join(made) + tail
