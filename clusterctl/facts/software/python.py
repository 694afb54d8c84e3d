"""What the job's interpreter reports about itself and torch; the remedy without torch."""

from collections.abc import Iterator
from typing import Any

from clusterctl.facts.answers import Answer, Answers
from clusterctl.facts.fact import Fact, Question, texts
from clusterctl.facts.request import AMD, NVIDIA, FactRequest, interpreter
from clusterctl.facts.software.settings import FILE, VARIABLES, Variables, hide_credentials
from clusterctl.values import dataclass

PYTHON_SECONDS = 20.0
TORCH_SECONDS = 60.0
"""A first import of torch from a cold network filesystem takes this long."""
_FIRST_PACKAGE = 3
"""Words before the packages: executable, version, torch's build."""
ON_PATH = "path:python"
"""The name of the pair that says which `python` a shell would start."""
ENV_INIT = "env_init "
"""Begins the problem of an interpreter that was not even started, because that line failed."""
ALL_PACKAGES = "all:packages"
"""The name of the pair that has every installed package."""
SHADOW, _LINES = "import:", 3
"""Begins the name of a pair that says from where a package is imported, in so many lines."""
NAME_INTERPRETER = (
    "name the interpreter that has it: `defaults: {python: /path/venv/bin/python}` in hosts.yaml;"
    " clusterctl setup makes one there"
)
"""The remedy if it has no torch: a job is rarely meant to run, with pip's, in the system's."""
NO_LIBRARY = "No module named 'encodings'"
"""What a Python prints that does not find its own library: PYTHONHOME leads elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """What torch itself reports; asked only if GPUs are planned."""

    cuda_available: bool
    device_count: int
    nccl: str = ""
    error: str = ""
    archs: tuple[str, ...] = ()
    """What torch has code for: `sm_90`, `compute_90` (PTX, for newer ones too), `gfx942`."""
    devices: tuple[str, ...] = ()
    """The architectures of the GPUs that it sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An installed package of the job's interpreter."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignImport:
    """A package whose import loads a file outside of the interpreter's own folders."""

    name: str
    file: str
    hides: str = ""
    """The interpreter's own file that is not loaded; empty: it has none."""
    origin: str = ""
    """What put the folder on the path: `PYTHONPATH`, `user site`, a `.pth` file; empty: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """The job's interpreter in a non-interactive shell."""

    asked: str
    container: str = ""
    """The image that it is in; empty: it is on the node itself."""
    found: bool = False
    executable: str = ""
    version: str = ""
    packages: tuple[Package, ...] = ()
    """The installed ones of those that matter to training."""
    everything: str = ""
    """All that is installed, as `name==version`; empty: not known. A text: a node has hundreds."""
    foreign: tuple[ForeignImport, ...] | None = None
    """None: not asked."""
    torch_build: str = ""
    """What torch was built for: `cpu`, a CUDA version, `rocm…`; empty for no torch."""
    torch: Torch | None = None
    on_path: str = ""
    """The `python` that a shell would start after `env_init`; empty: not known, or none."""
    problem: str = ""
    """Why it could not be started or did not answer."""

    def package(self, name: str) -> str:
        """Return the package's version, empty for not installed."""
        return next((p.version for p in self.packages if p.name == name), "")


def _ask(wanted: FactRequest) -> Question:
    asked = interpreter(
        "python",
        wanted,
        PYTHON_SECONDS,
        *(VARIABLES if wanted.env_init else ()),
        *(("--", *wanted.packages) if wanted.packages else ()),
    )
    return Question(commands=(asked, *_torch_questions(wanted)))


def _torch_questions(wanted: FactRequest) -> Iterator[dict[str, Any]]:
    """Yield the question to torch; a container needs other options for each vendor's GPUs."""
    if wanted.gpus == 0:
        return
    if wanted.container is not None:
        ways = ((wanted.container.nvidia, NVIDIA), (wanted.container.amd, (AMD,)))
        for words, devices in ways:
            yield interpreter(
                "torch", wanted, TORCH_SECONDS, "torch", container=words, only_if=devices
            )
        return
    # If no number of GPUs is planned, torch is asked only if there is a driver.
    only_if = () if wanted.gpus else (*NVIDIA, AMD)
    yield interpreter("torch", wanted, TORCH_SECONDS, "torch", only_if=only_if)


@Fact("python", _ask)
def parse_python(answers: Answers) -> Python:
    """Return the interpreter; if it did not answer, `problem` says why."""
    asked = answers.wanted.interpreter
    container = answers.wanted.container.image if answers.wanted.container else ""
    answer = answers.command("python")
    words, _ = _split(answer)
    if not answer.good or len(words) < _FIRST_PACKAGE or len(words) % 2 != _FIRST_PACKAGE % 2:
        if answer.state == "absent":
            half = answer.words if answer.words.startswith("it needs ") else ""
            problem = half or "there is no such program"
            return Python(asked=asked, container=container, problem=problem)
        return Python(
            asked=asked, container=container, found=answer.state == "ok", problem=_why(answer)
        )
    told = dict(zip(words[_FIRST_PACKAGE::2], words[_FIRST_PACKAGE + 1 :: 2], strict=True))
    on_path, everything = told.pop(ON_PATH, ""), told.pop(ALL_PACKAGES, "")
    versions = {name: value for name, value in told.items() if not name.startswith((SHADOW, FILE))}
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
        everything=everything,
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


@Fact("job_environment")
def parse_job_environment(answers: Answers) -> Variables | None:
    """Return the variables that the interpreter got after `env_init`; None if it did not answer."""
    _, rest = _split(answers.command("python"))
    if rest is None or not answers.wanted.env_init:
        return None
    return hide_credentials(tuple(zip(rest[::2], rest[1::2], strict=False)))


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
        # After its error conda prints a line of advice.
        last = " ".join(line.strip() for line in printed[-2:])
        return first + (f"; it printed: {last}" if last else "")
    for line in answer.words.splitlines():
        if NO_LIBRARY in line:  # of many lines, and not the last one
            return line.strip()
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
        archs=texts(report.get("archs")),
        devices=texts(report.get("devices")),
    )
