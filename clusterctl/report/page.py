"""Writes a check as a file to share: self-contained HTML, or Markdown."""

import re
import shlex
from collections.abc import Callable
from html import escape
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.own_files import write_named
from clusterctl.report.check import (
    details,
    gpus,
    headline,
    place,
    problems,
    summary,
    verdict,
    when,
    who,
    worst,
)
from clusterctl.safe_text import strip_controls
from clusterctl.verbs.preflight.check import CheckResult

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e6e6e6 } }
"""
_PART_STYLE = """
.clusterctl { overflow-wrap: anywhere } .clusterctl .table { overflow-x: auto }
.clusterctl table { border-collapse: collapse; margin: 1rem 0 }
.clusterctl .verdict { font-size: 1.3em; font-weight: bold }
.clusterctl th, .clusterctl td { padding: .2rem .8rem; text-align: left; white-space: nowrap }
.clusterctl th { border-bottom: 1px solid #888 } .clusterctl code { font-size: 14px }
.clusterctl dt { color: #666; float: left; clear: left; width: 5rem }
.clusterctl dd { margin-left: 5.5rem }
.clusterctl .fail, .clusterctl .unreachable { color: #b00020 }
.clusterctl .warn { color: #8a5a00 } .clusterctl .unknown { color: #7b1fa2 }
.clusterctl .ok, .clusterctl .pass { color: #1b7f3b }
"""
"""Applies to the report alone: a notebook has its own style."""


_MARKUP = re.compile(
    r"[\\`*_{}#|~@]|\](?=[(\[:])"  # the second: what ends the words of a link or an image
    r"|^[-+=]|(?<=^\d)[.)](?=\s)|(?<=^\d\d)[.)](?=\s)"  # lists, rules and headings
    r"|:(?=//)|(?<=\bwww)\.",  # what GitHub makes a link of
    re.IGNORECASE,
)
"""What Markdown gives meaning, apart from `&`, `<` and `>`."""

Form = Callable[[CheckResult], str]


def form_of(path: Path) -> Form:
    """Return the format that the file's suffix asks for.

    Raises:
        UsageError: the suffix is neither .html nor .md.
    """
    forms: dict[str, Form] = {".html": html_page, ".htm": html_page, ".md": markdown_page}
    form = forms.get(path.suffix.lower())
    if form is None:
        raise UsageError(
            f"--report: expected a name that ends in .html or .md, found {path}",
            hint=f"--report {shlex.quote(str(path.with_suffix('.html')))}",
        )
    return form


def write_page(path: Path, result: CheckResult) -> None:
    """Write the check in the format that the file's suffix asks for.

    Raises:
        UsageError: the suffix is neither .html nor .md, or the file cannot be written.
    """
    page = form_of(path)(result)
    try:
        write_named(path, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise UsageError(
            f"{path}: expected a place to write, found: {error.strerror}",
            hint=f"ls -ld {shlex.quote(str(path.absolute().parent))}",
        ) from error


def html_page(result: CheckResult) -> str:
    """Return the check as one HTML document."""
    title = f"clusterctl check: {_html(result.cluster)}"
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title>\n"
        f"<style>{_STYLE}</style>\n<h1>{title}</h1>\n{html_part(result)}</html>\n"
    )


def html_part(result: CheckResult) -> str:
    """Return the check as an HTML fragment, such as for a notebook."""
    rows = "\n".join(
        f"<tr><td>{row.rank}<td>{_html(row.name)}<td>{_html(row.address or '-')}"
        f"<td>{_html(row.interface or '-')}<td>{_html(gpus(row))}"
        f'<td class="{row.state}">{row.state}</tr>'
        for row in result.nodes
    )
    findings = "\n".join(
        f'<h3><span class="{f.status}">{f.status}</span> <code>{_html(f.check)}</code> '
        f"{_html(place(f, result))}</h3>\n<p>{_html(f.message)}</p>\n<dl>"
        + "".join(f"<dt>{name}<dd>{_value(name, text)}" for name, text in details(f))
        + "</dl>"
        for f in problems(result)
    )
    passed = "\n".join(
        f'<tr><td class="{f.status}">{f.status}<td><code>{_html(f.check)}</code>'
        f"<td>{_html(f.message)}<td>{_html(who(f.nodes, result))}</tr>"
        for f in result.findings
        if f.status in {"pass", "skip"}
    )
    return (
        f'<style>{_PART_STYLE}</style>\n<div class="clusterctl">\n'
        f'<p class="verdict {worst(result)}">{_html(verdict(result))}</p>\n'
        f"<p>{_html(headline(result))}</p>\n<p>{_html(summary(result))}</p>\n{findings}\n"
        f"{_changed(result)}<h2>Nodes</h2>\n"
        '<div class="table"><table><tr><th>rank<th>node<th>address<th>interface'
        f"<th>gpus<th>state</tr>\n{rows}</table></div>\n"
        f'<details><summary>Passed and skipped</summary>\n<div class="table"><table>{passed}'
        "</table></div></details>\n</div>\n"
    )


def _changed(result: CheckResult) -> str:
    last = result.last_good
    if last is None or not last.changes:
        return ""
    items = "".join(
        f"<li>{_html(change.text())} on {_html(who(change.nodes, result))}"
        for change in last.changes
    )
    title = f"Changed since the last good run, {when(last.began)} ({_html(last.run)})"
    return f"<h2>{title}</h2>\n<ul>{items}</ul>\n"


def markdown_page(result: CheckResult) -> str:
    """Return the check as Markdown."""
    lines = [
        f"# clusterctl check: {_cell(result.cluster)}",
        "",
        f"**{_cell(verdict(result))}**",
        "",
    ]
    lines += [_cell(headline(result)), ""]
    lines += ["| rank | node | address | interface | gpus | state |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {row.rank} | {_cell(row.name)} | {_cell(row.address or '-')} | "
        f"{_cell(row.interface or '-')} | {_cell(gpus(row))} | {row.state} |"
        for row in result.nodes
    ]
    for f in problems(result):
        lines += ["", f"## {f.status}: {f.check} ({_cell(place(f, result))})", ""]
        lines += [_cell(f.message), ""]
        lines += [
            f"- {name}: {_code(text) if name == 'hint' else _cell(text)}"
            for name, text in details(f)
        ]
    if result.last_good and result.last_good.changes:
        last = result.last_good
        lines += [
            "",
            f"## Changed since the last good run, {when(last.began)} ({_cell(last.run)})",
            "",
        ]
        lines += [f"- {_cell(c.text())} on {_cell(who(c.nodes, result))}" for c in last.changes]
    return "\n".join([*lines, "", _cell(summary(result)), ""])


def _value(name: str, text: str) -> str:
    return f"<code>{_html(text)}</code>" if name == "hint" else _html(text)


def _html(text: str) -> str:
    return escape(strip_controls(text))


def _cell(text: str) -> str:
    """Return text that cannot end its cell or start markup of its own, such as an image."""
    return _MARKUP.sub(r"\\\g<0>", escape(_line(text), quote=False))


def _code(text: str) -> str:
    return f"`{_line(text).replace('`', chr(39))}`"


def _line(text: str) -> str:
    return " ".join(strip_controls(text).split())
