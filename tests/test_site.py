"""The site of docs/: it builds without a warning, loads from no other site, and has a search."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from typing import TypedDict

import pytest

ROOT = Path(__file__).parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
NO_MKDOCS = "No module named mkdocs"
LOADED = re.compile(
    r"<(?:script|img|iframe|source|audio|video)\b[^>]*\bsrc=[\"']?((?:https?:)?//[^\"' >]+)"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|prefetch|icon|preconnect))"
    r"[^>]*\bhref=[\"']?((?:https?:)?//[^\"' >]+)"
    r"|(?:url\(|@import )[\"']?((?:https?:)?//[^\"') ]+)"
)
"""What a browser loads by itself from another site. A link that you click is none of these."""

DRIVER = """<!doctype html><body><script>
async function open(page, width, ready) {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 844; frame.src = page;
  const loaded = new Promise(resolve => { frame.onload = resolve; });
  document.body.append(frame);
  await loaded;
  for (let tries = 0; tries < 300 && !ready(frame.contentDocument); tries++)
    await new Promise(resolve => setTimeout(resolve, 50));
  return frame;
}
const send = what => fetch("/result", {method: "POST", body: JSON.stringify(what)});
addEventListener("unhandledrejection", event => send({error: String(event.reason)}));
const links = page => page.querySelectorAll(".md-search-result__link");
const colors = "[data-md-component=palette] input";
(async () => {
  const phone = await open("/index.html", 390, page => true);
  const desk = await open("/index.html?q=EADDRINUSE", 1280, page => links(page).length);
  const page = desk.contentDocument;
  await send({
    phone: [phone.contentDocument.documentElement.clientWidth,
            phone.contentDocument.documentElement.scrollWidth],
    found: [...links(page)].map(link => link.pathname),
    schemes: [...page.querySelectorAll(colors)].map(one => one.dataset.mdColorScheme),
    loaded: [phone, desk].flatMap(frame =>
      frame.contentWindow.performance.getEntriesByType("resource").map(one => one.name)),
  });
})();
</script>"""
"""Looks at pages in frames, and sends what it saw to the test's server."""


class Seen(TypedDict):
    """What the browser saw of the site."""

    phone: tuple[int, int]
    found: list[str]
    schemes: list[str]
    loaded: list[str]


class Server(SimpleHTTPRequestHandler):
    """Serves the site, and takes what the browser saw."""

    results: Queue[Seen]

    def do_GET(self) -> None:
        if self.path != "/driver":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(DRIVER.encode())

    def do_POST(self) -> None:
        self.results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, as `make docs` does."""
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(built)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if NO_MKDOCS in done.stderr:
        pytest.skip("mkdocs-material is not installed")
    assert done.returncode == 0, done.stderr
    return built


@pytest.fixture
def seen(site: Path, tmp_path: Path) -> Iterator[Seen]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    results: Queue[Seen] = Queue()
    handler = type("Handler", (Server,), {"results": results})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    argv = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    argv += ["--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    argv += [f"--user-data-dir={tmp_path}/profile"]
    argv += [f"http://127.0.0.1:{server.server_address[1]}/driver"]
    log = (tmp_path / "chromium.log").open("wb")
    # Chromium leaves a socket there, whose path must be short.
    with (
        log,
        tempfile.TemporaryDirectory() as short,
        subprocess.Popen(
            argv, stdout=log, stderr=log, env=os.environ | {"TMPDIR": short}
        ) as browser,
    ):
        try:
            found = results.get(timeout=30)
            assert "error" not in found, found
            yield found
        except Empty:
            pytest.fail(Path(log.name).read_text("utf-8"))
        finally:
            browser.terminate()
            browser.wait(timeout=30)
            server.shutdown()
            thread.join()
            server.server_close()


def test_no_file_of_the_site_loads_from_another_site(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    loads = [
        f"{path.relative_to(site)}: {load.group()}"
        for path in files
        for load in LOADED.finditer(path.read_text("utf-8"))
    ]
    assert len(files) > 20
    assert loads == []


def test_the_order_of_the_sections_is_the_one_of_a_reader(site: Path) -> None:
    tabs = re.findall(r'md-tabs__link">\s*([^<]+?)\s*<', (site / "index.html").read_text("utf-8"))
    wanted = ["Tutorial", "How to", "Guides", "Recipes", "Explanation", "Reference"]
    assert [tab for tab in tabs if tab in wanted] == [name for name in wanted if name in tabs]
    assert {"Tutorial", "How to", "Explanation", "Reference"} <= set(tabs)


def test_the_copy_button_of_a_block_with_outputs_copies_its_commands(site: Path) -> None:
    page = (site / "tutorial/two-gpu-machines.html").read_text("utf-8")
    blocks = [html.unescape(block) for block in re.findall(r'<div data-copy="([^"]*)"', page)]

    assert "cd ~/my-training\nclusterctl init gpu1 gpu2" in blocks
    assert "clusterctl resume --checkpoint latest --detach\nclusterctl stop" in blocks
    assert not [block for block in blocks if "resume_args" in block]  # a file is copied as it is


def test_a_browser_finds_an_error_and_loads_nothing_from_elsewhere(seen: Seen) -> None:
    width, content = seen["phone"]
    assert width <= 390
    assert content <= width, "the front page scrolls sideways on a phone"
    assert "/how-to/troubleshooting.html" in seen["found"]
    assert set(seen["schemes"]) == {"default", "slate"}
    assert len(seen["loaded"]) > 5
    assert [name for name in seen["loaded"] if not name.startswith("http://127.0.0.1:")] == []
