"""Pages to send: what they say, that text stays text, and that they ask for nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Job
from clusterctl.logs.first_cause import FirstCause
from clusterctl.model.samples import GpuSamples, Samples
from clusterctl.report.html.compare import compare_page
from clusterctl.report.html.plot import line_plot, thinned
from clusterctl.report.html.run import run_page
from clusterctl.verbs.checkpoints.choose import ListedCheckpoint
from clusterctl.verbs.compare.comparison import compare_runs
from tests.report.html.browser import CHROMIUM, fits
from tests.verbs.compare.stories import story

EVIL = "</pre></td></svg><script>document.title = 'taken over'</script>\x1b[2J" + "x" * 400
SECRET = "hf_abcdefabcdefabcdef"


class Reader(HTMLParser):
    """Notes the elements, what they link to, and their text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [str(value) for name, value in attrs if name in {"href", "src", "data"}]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


def a_report() -> str:
    job = Job(command=("train.py", EVIL, f"--token={SECRET}"), env=(("HF_TOKEN", SECRET),))
    told = story(
        nodes=("a", "b"), job=job, state="failed", by="ada on desk",
        findings=({"check": "node.swap", "status": "warn", "message": EVIL, "nodes": ["a"]},),
        events={"b": [{"kind": "end", "time": 1010.0, "state": "failed", "reason": EVIL},
                      {"kind": "before-failed", "time": 1010.0, "message": f"--token={SECRET}"}]},
    )  # fmt: skip
    cause = FirstCause(
        node="b", rank=1, time=1009.0, kind="exit", exit_code=1, message=EVIL,
        lines=(f"token {SECRET}", "RuntimeError: boom"), remedy="fix it",
    )  # fmt: skip
    one = replace(told.one, status=replace(told.one.status, first_cause=cause))
    kept = ListedCheckpoint(name=EVIL, path=EVIL, step=5, time=1005.0, format="dcp")
    return run_page(replace(told, one=one), [kept])


def a_comparison() -> str:
    stories = [story(), story(EVIL, job=Job(command=("train.py", EVIL)))]
    return compare_page(compare_runs(stories), stories)


def test_a_report_tells_the_run() -> None:
    page = a_report()
    told = Reader(page).text
    for words in (
        "failed", "ada on desk", "launched on 2 nodes", "node.swap", "RuntimeError: boom",
        "fix it", "1 checkpoint", "step 20", "Python 3.11", "hint: fix it", "tokens/s",
    ):  # fmt: skip
        assert words in told, words
    assert SECRET not in page


def test_a_comparison_tells_what_differs() -> None:
    told = Reader(a_comparison()).text
    for words in ("What differs", "word 2", "1.00 x the tokens/s", "loss at step 20", "same:"):
        assert words in told, words


@pytest.mark.parametrize("page", [a_report, a_comparison])
def test_text_stays_text_and_nothing_is_loaded(page: Callable[[], str]) -> None:
    read = Reader(page())
    assert read.tags.isdisjoint({"script", "img", "link", "iframe", "object", "form"})
    assert read.links == []
    assert not re.search(r"url\(|@import|https?:", page())
    assert "\x1b" not in page()
    assert {"svg", "meta"} <= read.tags


@pytest.mark.soak
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("page", [a_report, a_comparison])
def test_a_page_fits_a_phone_and_runs_nothing(page: Callable[[], str], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page())
    assert fits(path, tmp_path)


def test_what_the_nodes_used_is_plotted_for_those_that_used_least() -> None:
    gpus = [tuple(GpuSamples(index=0, percent=(10.0 * n, None, 10.0 * n)) for _ in "ab")
            for n in range(6)]  # fmt: skip
    samples = {
        f"n{n}": Samples(time=(1001.0, 1006.0, 1061.0), cpu_percent=(5.0, 5.0, 5.0), gpus=each)
        for n, each in enumerate(gpus)
    }
    told = replace(story(), samples=samples)
    page = Reader(run_page(told)).text
    assert "GPU use, mean of the node (4 of 6 nodes: the lowest)" in page
    assert "n3" in page
    assert "n4" not in page
    assert "1 min 1 s" in page
    assert "GPU memory" not in page
    outcome = compare_runs([told]).runs[0]
    assert (outcome.gpu_percent, outcome.cpu_percent) == (25.0, 5.0)
    assert "What the nodes used" not in run_page(story())


def test_a_plot_has_each_curve_and_keeps_peaks() -> None:
    spike = [(x, 100.0 if x == 4321 else 1.0) for x in range(10_000)]
    shown = thinned(spike)
    assert len(shown) <= 600
    assert (4321, 100.0) in shown
    svg = line_plot("loss", {"a": spike, "b": [(0, 1.0), (1, float("nan")), (2, 2.0)]})
    assert svg.count("<polyline") == 4  # two in the legend
    assert "nan" not in svg
    assert line_plot("loss", {"a": [(0, 1.0)]}) == ""
    for level in (1.0, 1e30):
        assert "<polyline" in line_plot("flat", {"a": [(0, level), (0, level)]})
