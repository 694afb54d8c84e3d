"""The frame of every page: styles for phones and for dark screens, and text that is only text."""

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.own_files import write_named
from clusterctl.safe_text import strip_controls

_PAGE_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e6e6e6 } }
"""
PART_STYLE = """
.clusterctl { overflow-wrap: anywhere } .clusterctl .table { overflow-x: auto }
.clusterctl table { border-collapse: collapse; margin: 1rem 0 }
.clusterctl .verdict { font-size: 1.3em; font-weight: bold }
.clusterctl th, .clusterctl td { padding: .2rem .8rem; text-align: left; white-space: nowrap }
.clusterctl .wrapped td, .clusterctl .wrapped th { white-space: normal; vertical-align: top }
.clusterctl .wrapped td { min-width: 5.5rem }
.clusterctl .wrapped td:first-child { overflow-wrap: break-word }
.clusterctl th { border-bottom: 1px solid #888 } .clusterctl code { font-size: 14px }
.clusterctl pre { white-space: pre-wrap; border-left: 3px solid #888; padding-left: .8rem }
.clusterctl dt { color: #666; float: left; clear: left; width: 5rem }
.clusterctl dd { margin-left: 5.5rem }
.clusterctl .fail, .clusterctl .unreachable, .clusterctl .failed, .clusterctl .lost,
.clusterctl .hung { color: #b00020 }
.clusterctl .warn { color: #8a5a00 } .clusterctl .unknown { color: #7b1fa2 }
.clusterctl .ok, .clusterctl .pass, .clusterctl .finished { color: #1b7f3b }
.clusterctl svg { width: 100%; height: auto; max-width: 36rem; display: block }
.clusterctl svg text { font: 12px system-ui, sans-serif; fill: currentColor }
.clusterctl svg .axis { stroke: #888; stroke-width: 1 }
.clusterctl svg polyline { fill: none; stroke-width: 1.6 }
.clusterctl .line0 { stroke: #0b62c4 } .clusterctl .line1 { stroke: #c4500b }
.clusterctl .line2 { stroke: #1b7f3b } .clusterctl .line3 { stroke: #7b1fa2 }
@media (prefers-color-scheme: dark) {
.clusterctl dt { color: #aaa }
.clusterctl .fail, .clusterctl .unreachable, .clusterctl .failed, .clusterctl .lost,
.clusterctl .hung { color: #ff8a9a }
.clusterctl .warn { color: #e6b450 } .clusterctl .unknown { color: #d7a6f0 }
.clusterctl .ok, .clusterctl .pass, .clusterctl .finished { color: #6fd391 }
.clusterctl .line0 { stroke: #6cb0ff } .clusterctl .line1 { stroke: #ffa366 }
.clusterctl .line2 { stroke: #6fd391 } .clusterctl .line3 { stroke: #d7a6f0 } }
"""
"""Applies to a report alone: a notebook has its own style."""


def escaped(words: object) -> str:
    """Return text of a node or a user that no browser takes for markup."""
    return escape("\n".join(strip_controls(line) for line in str(words).split("\n")))


def page(title: str, part: str) -> str:
    """Return one HTML document."""
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title>\n"
        f"<style>{_PAGE_STYLE}</style>\n<h1>{escaped(title)}</h1>\n{part}</html>\n"
    )


def framed(body: str) -> str:
    """Return a part of a page with its style."""
    return f'<style>{PART_STYLE}</style>\n<div class="clusterctl">\n{body}</div>\n'


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table whose cells wrap; wide ones scroll by themselves."""
    head = "".join(f"<th>{escaped(one)}" for one in heads)
    lines = ("".join(f"<td>{escaped(cell)}" for cell in row) for row in rows)
    body = "\n".join(f"<tr>{line}</tr>" for line in ([head] if head else []) + [*lines])
    return f'<div class="table"><table class="wrapped">{body}</table></div>\n'


def require_html(path: Path, flag: str) -> None:
    """Refuse a name that says another format."""
    if path.suffix.lower() not in {".html", ".htm"}:
        raise UsageError(
            f"{flag}: expected a name that ends in .html, found {path}",
            hint=f"{flag} {shlex.quote(str(path.with_suffix('.html')))}",
        )


def write(path: Path, document: str) -> None:
    """Write a page, or another report; raise UsageError if it cannot be written."""
    try:
        write_named(path, document.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise UsageError(
            f"{path}: expected a place to write, found: {error.strerror}",
            hint=f"ls -ld {shlex.quote(str(path.absolute().parent))}",
        ) from error
