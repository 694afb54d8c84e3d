"""The image of the job's container."""

from __future__ import annotations

from clusterctl.facts.answers import Answers
from clusterctl.facts.commands import job_environment, program
from clusterctl.facts.fact import Fact, Question
from clusterctl.facts.request import FactRequest
from clusterctl.values import dataclass

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
