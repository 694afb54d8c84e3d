"""The HTML report in a real browser, at the width of a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from clusterctl.checks.finding import Finding
from clusterctl.network.choice import Network
from clusterctl.report.page import write_page
from clusterctl.verbs.preflight.check import CheckResult, NodeRow

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
MEASURE = (
    "<script>document.title = innerWidth + ' ' + document.documentElement.scrollWidth</script>"
)
EVIL = "</p><script>document.title = 'taken over'</script>" + "x" * 400

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def title(page: Path, tmp_path: Path) -> str:
    """Return the page's title after its scripts ran, in a window of a phone's size."""
    argv = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=390,844"]
    argv += [f"--user-data-dir={tmp_path}/profile", "--dump-dom", page.as_uri()]
    dom = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
    found = re.search(r"<title>(.*?)</title>", dom)
    assert found
    return found[1]


def test_the_report_fits_a_phone_and_runs_nothing(tmp_path: Path) -> None:
    row = NodeRow(
        name=EVIL, host="h", rank=0, address="10.0.0.1", interface="eth0", gpus=8,
        gpu_name="NVIDIA H100 80GB HBM3", state="fail",
    )  # fmt: skip
    finding = Finding(
        check="ssh.connect", status="fail", nodes=(EVIL,), message=EVIL, wanted=EVIL, found=EVIL,
        remedy=EVIL,
    )  # fmt: skip
    result = CheckResult(
        cluster="lab", nodes=(row,), findings=(finding,), facts={}, network=Network(), seconds=1.0
    )
    page = tmp_path / "report.html"
    write_page(page, result)
    assert title(page, tmp_path) == "clusterctl check: lab"

    page.write_text(page.read_text() + MEASURE)
    window, content = map(int, title(page, tmp_path).split())
    assert content <= window
