"""Shows a check as HTML: a page to share, which needs no other file."""

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
from clusterctl.report.html.frame import escaped, framed, page
from clusterctl.verbs.preflight.check import CheckResult


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


def _value(name: str, text: str) -> str:
    return f"<code>{escaped(text)}</code>" if name == "hint" else escaped(text)
