"""What differs between runs: command, environment, code, nodes, versions, checks. Pure."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from clusterctl.checks.wording import counted
from clusterctl.facts.changes import BOOT, SETTINGS, changes, traits
from clusterctl.inventory.cluster import Job
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.inventory.secret_values import is_secret
from clusterctl.inventory.settings import keys_of
from clusterctl.model.from_json import from_json
from clusterctl.model.run_record import RecordedNode, RecordedPlan
from clusterctl.values import dataclass
from clusterctl.verbs.compare.story import Story
from clusterctl.wire import plain

HIDDEN = "***"
"""In place of what looks like a secret."""
TAKEN = "taken from the controller, not recorded"
ABSENT = "none"
BLOCKS = ("command", "environment", "settings", "code", "nodes", "versions", "checks")
_OWN_BLOCKS = ("command", "env", "env_from")
"""Keys of the job that are compared word by word, not whole."""
_IDENTITY = {
    BOOT: "restarted since",
    "GPU ": "has other GPUs",
    "addresses of": "has other addresses",
}
"""What each machine has for itself: such facts are compared for the machines of both runs alone."""
_LINK = ("MTU of", "speed of")
"""Of each interface, whose names differ from machine to machine: the planned one is compared."""
_COMMIT = 12
_FILES = 5
"""Of a diff that are named."""
_CREDENTIALS = re.compile(r"(://)[^/@\s]+@")
"""In an address, such as that of a proxy."""
_DIFF_FILE = re.compile(r"^diff --git a/(.+) b/|^# new file: '(.+)'$", re.MULTILINE)

Values = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that is not the same in all runs."""

    block: str
    """What it belongs to: `command`, `environment`, `settings`, `code`, `nodes`, …"""
    what: str
    """Its name there."""
    values: Values
    """In the order of the runs; null: not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What differs, and what does not."""

    differences: tuple[Difference, ...]
    same: Mapping[str, tuple[str, ...]]
    """By block, the names of what is equal in all runs."""
    not_recorded: Mapping[str, tuple[str, ...]]
    """By block, the runs of which nothing is recorded that could be compared."""


def compare(stories: Sequence[Story]) -> Compared:
    """Compare runs with each other; the first is what the others are compared with."""
    known = {block: [reader(story) for story in stories] for block, reader in _READERS.items()}
    known["versions"] = _versions(stories)
    differences: list[Difference] = []
    same: dict[str, tuple[str, ...]] = {}
    missing: dict[str, tuple[str, ...]] = {}
    for block in BLOCKS:
        tables = known[block]
        gaps = tuple(s.run for s, table in zip(stories, tables, strict=True) if table is None)
        if gaps:
            missing[block] = gaps
        told = [table for table in tables if table is not None]
        equal = []
        for what in dict.fromkeys(name for table in told for name in table):
            values = tuple(None if one is None else one.get(what, ABSENT) for one in tables)
            if len({value for value in values if value is not None}) > 1:
                shown = tuple(v if v in {None, ABSENT} else hide(what, v) for v in values)
                differences.append(Difference(block=block, what=what, values=shown))
            elif len(told) > 1:
                equal.append(what)
        same[block] = tuple(equal)
    differences += _identities(stories)
    differences.sort(key=lambda one: BLOCKS.index(one.block))
    return Compared(differences=tuple(differences), same=same, not_recorded=missing)


def hidden(words: Iterable[str]) -> tuple[str, ...]:
    """Return a command without the values that look like secrets."""
    shown: list[str] = []
    for before, word in pairwise(["", *words]):
        flag, equals, value = word.partition("=")
        if equals and is_secret(_as_name(flag), value):
            shown.append(f"{flag}={HIDDEN}")
        elif is_secret(_as_name(before) if before.startswith("-") else "", word):
            shown.append(word if word.startswith("-") else HIDDEN)
        elif " " in word:  # a line for a shell
            shown.append(hide_words(word))
        else:
            shown.append(_CREDENTIALS.sub(rf"\1{HIDDEN}@", word))
    return tuple(shown)


def _as_name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def hide(name: str, value: str) -> str:
    """Return the value of a variable or a flag without what looks like a secret."""
    return HIDDEN if is_secret(_as_name(name), value) else hide_words(value)


def hide_words(text: str) -> str:
    """Return a line without the words in it that look like secrets."""
    return " ".join(hidden(text.split(" ")))


Table = Mapping[str, str] | None
"""Names and values; None: not recorded."""


def command_table(words: Sequence[str]) -> dict[str, str]:
    """Return the program, its flags with all words that follow each, and the words before them."""
    table: dict[str, list[str]] = {}
    flag, number = "", 0
    for word in words:
        if word.startswith("-") and not re.match(r"-[\d.]", word):
            flag, equals, value = word.partition("=")
            table.setdefault(flag, []).extend([value] if equals else [])
            flag = "" if equals else flag
        elif flag:
            table[flag].append(word)
        else:
            number += 1
            table["program" if number == 1 else f"word {number}"] = [word]
    return {name: " ".join(values) or "given" for name, values in table.items()}


def _command(story: Story) -> Table:
    record = story.record
    words = record.cluster.job.command if record and not record.discovered else ()
    return command_table(words or story.one.line.command) or None


def _environment(story: Story) -> Table:
    if story.record is None or story.record.discovered:
        return None
    job = story.record.cluster.job
    return {**dict(job.env), **dict.fromkeys(job.env_from, TAKEN)}


def _settings(story: Story) -> Table:
    if story.record is None or story.record.discovered:
        return None
    job = story.record.cluster.job
    table: dict[str, str] = {}
    for name in keys_of(Job):
        value = plain(getattr(job, name))
        if isinstance(value, Mapping):
            table |= {f"job.{name}.{key}": _text(one) for key, one in value.items()}
        elif name not in _OWN_BLOCKS:
            table[f"job.{name}"] = _text(value)
    return table


def _text(value: object) -> str:
    """Return a setting in one line; of a section only what is set."""
    if isinstance(value, Mapping):
        parts = (f"{key}: {_text(one)}" for key, one in value.items() if one)
        return ", ".join(parts) or ABSENT
    if isinstance(value, list):
        return " ".join(_text(one) for one in value) or ABSENT
    return ABSENT if value in (None, "") else str(value)


def _code(story: Story) -> Table:
    record = story.record
    if record is None or not (record.tree or record.commit):
        return None
    table = {"source": record.source, "commit": record.commit[:_COMMIT] or ABSENT}
    table["uncommitted changes"] = changes_of(story.diff) if record.dirty else ABSENT
    return {**table, "files": record.tree[:_COMMIT] or "not synced"}


def changes_of(diff: str) -> str:
    """Return which files a diff changes, and a hash that tells it from others."""
    if not diff:
        return "not recorded"
    files = list(dict.fromkeys(one[0] or one[1] for one in _DIFF_FILE.findall(diff)))
    more = f" and {len(files) - _FILES} more" if len(files) > _FILES else ""
    digest = hashlib.sha256(diff.encode("utf-8", "replace")).hexdigest()[:6]
    return f"{', '.join(files[:_FILES])}{more} ({digest})"


def _nodes(story: Story) -> Table:
    line, record = story.one.line, story.record
    size = dict(record.plan).get("world_size") if record else None
    table = {"nodes": fold_hosts(line.nodes), "number of nodes": str(len(line.nodes))}
    return {**table, **({"ranks": str(size)} if size else {})}


def _checks(story: Story) -> Table:
    if story.record is None or story.record.discovered:
        return None
    found: dict[str, list[str]] = {}
    for one in story.record.findings:
        if one.get("status") in {"warn", "fail", "unknown"}:
            told = f"{one.get('status')}: {one.get('message')}"
            found.setdefault(str(one.get("check")), []).append(told)
    return {check: "; ".join(told) for check, told in found.items()}


_READERS: Mapping[str, Callable[[Story], Table]] = {
    "command": _command,
    "environment": _environment,
    "settings": _settings,
    "code": _code,
    "nodes": _nodes,
    "checks": _checks,
}


def _versions(stories: Sequence[Story]) -> list[Table]:
    """Return each run's versions and settings of machines; a fact unknown in one run is left out.

    The nodes of a run are folded: one value if all agree, else each with its nodes.
    """
    read = [_facts_of(story) for story in stories]
    told = [table for table in read if table is not None]
    full = all(table.get("all packages") for table in told)
    names = dict.fromkeys(name for table in told for name in table if name != "all packages")
    tables: list[Table] = []
    for table in read:
        if table is None:
            tables.append(None)
            continue
        known = {}
        for name in names:
            if any(_unknown(name, each, full=full) for each in told):
                continue
            known[name] = _fold(table[name]) if name in table else ABSENT
        tables.append(known)
    return tables


Facts = dict[str, dict[str, str | None]]
"""What → node → value; None: unknown."""


def _facts_of(story: Story) -> Facts | None:
    if not story.facts:
        return None
    ran, plan = set(story.one.line.nodes), story.record.plan if story.record else {}
    planned: tuple[RecordedNode, ...] = from_json(RecordedPlan, plan, "plan").nodes
    links = {one.node: one.interface for one in planned}
    found: Facts = {}
    for name, node in story.facts.items():
        if not node.answered or name not in ran:
            continue
        for what, value in traits(node).items():
            if not what.startswith((*_IDENTITY, *_LINK)):
                found.setdefault(what, {})[name] = value
        link = node.interface(links.get(name, ""))
        for what, number in (
            ("MTU", link.mtu if link else None),
            ("Mbit/s", link.speed_mbps if link else None),
        ):
            told = None if number is None else str(number)
            found.setdefault(f"{what} of the data network", {})[name] = told
        every = node.python.everything if node.python else ""
        found.setdefault("all packages", {})
        for word in every.split():
            package, equals, version = word.partition("==")
            if equals:
                found["all packages"][name] = ""
                found.setdefault(package, {}).setdefault(name, version)
    return found


def _unknown(name: str, table: Facts, *, full: bool) -> bool:
    """Tell whether a run does not know a fact: what is absent counts where all is listed."""
    if name in table:
        return all(value is None for value in table[name].values())
    return name.startswith(SETTINGS) or not full


def _fold(values: Mapping[str, str | None]) -> str:
    groups: dict[str, list[str]] = {}
    for node, value in values.items():
        if value is not None:
            groups.setdefault(value or ABSENT, []).append(node)
    if len(groups) == 1:
        return next(iter(groups))
    return ", ".join(f"{value} ({fold_hosts(nodes)})" for value, nodes in sorted(groups.items()))


def _identities(stories: Sequence[Story]) -> Iterator[Difference]:
    """Yield which machines of the first run were restarted or replaced before another one."""
    first, *others = stories
    found: dict[str, list[str]] = {}
    for number, story in enumerate(others, 1):
        for change in changes(first.facts or {}, story.facts or {}):
            kind = next((one for one in _IDENTITY if change.what.startswith(one)), None)
            if kind is None or not change.before or not change.after:
                continue
            values = found.setdefault(_IDENTITY[kind], [""] * len(stories))
            names = {*filter(None, values[number].split(", ")), *change.nodes}
            values[number] = ", ".join(sorted(names))
    for what, values in found.items():
        yield Difference(
            block="nodes", what=f"machine {what}", values=tuple(one or ABSENT for one in values)
        )


def summary_of_same(compared: Compared) -> str:
    """Return in one line what is equal."""
    parts = [
        f"{block} ({counted(len(names), 'value')})" if block in _COUNTED else block
        for block, names in compared.same.items()
        if names and all(one.block != block for one in compared.differences)
    ]
    rest = [
        f"{counted(len(names), 'other value')} of {block}"
        for block, names in compared.same.items()
        if names and any(one.block == block for one in compared.differences)
    ]
    return ", ".join([*parts, *rest])


_COUNTED = frozenset({"settings", "versions", "environment"})
