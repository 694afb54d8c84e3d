"""A real browser, at the width of a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
MEASURE = (
    "<script>document.title = innerWidth + ' ' + document.documentElement.scrollWidth</script>"
)


def title(page: Path, tmp_path: Path) -> str:
    """Return the page's title after its scripts ran, in a window of a phone's size."""
    argv = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=390,844"]
    argv += [f"--user-data-dir={tmp_path}/profile", "--dump-dom", page.as_uri()]
    dom = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
    found = re.search(r"<title>(.*?)</title>", dom)
    assert found
    return found[1]


def fits(page: Path, tmp_path: Path) -> bool:
    """Tell whether a page runs no script of its own, and needs no scrolling to the side."""
    assert "taken over" not in title(page, tmp_path)
    page.write_text(page.read_text() + MEASURE)
    window, content = map(int, title(page, tmp_path).split())
    return content <= window
