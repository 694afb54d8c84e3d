"""The settings of libraries and launchers in their own files."""

import json
import re
from typing import TypeAlias

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question
from clusterctl.facts.request import FactRequest
from clusterctl.values import dataclass

NCCL_CONF = Question(files=("/etc/nccl.conf",), globs=("~/.nccl.conf",))
FILE = "file:"
"""Begins the key of a file's text, also of what an interpreter read in its container."""
IN_IMAGE = " in the image "
"""Between a file's path and its image, in the origin of a setting."""
_FIRST_PAIR = 3
_SETTING = re.compile(r"([A-Za-z_]\w*):[ \t]*([^#\n]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A variable, and the file that sets it."""

    name: str
    value: str
    origin: str


@Fact("nccl_conf", NCCL_CONF)
def parse_nccl_conf(answers: Answers) -> tuple[Setting, ...]:
    """Return the settings in NCCL's files; the one in the home folder wins.

    As NCCL reads them (`setEnvFile`): nothing is trimmed, so that `NCCL_DEBUG = WARN` sets a
    variable whose name ends with a space. Neither file overrides the environment.
    """
    settings: dict[str, Setting] = {}
    container = answers.wanted.container
    for path, text in reversed(_nccl_files(answers)):  # the home's is the last
        origin = f"{path}{IN_IMAGE}{container.image}" if container else path
        for line in text.splitlines():
            name, found, value = line.partition("=")
            if found and name and not name.startswith("#"):
                settings.setdefault(name, Setting(name=name, value=value, origin=origin))
    return tuple(settings[name] for name in sorted(settings))


def _nccl_files(answers: Answers) -> list[tuple[str, str]]:
    """Return NCCL's files where the job runs: in a container its interpreter has read them."""
    if answers.wanted.container is None:
        pairs = [(key, answer.text) for key, answer in answers.by_key.items() if answer.good]
    else:
        words = answers.command("python").text.split("\0")[_FIRST_PAIR:]
        pairs = [*zip(words[::2], words[1::2], strict=False)]
    return [
        (key.removeprefix(FILE), text)
        for key, text in pairs
        if key.startswith(FILE) and key.endswith("nccl.conf")
    ]


def _ask(wanted: FactRequest) -> Question:
    return Question(globs=(wanted.launcher_file,) if wanted.launcher_file else ())


@Fact("launcher_config", _ask)
def parse_launcher_config(answers: Answers) -> tuple[tuple[str, str], ...] | None:
    """Return the plain settings of a launcher's own file on a node.

    None: it was not asked for, or could not be read.
    """
    path = answers.wanted.launcher_file
    if not path:
        return None
    end = "file:" + path if path.startswith("/") else path.removeprefix("~")
    found = [
        a for key, a in answers.by_key.items() if key.startswith("file:") and key.endswith(end)
    ]
    if not found:
        return ()
    return launcher_settings(found[0].text) if found[0].good else None


def launcher_settings(text: str) -> tuple[tuple[str, str], ...]:
    """Return the plain settings of a launcher's YAML or JSON file; none of those in sections."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        lines = (_SETTING.match(line) for line in text.splitlines())
        named = {match[1]: match[2].strip().strip("'\"") for match in lines if match}
    else:
        pairs = document.items() if isinstance(document, dict) else ()
        named = {str(k): str(v) for k, v in pairs if isinstance(v, (str, int, float))}
    return tuple(sorted((name, value) for name, value in named.items() if value))


Variables: TypeAlias = tuple[tuple[str, str], ...]
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
VARIABLES = (
    "NCCL_", "TORCH_", "GLOO_", "TP_", "UCX_", "FI_", "MASTER_", "CUDA_", "LD_LIBRARY", "OMP_",
    "PATH", *PROXIES, *map(str.upper, PROXIES),
)  # fmt: skip
"""The beginnings of the variables that are read, of the session and as `env_init` leaves them."""
_CREDENTIALS = re.compile(r"^([a-z][a-z0-9+.-]*://|).*@", re.IGNORECASE | re.DOTALL)
"""Up to the last `@`: a password may hold any character."""


@Fact("environment", Question(variables=VARIABLES))
def parse_environment(answers: Answers) -> Variables | None:
    """Return the variables of the session."""
    told = answers.object("self").get("variables")
    if not isinstance(told, dict):
        return None
    return hide_credentials(tuple(sorted((str(k), str(v)) for k, v in told.items())))


def hide_credentials(variables: Variables) -> Variables:
    """Return the variables without the user and password of a proxy: facts are shown and saved."""
    return tuple(
        (name, _CREDENTIALS.sub(r"\1", value) if name.lower() in PROXIES else value)
        for name, value in variables
    )


@Fact("etc_environment", file="/etc/environment")
def parse_etc_environment(text: str) -> tuple[str, ...]:
    """Return the names that /etc/environment sets; pam_env allows `export` before them."""
    names = (line.partition("=")[0].strip() for line in text.splitlines() if "=" in line)
    return tuple(sorted({name.removeprefix("export ").strip() for name in names} - {""}))
