"""Writes docs/reference/checks.md from the registry itself: `python docs/make_checks.py`."""
# ruff: noqa: INP001  (a script, not a module of a package)

from __future__ import annotations

from pathlib import Path

from clusterctl.checks.all import AREAS, every_check
from clusterctl.checks.registry import Check

PAGE = Path(__file__).parent / "reference" / "checks.md"

HEAD = """\
# Checks

What `clusterctl check` looks at, in this order.
Written by `python docs/make_checks.py` from the checks themselves; a test keeps it equal.

A check says of each node one of

| status | meaning | exit code |
|---|---|---|
| pass | it is as it should be | 0 |
| warn | a run works, but slower or less safely | 0, with `--strict` 1 |
| fail | a run would not work, or not as meant | 1 |
| unknown | it could not be looked at: never taken for a pass | 3, unless something failed |
| skip | there is nothing to look at, or its cause has been named already | 0 |

Equal findings of several nodes are one. A finding whose cause another check has found on the same
node is left out: a node without its shared folder is not blamed for the interpreter on it too.
`launch` is stopped by a fail or unknown of the checks marked **stops**, unless `--force` is given.

`--only` and `--skip` take ids and areas: `--only network,storage.shared`.
`--explain ID` prints what stands here. What is printed as `hint:` is for you to type: nothing is
ever changed on a node.
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
    marks = [name for name, on in (("**stops**", rule.blocks), ("after sync", rule.code)) if on]
    if rule.between:
        marks.append("tried between nodes")
    more = f" ({', '.join(marks)})" if marks else ""
    causes = ", ".join(f"`{cause}`" for cause in rule.after)
    after = f" Left out where one of these has failed: {causes}." if causes else ""
    return f"\n### `{rule.id}`\n\n{_sentence(rule.title)}{more}.\n{rule.why}{after}\n"


def _sentence(title: str) -> str:
    return title[0].upper() + title[1:]


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
