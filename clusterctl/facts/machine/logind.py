"""Whether a login's end ends a run: the settings of logind."""

from __future__ import annotations

import re

from clusterctl.facts.answers import Answer, Answers
from clusterctl.facts.fact import Fact, Question, of_value

MAIN = ("/etc/systemd/logind.conf", "/usr/lib/systemd/logind.conf")
"""The administrator's, else the vendor's."""
FOLDERS = (
    "/usr/lib/systemd/logind.conf.d/",
    "/run/systemd/logind.conf.d/",
    "/etc/systemd/logind.conf.d/",
)
"""If files have the same name, the one in the later folder counts."""
LOGIND = Question(files=MAIN, globs=tuple(folder + "*.conf" for folder in FOLDERS))

of_value("linger", bool, "self")


@Fact("kill_user_processes", LOGIND)
def parse_kill_user_processes(answers: Answers) -> bool | None:
    """Return whether logind kills processes when a session ends; None if it has no settings.

    systemd's default is yes; every known distribution is built with no.
    """
    return parse_logind(answers, "KillUserProcesses", default=False)


def parse_logind(answers: Answers, name: str, *, default: bool) -> bool | None:
    """Return a yes or no of logind's settings; None if it has no settings.

    This follows systemd: one main file, the administrator's before the vendor's. The files of the
    folders override it, in the order of their names.
    """
    main = next((text for path in MAIN if (text := answers.text(path)) is not None), None)
    parts: dict[str, Answer] = {}
    for folder in FOLDERS:
        parts.update(answers.below(folder))
    if main is None and not parts:
        return None
    # The main file shows the distribution's own default as a comment: RHEL's of RemoveIPC is no.
    decided = default and not re.search(rf"^#\s*{name}\s*=\s*no\b", main or "", re.MULTILINE)
    for text in (main or "", *(parts[name].text for name in sorted(parts))):
        for found in re.finditer(rf"^\s*{name}\s*=\s*(\w+)", text, re.MULTILINE):
            decided = found[1].lower() in {"yes", "y", "true", "t", "on", "1"}
    return decided
