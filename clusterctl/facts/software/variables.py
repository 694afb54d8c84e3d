"""The variables of the session that libraries read."""

from __future__ import annotations

import re
from typing import TypeAlias

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question

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
