"""Writes a check as a file to share: self-contained HTML, or Markdown."""

import re
import shlex
from collections.abc import Callable
from html import escape
from pathlib import Path

from clusterctl.errors import UsageError
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
from clusterctl.report.html.frame import escaped, framed, page, write
from clusterctl.safe_text import strip_controls
from clusterctl.verbs.preflight.check import CheckResult

_MARKUP = re.compile(
    r"[\\`*_{}#|~@]|\](?=[(\[:])"  # the second: what ends the words of a link or an image
    r"|^[-+=]|(?<=^\d)[.)](?=\s)|(?<=^\d\d)[.)](?=\s)"  # lists, rules and headings
    r"|:(?=//)|(?<=\bwww)\.",  # what GitHub makes a link of
    re.IGNORECASE,
)
"""What Markdown gives meaning, apart from `&`, `<` and `>`."""

Form = Callable[[CheckResult], str]


def form_of(path: Path) -> Form:
    """Return the format that the file's suffix asks for."""
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
    write(path, form_of(path)(result))


def html_page(result: CheckResult) -> str:
    """Return the check as one HTML document."""
    return page(f"clusterctl check: {result.cluster}", html_part(result))


def html_part(result: CheckResult) -> str:
    """Return the check as an HTML fragment, such as for a notebook."""
    rows = "\n".join(
        f"<tr><td>{row.rank}<td>{escaped(row.name)}<td>{escaped(row.address or '-')}"
        f"<td>{escaped(row.interface or '-')}<td>{escaped(gpus(row))}"
        f'<td class="{row.state}">{row.state}</tr>'
        for row in result.nodes
    )
    findings = "\n".join(
        f'<h3><span class="{f.status}">{f.status}</span> <code>{escaped(f.check)}</code> '
        f"{escaped(place(f, result))}</h3>\n<p>{escaped(f.message)}</p>\n<dl>"
        + "".join(f"<dt>{name}<dd>{_value(name, text)}" for name, text in details(f))
        + "</dl>"
        for f in problems(result)
    )
    passed = "\n".join(
        f'<tr><td class="{f.status}">{f.status}<td><code>{escaped(f.check)}</code>'
        f"<td>{escaped(f.message)}<td>{escaped(who(f.nodes, result))}</tr>"
        for f in result.findings
        if f.status in {"pass", "skip"}
    )
    return framed(
        f'<p class="verdict {worst(result)}">{escaped(verdict(result))}</p>\n'
        f"<p>{escaped(headline(result))}</p>\n<p>{escaped(summary(result))}</p>\n{findings}\n"
        f"{_changed(result)}<h2>Nodes</h2>\n"
        '<div class="table"><table><tr><th>rank<th>node<th>address<th>interface'
        f"<th>gpus<th>state</tr>\n{rows}</table></div>\n"
        f'<details><summary>Passed and skipped</summary>\n<div class="table"><table>{passed}'
        "</table></div></details>\n"
    )


def _changed(result: CheckResult) -> str:
    last = result.last_good
    if last is None or not last.changes:
        return ""
    items = "".join(
        f"<li>{escaped(change.text())} on {escaped(who(change.nodes, result))}"
        for change in last.changes
    )
    title = f"Changed since the last good run, {when(last.began)} ({escaped(last.run)})"
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
    return f"<code>{escaped(text)}</code>" if name == "hint" else escaped(text)


def _cell(text: str) -> str:
    """Return text that cannot end its cell or start markup of its own, such as an image."""
    return _MARKUP.sub(r"\\\g<0>", escape(_line(text), quote=False))


def _code(text: str) -> str:
    return f"`{_line(text).replace('`', chr(39))}`"


def _line(text: str) -> str:
    return " ".join(strip_controls(text).split())
