"""Programs of the node itself, and the image that a job's container is made from."""

import re
from collections.abc import Mapping
from typing import Any

from clusterctl.facts.answers import NOT_ASKED, Answers
from clusterctl.facts.fact import Fact, Question, if_gpus, typed
from clusterctl.facts.request import NVIDIA, FactRequest, job_environment, program
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
_CGROUPS = ("info", "--format", "{{.CgroupDriver}}")
_INSPECT = ("image", "inspect", "--format", "FORMAT", "IMAGE")
"""How `image_id` ends; its beginning starts the program, by sudo or with options of its own."""
_LINKS = ("/dev/char/195:255", "/dev/char/195:0")
"""Links to the nodes of NVIDIA's driver, by their numbers: its control, and the first GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The image of the job's container on a node."""

    id: str = ""
    problem: str = ""
    """Why there is none: in the words of the program that starts containers."""
    installed: bool = True
    """That program is there."""
    revoked: bool = False
    """At a reload of systemd, its containers lose the node's GPUs: it gives no links of them."""


def _ask(wanted: FactRequest) -> Question:
    if wanted.container is None or not wanted.container.image_id:
        return Question()
    asked = program("image", list(wanted.container.image_id), IMAGE_SECONDS)
    docker = wanted.container.image_id[: -len(_INSPECT)]
    driver = program("cgroups", [*docker, *_CGROUPS], only_if=NVIDIA)
    around = job_environment(wanted)
    return Question(links=_LINKS, commands=({**asked, **around}, {**driver, **around}))


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
    # runc gives systemd the devices of a container by these links.
    linked = any(answers.by_key.get("link:" + one, NOT_ASKED).state == "ok" for one in _LINKS)
    managed = answers.command("cgroups").text.strip() == "systemd"
    return Image(id=answer.text.strip(), revoked=managed and not linked)


DRIVER_PACKAGES = ("libnvidia-compute-*", "libcuda1", "nvidia-driver-*", "nvidia-dkms-*")
_DPKG = ["dpkg-query", "-W", "-f=${db:Status-Want} ${db:Status-Status} ${Package} ${Version}\\n"]
_UNATTENDED = "unattended-upgrades"
_LITERAL = re.compile(r"[a-z0-9+-]*")
_APT_LINE = re.compile(r'^([\w:/-]+?)(?:::)? "(.*)";$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """Which packages of the GPU driver apt would replace by itself."""

    packages: tuple[tuple[str, str], ...] = ()
    """Those that are neither held nor excluded, each with its version."""
    origins: tuple[str, ...] = ()
    """Where updates may come from, as apt's configuration writes it."""


def _ask_apt(name: str, argv: list[str]) -> dict[str, Any]:
    return program(name, argv, only_if=(f"/usr/bin/{_UNATTENDED.removesuffix('s')}",))


@Fact(
    "updates",
    if_gpus(
        Question(
            commands=(
                _ask_apt("apt-config", ["apt-config", "dump"]),
                _ask_apt("driver-packages", [*_DPKG, *DRIVER_PACKAGES]),
            )
        )
    ),
)
def parse_updates(answers: Answers) -> Updates | None:
    """Return what the node updates by itself; None: nothing, or that is not known."""
    settings: dict[str, list[str]] = {}
    for name, value in _APT_LINE.findall(answers.command("apt-config").text):
        settings.setdefault(name, []).append(value)
    if settings.get("APT::Periodic::Unattended-Upgrade", ["0"])[-1] in {"", "0"}:
        return None
    found = []
    # dpkg-query exits with 1 if one of the names has no package.
    for line in answers.command("driver-packages").text.splitlines():
        want, state, name, version = (*line.split(), "", "", "", "")[:4]
        if (want, state) == ("install", "installed") and not _excluded(name, settings):
            found.append((name, version))
    names = ("Allowed-Origins", "Origins-Pattern")
    origins = [one for name in names for one in settings.get(f"Unattended-Upgrade::{name}", ())]
    return Updates(packages=tuple(sorted(found)), origins=tuple(origins))


def _excluded(name: str, settings: Mapping[str, list[str]]) -> bool:
    """Tell whether the list of what is never updated has it: patterns of how names begin.

    A node's patterns are not run here: their first letters tell enough.
    """
    for pattern in settings.get("Unattended-Upgrade::Package-Blacklist", ()):
        begins = _LITERAL.match(pattern.removeprefix("^"))
        if begins and begins[0] and name.startswith(begins[0]):
            return True
        if not (begins and begins[0]) and "nvidia" in pattern:
            return True
    return False


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
