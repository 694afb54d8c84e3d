"""Runs the steps one after the other within a budget, and reports."""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.gpu import card, figures, machine, masks, plan, report, steps
from bench.gpu.steps import Result, Step

OK, FAILED, USAGE, NO_GPU, INTERRUPTED = 0, 1, 2, 3, 130
BUDGET_SECONDS = 510.0
"""With the questions before and the report after, that is less than nine minutes."""
LEAST_SECONDS = 10.0
"""A step does not start with less time left."""
SETTINGS = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "true",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""For every step. The last: else `torch.cuda.is_available()` keeps forked children off CUDA."""
OWN_FILES = (report.PAGE, report.ROWS, "steps", "recordings")


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    environment = {**os.environ, **SETTINGS}
    if options.cpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    chosen, refused = machine.choose(options.python, environment, cpu=options.cpu)
    if chosen is None:
        explain(refused, cpu=options.cpu)
        return NO_GPU
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name:
        work = Path(name)
        size = plan.sizes(chosen, cpu=options.cpu)
        made = plan.steps(chosen, size, work=work, cpu=options.cpu)
        unknown = set(options.only) - {step.name for step in made}
        if unknown:
            names = ", ".join(step.name for step in made)
            print(f"error: --only {' '.join(sorted(unknown))}: expected one of {names}",
                  file=sys.stderr)  # fmt: skip
            return USAGE
        # A step past its limit is ended by SIGABRT: it prints its stacks, and needs no core file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        check = Check(options, chosen, environment, work)
        print("\n".join(report.heading(chosen, cpu=options.cpu)), flush=True)
        return check.run(selected(made, options.only))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m bench.gpu", description=__doc__)
    parser.add_argument("--python", help="the interpreter with torch (default: .venv, python3)")
    parser.add_argument("--out", type=Path, help="folder of the report (default: $OUT, build/gpu)")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, metavar="SECONDS")
    parser.add_argument("--only", action="append", default=[], metavar="STEP",
                        help="this step and what it needs; may be repeated")  # fmt: skip
    parser.add_argument(
        "--cpu", action="store_true", help="try the script itself, with a tiny model"
    )
    options = parser.parse_args(argv)
    options.out = options.out or Path(os.environ.get("OUT") or machine.ROOT / "build/gpu")
    return options


def explain(refused: Sequence[str], *, cpu: bool) -> None:
    wanted = "Python 3.11 or newer with torch, transformers, peft, accelerate and pytest"
    wanted += "" if cpu else ", whose torch sees an NVIDIA GPU"
    lines = [f"error: no interpreter can run this: expected {wanted}; found", *refused]
    if not cpu and shutil.which("nvidia-smi") is None:
        lines.append("nvidia-smi: not found, so probably no NVIDIA driver")
    print("\n  ".join(lines), file=sys.stderr)
    if cpu:
        print("hint: make setup", file=sys.stderr)
        return
    print("hint: with another interpreter: PYTHON=python3 make gpu", file=sys.stderr)
    print("hint: to try the script without a GPU: make gpu GPU_OPTIONS=--cpu", file=sys.stderr)


def selected(made: Sequence[Step], only: Sequence[str]) -> list[Step]:
    """Return the steps that were asked for, with those that they need."""
    wanted = set(only) or {step.name for step in made}
    for step in reversed(made):
        wanted |= set(step.needs) if step.name in wanted else set()
    return [step for step in made if step.name in wanted]


class Check:
    """One run of all steps."""

    def __init__(
        self,
        options: argparse.Namespace,
        chosen: machine.Machine,
        environment: Mapping[str, str],
        work: Path,
    ) -> None:
        self.cpu: bool = options.cpu
        self.out: Path = options.out
        self.budget: float = options.budget
        self.machine = chosen
        self.environment = environment
        self.work = work
        self.results: list[Result] = []
        self.masks = masks.of_this_machine(
            (work, "WORK"), (machine.ROOT, "CHECKOUT"), (machine.ROOT.resolve(), "CHECKOUT"),
            (self.out.absolute(), "OUT"),
        )  # fmt: skip

    def run(self, wanted: Sequence[Step]) -> int:
        """Run the steps and report, also after an interrupt; return the exit code."""
        self.out.mkdir(parents=True, exist_ok=True)
        for name in OWN_FILES:  # of an earlier run
            path = self.out / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        (self.out / "steps").mkdir()
        before = card.read()
        until = time.monotonic() + self.budget
        interrupted = False
        try:
            for step in wanted:
                print(f"{step.name:18} {step.about} ...", flush=True)
                result = self.one(step, until)
                self.results.append(result)
                print(f"{'':18} {result.state} {result.seconds:.1f} s {result.reason}", flush=True)
        except KeyboardInterrupt:
            interrupted = True
            done = {result.name for result in self.results}
            self.results += [
                Result(name=step.name, state="skipped", reason="interrupted")
                for step in wanted
                if step.name not in done
            ]
        if not self.cpu:
            self.results.append(nothing_left(before))
        code = self.report()
        return INTERRUPTED if interrupted else code

    def one(self, step: Step, until: float) -> Result:
        """Run a step, or return why it is skipped; keep what it printed."""
        count = len(self.machine.gpus)
        if step.gpus > count and not self.cpu:
            why = f"needs {step.gpus} GPUs, found {count}"
            return Result(name=step.name, state="skipped", reason=why, possible=False)
        if why := self.obstacle(step, until):
            return Result(name=step.name, state="skipped", reason=why)
        log = self.work / f"{step.name}.txt"
        environment = {**self.environment}
        if not self.cpu:
            gpus = machine.gpus_of(environment, len(self.machine.gpus))
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus if step.all_gpus else gpus[:1])
        try:
            return steps.run(
                step, environment=environment, log=log, cwd=machine.ROOT,
                left_s=until - time.monotonic(),
            )  # fmt: skip
        finally:
            self.keep(log, self.out / "steps" / log.name)
            for path in sorted((self.work / "recordings").glob("*")):
                self.keep(path, self.out / "recordings" / path.name)

    def obstacle(self, step: Step, until: float) -> str:
        """Return why a step does not run that this machine could run."""
        states = {result.name: result.state for result in self.results}
        broken = [name for name in step.needs if states.get(name) != "ok"]
        if broken:
            return f"needs {broken[0]}, which is {states.get(broken[0], 'missing')}"
        left = until - time.monotonic()
        if left < min(LEAST_SECONDS, step.limit):
            return f"no time left: the budget is {self.budget:g} s"
        return ""

    def keep(self, source: Path, target: Path) -> None:
        """Copy a text without what identifies the machine."""
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text(encoding="utf-8", errors="replace")
            target.write_text(self.masks.apply(text), encoding="utf-8")

    def report(self) -> int:
        """Write the report and print its tables; return the exit code."""
        ended = {
            result.name: (self.work / f"{result.name}.txt").read_text(errors="replace")
            for result in self.results
            if result.state == "ok"
            or (result.state == "failed" and result.name.startswith("tests-"))
            if (self.work / f"{result.name}.txt").exists()
        }
        found = figures.collect(ended, self.work)
        if self.cpu:
            found = [replace(each, verdict="not judged") for each in found]
        title = report.heading(self.machine, cpu=self.cpu)
        report.write(
            self.out, title=title, results=self.results, figures=found, masks=self.masks
        )  # fmt: skip
        print("", *title, sep="\n")
        print("", report.table(report.STEP_COLUMNS, report.step_rows(self.results)), sep="\n")
        print("", report.table(report.FIGURE_COLUMNS, report.figure_rows(found)), sep="\n")
        print(f"\nreport: {self.out / report.PAGE}", flush=True)
        return code_of(self.results)


def nothing_left(before: card.Cards) -> Result:
    """Verify that the cards are as before the first step."""
    began = time.monotonic()
    found = card.left(before)
    return Result(
        name="card", state="failed" if found else "ok", seconds=time.monotonic() - began,
        reason="; ".join(found),
    )  # fmt: skip


def code_of(results: Sequence[Result]) -> int:
    """Return 0 if every step that this machine can run ended ok."""
    fine = all(each.state == "ok" or not each.possible for each in results)
    return OK if fine and results else FAILED
