"""Parses what the job's interpreter reports about itself and torch; the remedy without torch."""

from __future__ import annotations

from typing import Any

from clusterctl.facts.answers import Answer, Answers
from clusterctl.facts.software.software import ForeignImport, Image, Package, Python, Torch

_FIRST_PACKAGE = 3
"""Words before the packages: executable, version, torch's build."""
ON_PATH = "path:python"
"""The name of the pair that says which `python` a shell would start."""
ENV_INIT = "env_init "
"""Begins the problem of an interpreter that was not even started, because that line failed."""
SHADOW, _LINES = "import:", 3
"""Begins the name of a pair that says from where a package is imported, in so many lines."""
NAME_INTERPRETER = (
    "name the interpreter that has it: `defaults: {python: /path/venv/bin/python}` in hosts.yaml;"
    " clusterctl setup makes one there"
)
"""The remedy if it has no torch: a job is rarely meant to run, with pip's, in the system's."""


def parse_python(answers: Answers, *, asked: str, container: str = "") -> Python:
    """Return the interpreter; if it did not answer, `problem` says why."""
    answer = answers.command("python")
    words, _ = _split(answer)
    if not answer.good or len(words) < _FIRST_PACKAGE or len(words) % 2 != _FIRST_PACKAGE % 2:
        if answer.state == "absent":
            return Python(asked=asked, container=container, problem="there is no such program")
        return Python(
            asked=asked, container=container, found=answer.state == "ok", problem=_why(answer)
        )
    told = dict(zip(words[_FIRST_PACKAGE::2], words[_FIRST_PACKAGE + 1 :: 2], strict=True))
    on_path = told.pop(ON_PATH, "")
    versions = {name: value for name, value in told.items() if not name.startswith(SHADOW)}
    return Python(
        asked=asked,
        container=container,
        found=True,
        executable=words[0],
        version=words[1],
        torch_build=words[2],
        on_path=on_path,
        packages=tuple(
            Package(name=name, version=version) for name, version in sorted(versions.items())
        ),
        foreign=_foreign(told) if SHADOW in told else None,
        torch=_torch(answers),
    )


def _foreign(told: dict[str, str]) -> tuple[ForeignImport, ...]:
    found = []
    for key, value in sorted(told.items()):
        name, lines = key.removeprefix(SHADOW), value.split("\n")
        if key.startswith(SHADOW) and name and len(lines) == _LINES:
            file, hides, origin = lines
            found.append(ForeignImport(name=name, file=file, hides=hides, origin=origin))
    return tuple(found)


def parse_image(answers: Answers) -> Image | None:
    """Return the image of the job's container; None if there is none, or no answer."""
    answer = answers.command("image")
    if answer.state == "absent":
        return Image(installed=False)
    if answer.state != "ok" or not (answer.good or answer.exit_code):
        return None
    if answer.exit_code:
        return Image(problem=answer.why())
    return Image(id=answer.text.strip())


def parse_job_environment(answers: Answers) -> tuple[tuple[str, str], ...] | None:
    """Return the variables that the interpreter got after `env_init`; None if it did not answer."""
    _, rest = _split(answers.command("python"))
    return None if rest is None else tuple(zip(rest[::2], rest[1::2], strict=False))


def _split(answer: Answer) -> tuple[list[str], list[str] | None]:
    """Return the words up to the packages' last, and those after the empty word."""
    words = answer.text.split("\0")
    if not answer.good:
        return words, None
    # The third word, what torch was built for, may be empty too.
    ends = [at for at in range(_FIRST_PACKAGE, len(words), 2) if not words[at]]
    return (words[: ends[0]], words[ends[0] + 1 :]) if ends else (words, None)


def _why(answer: Answer) -> str:
    first, *printed = answer.words.strip().splitlines() or [""]
    if first.startswith(ENV_INIT):
        return first + (f"; it printed: {printed[-1].strip()}" if printed else "")
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
        archs=_strings(report.get("archs")),
        devices=_strings(report.get("devices")),
    )


def _strings(listed: object) -> tuple[str, ...]:
    return tuple(map(str, listed)) if isinstance(listed, list) else ()
