"""Parses what the job's interpreter reports about itself and torch; the remedy without torch."""

from __future__ import annotations

from typing import Any

from clusterctl.facts.answers import Answer, Answers
from clusterctl.facts.values.software import Package, Python, Torch

_FIRST_PACKAGE = 3
"""Words before the packages: executable, version, torch's build."""
NAME_INTERPRETER = (
    "name the interpreter that has it: `defaults: {python: /path/venv/bin/python}` in hosts.yaml"
)
"""The remedy if it has no torch: a job is rarely meant to run, with pip's, in the system's."""


def parse_python(answers: Answers, *, asked: str) -> Python:
    """Return the interpreter; if it did not answer, `problem` says why."""
    answer = answers.command("python")
    words = answer.text.split("\0")
    if not answer.good or len(words) < _FIRST_PACKAGE or len(words) % 2 != _FIRST_PACKAGE % 2:
        if answer.state == "absent":
            return Python(asked=asked, problem="there is no such program")
        return Python(asked=asked, found=answer.state == "ok", problem=_why(answer))
    names, versions = words[_FIRST_PACKAGE::2], words[_FIRST_PACKAGE + 1 :: 2]
    return Python(
        asked=asked,
        found=True,
        executable=words[0],
        version=words[1],
        torch_build=words[2],
        packages=tuple(
            Package(name=name, version=version)
            for name, version in sorted(zip(names, versions, strict=True))
        ),
        torch=_torch(answers),
    )


def _why(answer: Answer) -> str:
    return "what it printed is not an answer" if answer.good else answer.why()


def _torch(answers: Answers) -> Torch | None:
    answer = answers.command("torch")
    if answer.state == "not-asked":
        return None
    report: Any = answers.json("command:torch")
    if not isinstance(report, dict):
        return Torch(cuda_available=False, device_count=0, error=_why(answer))
    count = report.get("device_count")
    return Torch(
        cuda_available=report.get("cuda_available") is True,
        device_count=count if isinstance(count, int) else 0,
        nccl=str(report.get("nccl", "")),
        error=str(report.get("error", "")),
    )
