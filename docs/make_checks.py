"""Writes docs/reference/checks.md from the registry itself: `python docs/make_checks.py`."""
# ruff: noqa: INP001  (a script, not a module of a package)

from __future__ import annotations

from pathlib import Path

from clusterctl.checks.all import AREAS, every_check
from clusterctl.checks.registry import Check

PAGE = Path(__file__).parent / "reference" / "checks.md"

HEAD = """\
# Checks

`clusterctl check` runs these checks, in this order, before a run can fail on them. Look up here
what a finding means and how to fix it. `clusterctl check --explain ID` prints the same entry in
your terminal. [Check a cluster](../how-to/check-a-cluster.md) shows how to use the command.

Each check gives each node one status:

| status | meaning | exit code |
|---|---|---|
| pass | the node is as expected | 0 |
| warn | a run may work, but slower, less safely, or not for long | 0; with `--strict` 1 |
| fail | a run would fail or give wrong results | 1 |
| unknown | the check could not read what it needs; never a pass | 3, unless something failed |
| skip | there is nothing to check, or another finding names the cause | 0 |

- Nodes with the same finding share one entry.
- If one check explains another, only the cause is reported. For example, a node without its shared
  folder gets no finding for the interpreter in that folder.
- A check marked **stops** stops `launch` if it fails or is unknown, unless you give `--force`.
- **after sync** means that the check runs once your code is on the nodes. **between nodes** means
  that it needs connections between nodes.
- `--only` and `--skip` take ids and areas: `--only network,storage.shared`.
- A `hint:` is a command for you to type. clusterctl never changes a node by itself.
"""


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for area in AREAS:
        title = (area.__doc__ or "").splitlines()[0].rstrip(".")
        rules = [rule for rule in every_check() if rule.judge.__module__ == area.__name__]
        parts.append(f"\n## {title}\n")
        parts.extend(_entry(rule) for rule in rules)
    return "".join(parts)


def _entry(rule: Check) -> str:
    marks = [
        name for name, on in (("**stops**", rule.blocks), ("after sync", rule.after_sync)) if on
    ]
    if rule.pairwise:
        marks.append("between nodes")
    more = f" ({', '.join(marks)})" if marks else ""
    causes = ", ".join(f"`{cause}`" for cause in rule.explained_by)
    after = f" Left out for a node where one of these failed: {causes}." if causes else ""
    place = (
        rule.source.replace("docs/", "../", 1) if rule.source.startswith("docs/") else rule.source
    )
    source = f" [Source]({place})" if rule.source else ""
    fix = f"\n**Fix:** {rule.fix}{source}\n"
    return f"\n### `{rule.id}`\n\n{_sentence(rule.title)}{more}.\n{rule.why}{after}\n{fix}"


def _sentence(title: str) -> str:
    return title[0].upper() + title[1:]


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
