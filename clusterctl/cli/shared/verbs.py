"""The verbs: what each does, examples of it, and its module."""

import importlib
from types import ModuleType

VERBS: dict[str, str] = {
    "init": "probe hosts and write hosts.yaml",
    "check": "find over SSH what would break the run",
    "setup": "make the same Python environment on every node",
    "exec": "run a command on every node, in the home folder",
    "sync": "mirror the current folder to every node",
    "push": "bring models and data to every node",
    "pull": "bring results of the nodes to this machine",
    "launch": "check, sync and start the job on every node, and follow it",
    "resume": "launch the job again from a verified checkpoint",
    "join": "let nodes join a run that restarts itself, or is elastic",
    "status": "show what a run is doing, or why it ended",
    "top": "show live what a run and its nodes do",
    "logs": "show the merged logs of a run",
    "dump": "show where every rank of a run is: its stacks",
    "stop": "stop a run, and verify that nothing of it is left",
    "runs": "list the runs of a cluster, show one, or compare some",
    "report": "write all that is known of a run into one HTML file",
    "quarantine": "list the nodes that made runs fail, add or remove some",
    "notify": "test the receivers of messages about runs",
    "export": "write the hosts for DeepSpeed, MPI, Ansible or SSH, or as JSON",
    "forget": "remove the recorded host key of a reinstalled host",
    "sandbox": "a cluster of real sshd hosts on this machine",
}
"""Each verb is a module with `add_arguments(parser)` and `run(args) -> int`: see `module_of`."""
_FILES = frozenset({"sync", "push", "pull"})
_RUNS = frozenset({
    "launch", "resume", "join", "status", "top", "logs", "dump", "stop", "runs", "report",
    "notify",
})  # fmt: skip
WITH_COMMAND = frozenset({"exec", "launch", "resume"})
"""Verbs that take a job's command after `--`."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "init": ("clusterctl init gpu1 gpu2", "clusterctl init 'ubuntu@gpu[01-04]' --accept-new"),
    "check": (
        "clusterctl check",
        "clusterctl check --nodes gpu1,gpu2 --only network",
        "clusterctl check --explain network.master-port",
    ),
    "setup": ("clusterctl setup", "clusterctl setup --requirements requirements.txt --offline"),
    "exec": ("clusterctl exec -- nvidia-smi -L", "clusterctl exec --nodes gpu1 -- df -h /data"),
    "sync": ("clusterctl sync", "clusterctl sync --nodes gpu1"),
    "push": ("clusterctl push", "clusterctl push /models/llama --from gpu1"),
    "pull": ("clusterctl pull out/metrics.jsonl", "clusterctl pull out --from gpu1 --to results"),
    "launch": (
        "clusterctl launch -- train.py --lr 1e-4",
        "clusterctl launch --nodes 2 --env NCCL_DEBUG=INFO -- train.py",
        "clusterctl launch --dry-run -- -m train --config config.yaml",
    ),
    "resume": (
        "clusterctl resume --checkpoint latest",
        "clusterctl resume --checkpoint out/step-000040 --exclude gpu3",
    ),
    "join": (
        "clusterctl join --nodes gpu3",
        "clusterctl join lab-20261120t194346-ksqs --nodes 'gpu[3-4]'",
    ),
    "status": ("clusterctl status", "clusterctl status --json"),
    "top": ("clusterctl top", "clusterctl top --once", "clusterctl top --json"),
    "logs": ("clusterctl logs -f", "clusterctl logs --tail 50 --rank 0-3 --grep loss"),
    "dump": ("clusterctl dump", "clusterctl dump --rank 3", "clusterctl dump --output stacks"),
    "stop": ("clusterctl stop", "clusterctl stop --all --grace 10"),
    "runs": (
        "clusterctl runs",
        "clusterctl runs show --events",
        "clusterctl runs compare ksqs m4tw --report compared.html",
        "clusterctl runs --prune 5",
    ),
    "report": ("clusterctl report", "clusterctl report ksqs --output run.html"),
    "quarantine": (
        "clusterctl quarantine",
        "clusterctl quarantine add gpu3 --reason 'ECC errors' --for 3d",
        "clusterctl quarantine remove gpu3",
    ),
    "notify": ("clusterctl notify --test",),
    "export": (
        "clusterctl export --to deepspeed",
        "clusterctl export --to ansible --nodes gpu1,gpu2",
        "clusterctl export --json",
    ),
    "forget": ("clusterctl forget gpu3",),
    "sandbox": ("clusterctl sandbox up --nodes 4", "clusterctl sandbox demo"),
}
"""For the end of each verb's help."""


def module_of(verb: str) -> ModuleType:
    """Import the module of a verb: cli/files, cli/runs or cli/nodes has one for each."""
    folder = "files" if verb in _FILES else "runs" if verb in _RUNS else "nodes"
    return importlib.import_module(f"clusterctl.cli.{folder}.{verb}")
