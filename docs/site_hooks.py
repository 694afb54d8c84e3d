"""What mkdocs does differently for this site: order of pages, links to files, what is copied."""
# ruff: noqa: INP001  (a script, not a module of a package)

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SECTIONS = {
    "tutorial": "Tutorial",
    "how-to": "How to",
    "guides": "Guides",
    "recipes": "Recipes",
    "explanation": "Explanation",
    "reference": "Reference",
}
LINK = re.compile(r"(?<=\]\()(?:\.\./)+[^)\s#]+")
BLOCK = re.compile(r'<div class="highlight">(.*?)</div>', re.DOTALL)
TYPED = re.compile(r"^\$ (.*)", re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Order the pages as docs/README.md lists them; a page that it lacks is a warning of mkdocs."""
    listed = re.findall(r"\]\(([\w-]+/[\w.-]+\.md)\)", (DOCS / "README.md").read_text("utf-8"))
    pages = {name: [page for page in listed if page.startswith(f"{name}/")] for name in SECTIONS}
    config.nav = ["README.md", *({SECTIONS[name]: found} for name, found in pages.items() if found)]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Take in the files outside docs/ that pages link to."""
    for path in {file for page in files.documentation_pages() for file in _linked(page)}:
        source = str(ROOT / path)
        files.append(File.generated(config, _copy(path), abs_src_path=source))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Lead links out of docs/ to the copy of the file in the site."""

    def moved(link: re.Match[str]) -> str:
        path = _outside(page.file, link.group())
        here = os.path.dirname(page.file.src_uri)  # noqa: PTH120
        return os.path.relpath(_copy(path), here) if path else link.group()

    return LINK.sub(moved, markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let the copy button of a block with outputs copy its commands, without prompts."""
    return BLOCK.sub(lambda block: _copied(block.group(), block[1]), content)


def _copied(block: str, code: str) -> str:
    """Return a block with `data-copy`, which is what mkdocs-material copies."""
    text = html.unescape(re.sub(r"<[^>]*>", "", code))
    if not text.startswith("$ "):
        return block
    commands = "\n".join(TYPED.findall(text))
    return block.replace("<div", f'<div data-copy="{html.escape(commands)}"', 1)


def _linked(page: File) -> set[str]:
    links = LINK.findall(page.content_string)
    return {path for link in links if (path := _outside(page, link))}


def _copy(path: str) -> str:
    return f"source/{path}.txt"  # browsers show text, and download other types


def _outside(page: File, link: str) -> str | None:
    """Return the path of a file of the project that is not in docs/, from the project's folder."""
    target = (DOCS / page.src_uri).parent.joinpath(link).resolve()
    if not target.is_file() or not target.is_relative_to(ROOT) or target.is_relative_to(DOCS):
        return None
    return target.relative_to(ROOT).as_posix()
