"""The HTML report in a real browser, at the width of a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.checks.finding import Finding
from clusterctl.network.choice import Network
from clusterctl.report.html.check import html_page
from clusterctl.report.html.frame import write
from clusterctl.verbs.preflight.check import CheckResult, NodeRow
from tests.report.html.browser import CHROMIUM, fits, title

EVIL = "</p><script>document.title = 'taken over'</script>" + "x" * 400

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


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
    write(page, html_page(result))
    assert title(page, tmp_path) == "clusterctl check: lab"
    assert fits(page, tmp_path)
