"""Writes hosts.schema.json, and in docs/reference/inventory.md a row for each key that has none.

A row says what the setting's declaration does; one that was written by hand stays, but for its
default: `python docs/make_inventory.py`.
"""
# ruff: noqa: INP001  (a script, not a module of a package)

from __future__ import annotations

import json
import re
from pathlib import Path

import clusterctl.inventory
from clusterctl.inventory.cluster import Ends, Hang, Job, Notify, Restart, Ssh, Stop
from clusterctl.inventory.schema import (
    DefaultsSection,
    HostsFile,
    NetworkSection,
    QuarantineSection,
    json_schema,
)
from clusterctl.inventory.settings import Setting, keys_of

PAGE = Path(__file__).parent / "reference" / "inventory.md"
SCHEMA = Path(clusterctl.inventory.__file__).parent / "hosts.schema.json"
HEAD = "| key | value | default |\n|---|---|---|\n"
TABLES = (
    HostsFile, Ssh, DefaultsSection, NetworkSection, QuarantineSection, Job, Stop, Hang, Restart,
    Ends, Notify,
)  # fmt: skip
"""In the order of the page."""
_SECTIONS = {"ssh", "defaults", "network", "quarantine", "job"}
"""Keys of the top with a table of their own."""


def schema() -> str:
    """Return the JSON Schema that is shipped."""
    return json.dumps(json_schema(), indent=2) + "\n"


def render(page: str) -> str:
    """Return the page with a row for each key, and the defaults of now."""
    before, *tables = page.split(HEAD)
    assert len(tables) == len(TABLES)
    made = [_table(table, keys_of(model)) for table, model in zip(tables, TABLES, strict=True)]
    return HEAD.join([before, *made])


def _table(text: str, keys: dict[str, Setting]) -> str:
    """Return what follows a table's head, its rows completed."""
    table, blank, rest = text.partition("\n\n")
    rows = {re.match(r"\| `(\w+)`", row)[1]: row for row in table.split("\n")}  # type: ignore[index]
    names = [name for name in rows if name in keys]
    for at, name in enumerate(keys):
        if name not in rows and name not in _SECTIONS:
            names.insert(names.index([*keys][at - 1]) + 1 if at else 0, name)
    return "\n".join(_row(name, keys[name], rows.get(name)) for name in names) + blank + rest


def _row(name: str, key: Setting, row: str | None) -> str:
    default = {str: f"`{key.default}`", float: f"{key.default}".removesuffix(".0")}
    absent = default.get(type(key.default))
    if row is None:
        return f"| `{name}` | {key.description} | {absent or 'none'} |"
    return f"{row.rsplit('|', 2)[0]}| {absent} |" if absent else row


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")
