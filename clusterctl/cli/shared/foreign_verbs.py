"""Verbs of other tools, such as `ps` and `kill`: the verb that does it here, or that none does."""

_STATUS = ("status shows what a run is doing", "status")
_TOP = ("top shows live what a run and its nodes do", "top")
_LAUNCH = ("launch starts a run", "launch")
_LOGS = ("logs shows what a run prints", "logs -f")
_STOP = ("stop ends a run", "stop")
_RUNS = ("runs lists the runs", "runs")
_GPUS = ("exec runs a command on every node", "exec -- nvidia-smi")
_CHECK = ("check looks at every node", "check")
_RESUME = ("resume launches a run again", "resume --checkpoint latest")

VERBS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("info", "progress", "show"), _STATUS),
    **dict.fromkeys(("dashboard", "htop", "monitor", "nvitop", "watch"), _TOP),
    **dict.fromkeys(("run", "srun", "start", "torchrun", "train"), _LAUNCH),
    **dict.fromkeys(("attach", "follow", "log", "tail", "wait"), _LOGS),
    **dict.fromkeys(("abort", "cancel", "down", "end", "kill", "scancel", "terminate"), _STOP),
    **dict.fromkeys(("history", "jobs", "list", "ls", "ps"), _RUNS),
    **dict.fromkeys(("gpu", "gpus", "nvidia-smi", "smi"), _GPUS),
    **dict.fromkeys(("diagnose", "doctor", "hosts", "nodes", "ping", "sinfo", "test", "validate"),
                    _CHECK),
    **dict.fromkeys(("continue", "restart", "retry"), _RESUME),
    **dict.fromkeys(("compare", "diff"), ("runs compare shows what differs", "runs compare")),
    **dict.fromkeys(("queue", "squeue"), ("launch --wait waits for free nodes; runs lists the runs",
                                          "runs")),
    **dict.fromkeys(("sbatch", "submit"), ("launch submits a job if its launcher is slurm",
                                           "launch")),
    **dict.fromkeys(("connect", "login", "shell", "ssh"), ("use ssh itself, or exec for a command",
                                                           "exec -- hostname")),
    **dict.fromkeys(("copy", "cp", "put", "rsync", "scp", "upload"),
                    ("sync brings your code, push models and data", "sync")),
    **dict.fromkeys(("download", "fetch", "get"), ("pull brings results back", "pull")),
    **dict.fromkeys(("checkpoint", "checkpoints", "ckpt"),
                    ("status shows a run's newest checkpoint, report lists all", "status")),
    **dict.fromkeys(("install", "pip", "venv"), ("setup makes the Python environment", "setup")),
    **dict.fromkeys(("add", "scale"), ("join lets nodes into a run", "join")),
    **dict.fromkeys(("clean", "prune"), ("runs --prune deletes old runs", "runs --prune")),
    **dict.fromkeys(("delete", "remove", "rm"),
                    ("runs delete deletes a run; take a node out of hosts.yaml", "runs delete")),
    **dict.fromkeys(("pystack", "stack", "stacks"), ("dump shows where every rank is", "dump")),
    **dict.fromkeys(("cordon", "drain"),
                    ("quarantine add lists a node, --exclude-quarantined leaves it out of a launch",
                     "quarantine add")),
    **dict.fromkeys(("event", "events"), ("runs show lists them with --events", "runs show")),
    "help": ("each verb has its own", "--help"),
    "version": ("it is a flag", "--version"),
}  # fmt: skip


def answer_to(verb: str) -> tuple[str, list[str]] | None:
    """Return what does it here, and the words to type in its place; None: it is no such verb."""
    found = VERBS.get(verb.lower())
    return found and (found[0], found[1].split())
