"""Programs of the node itself, and the image that a job's container is made from."""

from collections.abc import Mapping
from typing import Any

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question, typed
from clusterctl.facts.request import FactRequest, job_environment, program
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPython:
    """The Python that runs clusterctl's own code on the node."""

    executable: str
    lacks: tuple[str, ...] = ()
    """Modules of the standard library that a run may need and this build does not have."""


@Fact("agent")
def parse_agent(answers: Answers) -> AgentPython | None:
    """Return the Python that read these facts."""
    process = _part(answers, "agent")
    lacks = process.get("lacks")
    if not isinstance(lacks, list):
        return None
    names = tuple(str(name).lstrip("_") for name in lacks)
    return AgentPython(executable=str(process.get("executable", "")), lacks=names)


@Fact("rsync", Question(programs=("rsync",)))
def parse_rsync(answers: Answers) -> str | None:
    """Return its path; empty if it is not installed."""
    return typed(str, _part(answers, "programs").get("rsync"))


def _part(answers: Answers, name: str) -> Mapping[str, Any]:
    found = answers.object("self").get(name)
    return found if isinstance(found, dict) else {}


IMAGE_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The image of the job's container on a node."""

    id: str = ""
    problem: str = ""
    """Why there is none: in the words of the program that starts containers."""
    installed: bool = True
    """That program is there."""


def _ask(wanted: FactRequest) -> Question:
    if wanted.container is None or not wanted.container.image_id:
        return Question()
    asked = program("image", list(wanted.container.image_id), IMAGE_SECONDS)
    return Question(commands=({**asked, **job_environment(wanted)},))


@Fact("image", _ask)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How `job.check` ended."""

    exit_code: int | None
    """None: it could not be started or did not end in time."""
    output: str = ""
    """Its last lines."""
    words: str = ""
    other_code: bool = False
    """It ran on other code than the folder here has, which a sync would bring."""
