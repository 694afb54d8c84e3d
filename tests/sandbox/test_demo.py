"""The demo leaves nothing, however it ends. What it tells, `make demo` shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.errors import UsageError
from clusterctl.sandbox import demo, sandbox
from tests.waiting import BUSY

ROOT = Path(__file__).parents[2]


def test_it_wants_the_project_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="not in this folder") as refused:
        demo.run("d-unused")
    assert refused.value.hint == "cd to a clone of clusterctl, then: make demo"


class Demo:
    """The demo in a process, with a first step of the test's own instead of a model."""

    def __init__(self, folder: Path, assets: str) -> None:
        tools = folder / "train" / "tools"
        tools.mkdir(parents=True)
        # A folder without it yields to the real package, where a host can see the clone.
        (folder / "train" / "__init__.py").touch()
        (tools / "__init__.py").touch()
        (tools / "demo_assets.py").write_text(assets)
        self.name = f"d{os.getpid()}"
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "clusterctl", "sandbox", "demo", "--name", self.name],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, line: str) -> None:
        until = time.monotonic() + BUSY
        while f"\n{line}\n" not in self.log.read_text():
            assert time.monotonic() < until, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def end(self) -> int:
        try:
            return self.process.wait(BUSY)
        except subprocess.TimeoutExpired:
            pytest.fail(f"did not end:\n{self.log.read_text()}")

    def remove(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.name in sandbox.names():
            sandbox.remove(self.name)


@pytest.fixture
def make_demo(tmp_path: Path) -> Iterator[Callable[[str], Demo]]:
    made: list[Demo] = []

    def make(assets: str) -> Demo:
        made.append(Demo(tmp_path, assets))
        return made[-1]

    yield make
    for demo_of_test in made:
        demo_of_test.remove()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_stays_when_it_is_ended(
    make_demo: Callable[[str], Demo], number: signal.Signals
) -> None:
    run = make_demo("import time; print('made', flush=True); time.sleep(99)")
    run.wait_for("made")
    run.process.send_signal(number)
    assert run.end() == 130, run.log.read_text()
    assert "Remove the hosts and all their files" in run.log.read_text()
    assert run.name not in sandbox.names()


def test_nothing_stays_when_a_step_fails(make_demo: Callable[[str], Demo]) -> None:
    run = make_demo("print('made'); raise SystemExit(3)")
    assert run.end() == 1, run.log.read_text()
    assert "expected exit code 0, found 3" in run.log.read_text()
    assert run.name not in sandbox.names()


def test_nothing_stays_when_nobody_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train" / "tools").mkdir(parents=True)
    (tmp_path / "train" / "tools" / "demo_assets.py").touch()
    monkeypatch.chdir(tmp_path)
    down: list[bool] = []
    box = SimpleNamespace(hosts=[], down=lambda: down.append(True))
    monkeypatch.setattr(sandbox, "up", lambda *_args, **_options: box)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) > 1:
            raise BrokenPipeError

    monkeypatch.setattr(demo, "_print", say)
    with pytest.raises(BrokenPipeError):
        demo.run("d-unused")
    assert down == [True]


@pytest.mark.soak
@pytest.mark.netns
def test_the_demo_learns() -> None:
    name = f"d{os.getpid()}"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "clusterctl", "sandbox", "demo", "--name", name],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        if name in sandbox.names():
            sandbox.remove(name)
    told = done.stdout
    assert done.returncode == 0, told + done.stderr
    losses = [float(loss) for loss in re.findall(r"Eval Loss: ([\d.]+)", told)]
    assert losses[-1] <= 0.8 * losses[0]
    (plotted,) = re.findall(
        r"^eval loss, steps \d+ to \d+: ▁ ([\d.]+), █ ([\d.]+)$", told, re.MULTILINE
    )
    assert [float(loss) for loss in plotted] == pytest.approx([losses[-1], losses[0]], abs=1e-3)
    _, base, adapter = re.split(r"^--- (?:prompt|base|adapter)\n", told, flags=re.MULTILINE)[1:]
    assert base.strip() != adapter.partition("\n# ")[0].strip()
