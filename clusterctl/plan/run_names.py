"""`{run}` and `{name}` in a job: by them each run has a folder, arguments and variables of its own.

`{{run}}` stands for the text `{run}`. All other braces are the program's: JSON, awk, `${run}`.
"""

import itertools
import re
from dataclasses import replace

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Job
from clusterctl.plan.command.output_folder import own_folder

_PLACE = re.compile(r"\{\{(run|name)\}\}|(?<!\$)\{(run|name)\}")


def fill_text(text: str, run: str, name: str) -> str:
    """Return a text with the run's id and the user's name for it; without a name, that stays."""

    def value(found: re.Match[str]) -> str:
        escaped, wanted = found.groups()
        if escaped:
            return f"{{{escaped}}}"
        return (run if wanted == "run" else name) or found[0]

    return _PLACE.sub(value, text)


def escape(text: str) -> str:
    """Return a text that `fill_text` turns into this one."""
    return _PLACE.sub(lambda found: f"{{{found[0]}}}", text)


def fill_job(job: Job, run: str, name: str) -> Job:
    """Return the job as this run has it: its command, variables and checkpoints."""
    return replace(
        job,
        command=tuple(fill_text(word, run, name) for word in job.command),
        env=tuple((key, fill_text(value, run, name)) for key, value in job.env),
        checkpoints=fill_text(own_folder(job) or "", run, name) or None,
    )


def before_names(path: str) -> str:
    """Return the folder that the folders of all runs are in; the path itself without a name."""
    parts = itertools.takewhile(lambda part: not _PLACE.search(part), path.split("/"))
    return "/".join(parts)


def pattern_of_runs(folder: str) -> re.Pattern[str]:
    """Return what the folders of runs are called, of which `folder` is the template."""
    fixed = _PLACE.split(folder)[:: _PLACE.groups + 1]
    if not fixed[0]:
        raise UsageError(
            f"job.checkpoints: expected a folder of all runs in workdir, found {folder}",
            hint=f"set `checkpoints: ckpt/{folder}` in the inventory, and pass that folder to the"
            " program",
        )
    return re.compile(".+".join(map(re.escape, fixed)), re.DOTALL)


def require_name(job: Job, name: str) -> None:
    """Refuse a job with `{name}` for a run without one."""
    texts = {
        "job.checkpoints": [job.checkpoints or ""],
        "command": job.command,
        **{f"env.{key}": [value] for key, value in job.env},
    }
    for where, words in texts.items():
        if not name and any(
            found[2] == "name" for word in words for found in _PLACE.finditer(word)
        ):
            raise UsageError(
                f"{where}: expected the run's name for {{name}}, found none",
                hint="name the run: --name NAME; {{name}} is the text {name} itself",
            )
