"""Recognizes a launcher in a command, and reads its flags.

clusterctl starts the launcher itself, once per node. A launcher inside each rank would start
independent trainings.
"""

import posixpath
import re
from dataclasses import field, replace

from clusterctl.node.supervisor.worlds.launcher_names import PYTHON, split_launcher
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """How to read the arguments of a launcher."""

    ours: dict[str, str]
    """Flag with a value → clusterctl's flag; empty: clusterctl chooses that itself."""
    ignored: frozenset[str] = frozenset()
    """Flags without a value that mean nothing here."""
    module: frozenset[str] = frozenset({"--module"})
    """Flags that make the next word a module's name."""
    pairs: frozenset[str] = frozenset()
    """Flags with two values."""
    total: frozenset[str] = frozenset()
    """Flags with the number of processes of all nodes together."""
    passed: frozenset[str] = frozenset()
    """Flags with a value that clusterctl passes on to its own launcher."""
    passed_groups: tuple[str, ...] = ()
    """How more such flags begin."""
    switches: frozenset[str] = frozenset()
    """Flags without a value that it passes on."""
    env: frozenset[str] = frozenset()
    """Flags that set a variable: `NAME=VALUE`, or two words."""
    variables: dict[str, str] = field(default_factory=dict)
    """Flag with a value → the variable by which the program reads it, also if it is ours."""

    def passes(self, flag: str) -> bool:
        """Tell whether clusterctl passes a flag on to its own launcher."""
        grouped = flag.startswith(self.passed_groups) and flag not in self.ours
        return grouped or flag in self.passed or flag in self.switches


GPUS = "--gpus"
INCLUDE, EXCLUDE = "--include", "--exclude"
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Instead of a flag: it takes the numbers of GPUs."""
OURS = frozenset(
    {
        "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK",
        "LOCAL_WORLD_SIZE", "GROUP_RANK",
    }
)  # fmt: skip
"""Variables that clusterctl or its launcher sets."""
READ_ENVIRONMENT = {
    "llamafactory-cli": frozenset({"train"}),
    "lmf": frozenset({"train"}),
    "swift": frozenset({"pt", "sft", "rlhf"}),
    "megatron": frozenset({"pt", "sft", "rlhf"}),
    "tune": frozenset({"run"}),
    "xtuner": frozenset({"train"}),
}
"""Programs that start the ranks of a node, from NNODES, NODE_RANK and MASTER_ADDR; their verbs."""
LIKE_TORCHRUN: dict[tuple[str, ...], tuple[str, ...]] = {
    ("axolotl", "train"): ("axolotl.cli.train",),
    ("automodel",): ("nemo_automodel.cli.app",),
    ("colossalai", "run"): (),
    ("composer",): (),
    ("fabric", "run"): (),
    ("lightning", "run", "model"): (),
    **{
        ("trl", name): (f"trl.scripts.{name}",)
        for name in ("dpo", "grpo", "kto", "reward", "rloo", "sft")
    },
}
"""Programs that start the ranks as torchrun does, and the module that is a rank's program."""
_NAMED_LAUNCHER = {"torchrun": "torchrun", "accelerate": "accelerate launch"}
"""`--launcher NAME` of such a program; the launcher's own flags are behind its `--`."""
_SHELL_WORD = re.compile(r"&&?|\|[|&]?|;|\d*>>?(&\d+|[\w./-]*)|&>>?[\w./-]*|<")
"""What only a shell understands; a program may well take `<pad>` or `a|b`."""
_KINDS = {
    "torchrun": Flags(
        ours={
            "--nproc-per-node": GPUS,
            "--nnodes": "--nodes",
            "--master-port": "--master-port",
            "--max-restarts": "--max-restarts",
            **dict.fromkeys(("--node-rank", "--master-addr", "--local-addr"), ""),
            **dict.fromkeys(("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"), ""),
        },
        ignored=frozenset({"--standalone", "--use-env", "--no-python"}),
        module=frozenset({"-m", "--module"}),
        passed=frozenset(
            {
                "--event-log-handler", "--local-ranks-filter", "--log-dir",
                "--log-line-prefix-template", "--logs-specs", "--monitor-interval",
                "--numa-binding", "--rdzv-conf", "--redirects", "--role", "--start-method",
                "--tee", "-r", "-t",
            }
        ),
    ),
    "accelerate launch": Flags(
        ours={
            "--num-processes": GPUS,
            "--num-machines": "--nodes",
            "--gpu-ids": VISIBLE,
            "--main-process-port": "--master-port",
            "--max-restarts": "--max-restarts",
            **dict.fromkeys(("--machine-rank", "--main-process-ip", "--rdzv-backend"), ""),
            **dict.fromkeys(("--deepspeed-multinode-launcher", "--deepspeed-hostfile"), ""),
        },
        ignored=frozenset({"--multi-gpu", "--same-network", "--no-python"}),
        module=frozenset({"-m", "--module"}),
        total=frozenset({"--num-processes"}),
        passed=frozenset(
            {
                "--config-file", "--dynamo-backend", "--dynamo-mode",
                "--gradient-accumulation-steps", "--gradient-clipping", "--mixed-precision",
                "--num-cpu-threads-per-process",
            }
        ),
        passed_groups=(
            *("--fsdp-", "--deepspeed-", "--zero-", "--zero3-", "--offload-"),
            *("--fp8-", "--megatron-lm-", "--parallelism-config-"),
        ),
        switches=frozenset(
            {
                "--use-fsdp", "--use-deepspeed", "--use-megatron-lm", "--use-parallelism-config",
                "--dynamo-use-fullgraph", "--dynamo-use-dynamic",
                "--dynamo-use-regional-compilation", "--enable-cpu-affinity",
                "--fp8-use-autocast-during-eval",
            }
        ),
    ),
    "deepspeed": Flags(
        ours={
            "--num-gpus": GPUS,
            **dict.fromkeys(("-i", "--include"), INCLUDE),
            **dict.fromkeys(("-e", "--exclude"), EXCLUDE),
            "--num-nodes": "--nodes",
            "--master-port": "--master-port",
            **dict.fromkeys(("--master-addr", "-H", "--hostfile", "--launcher", "--node-rank"), ""),
            **dict.fromkeys(("--launcher-args", "--ssh-port", "--enable-each-rank-log"), ""),
        },
        ignored=frozenset(
            {"--no-ssh", "--force-multi", "--no-local-rank", "--no-python", "--save-pid"}
        ),
    ),
    "mpirun": Flags(
        ours={
            **dict.fromkeys(("-n", "-np", "--np", "-c"), GPUS),
            "-npernode": GPUS,
            **dict.fromkeys(("-H", "--host", "-f", "--hostfile", "-hostfile", "--bind-to"), ""),
            **dict.fromkeys(("-bind-to", "--map-by", "-map-by"), ""),
        },
        ignored=frozenset({"--allow-run-as-root", "--oversubscribe"}),
        pairs=frozenset({"--mca", "-mca"}),
        env=frozenset({"-x", "-genv", "-env"}),
        total=frozenset({"-n", "-np", "--np", "-c"}),
    ),
    "srun": Flags(
        ours={
            **dict.fromkeys(("-N", "--nodes"), "--nodes"),
            "--ntasks-per-node": GPUS,
            "--gpus-per-node": GPUS,
            **dict.fromkeys(("-n", "--ntasks"), GPUS),
            **dict.fromkeys(("-p", "--partition", "-J", "--job-name", "-w", "--nodelist"), ""),
        },
        total=frozenset({"-n", "--ntasks"}),
    ),
    "fabric run": Flags(
        ours={
            "--devices": GPUS, "--num-nodes": "--nodes", "--main-port": "--master-port",
            **dict.fromkeys(("--main-address", "--node-rank"), ""),
        },
        variables={
            f"--{name}": f"LT_{name.replace('-', '_').upper()}"
            for name in ("accelerator", "devices", "num-nodes", "precision", "strategy")
        },
    ),
    "composer": Flags(
        ours={
            **dict.fromkeys(("-n", "--nproc"), GPUS), "--master-port": "--master-port",
            **dict.fromkeys(("--world-size", "--base-rank", "--node-rank", "--master-addr"), ""),
            **dict.fromkeys(("--stdout", "--stderr"), ""),
        },
        ignored=frozenset({"-v", "--verbose", "-c", "--command-mode"}),
        module=frozenset({"-m", "--module-mode"}),
    ),
}  # fmt: skip


def launcher_flag(flag: str) -> tuple[str, str, bool] | None:
    """Return whose a launcher's flag with a value is, and clusterctl's flag for it.

    The last item tells whether it counts the processes of all nodes together.
    """
    for name, kind in _KINDS.items():
        if flag in kind.ours:
            return name, kind.ours[flag], flag in kind.total
    return None


def passed_on(flag: str) -> str:
    """Return the launcher that clusterctl passes a flag with a value on to; empty: to none."""
    long = flag.startswith("--")  # a short one is rather another program's
    names = ("torchrun", "accelerate launch") if long else ()
    kinds = {name: _KINDS[name] for name in names}
    fits = (name for name, one in kinds.items() if one.passes(flag) and flag not in one.switches)
    return next(fits, "")


def hosts_and_gpus(value: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the hosts of deepspeed's `host:0,1@host2:0,1`, and the different lists of GPUs."""
    hosts = [part.partition(":") for part in value.split("@")]
    return tuple(host for host, _, _ in hosts), frozenset(gpus for _, colon, gpus in hosts if colon)


def words_for_gpus(numbers: str) -> tuple[str, str]:
    """Return our flag and its value for a list such as `2,3`; the first few need only a count."""
    each = numbers.split(",")
    if each == [str(number) for number in range(len(each))]:
        return GPUS, str(len(each))
    return "--env", f"{VISIBLE}={numbers}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A launcher that a call starts, with its flags."""

    name: str
    flags: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Flags with dashes and without abbreviation, their values, and the words as written."""
    module: bool = False
    """The program is a module."""
    program: tuple[str, ...] = ()

    def value(self, *names: str) -> str:
        """Return the last value of a flag; empty: it is not there."""
        return next((value for flag, value, _ in reversed(self.flags) if flag in names), "")

    def has(self, *names: str) -> bool:
        """Tell whether a flag is there."""
        return any(flag in names for flag, _, _ in self.flags)


def start_of(words: tuple[str, ...]) -> Start | None:
    """Return the launcher that these words start; None: they start none."""
    found = split_launcher(list(words))
    if found is not None:
        return _read(found[0], list(found[1]))
    program = posixpath.basename(words[0]) if words else ""
    if PYTHON.fullmatch(program) and words[1:3] == ("-m", "llamafactory.cli"):
        program, words = "llamafactory-cli", ("llamafactory-cli", *words[3:])
    for typed, module in LIKE_TORCHRUN.items():
        if (program, *words[1 : len(typed)]) == typed:
            return _like_torchrun(" ".join(typed), module, list(words[len(typed) :]))
    verbs = READ_ENVIRONMENT.get(program)
    if verbs is None or (verbs and not verbs.intersection(words[1:2])):
        return None
    name = " ".join((program, *words[1:2])) if verbs else program
    if name == "tune run":
        return _read(name, list(words[2:]))
    return Start(name=name, program=words)


def _like_torchrun(name: str, module: tuple[str, ...], words: list[str]) -> Start:
    """Read `axolotl train config.yml --launcher torchrun -- --nnodes 2`, and simpler ones."""
    named = re.search(r" --launcher[ =](torchrun|accelerate)(?= |$)", " ".join(["", *words]))
    if named is None:
        found = _read(name, list(words))
        own = found.program
        if module and not {flag for flag, *_ in found.flags} <= _every(kind_of(name)):
            found, own = Start(name=name), tuple(words)  # the flags are its own
    else:
        end = words.index("--") if "--" in words else len(words)
        found = _read(_NAMED_LAUNCHER[named[1]], words[end + 1 :])
        own = tuple(words[:end])
        taken = named[0].split()
        at = own.index(taken[0])
        own = own[:at] + own[at + len(taken) :]
    return replace(found, program=(*module, *own), module=bool(module) or found.module)


def kind_of(name: str) -> Flags:
    """Return how to read the arguments of a launcher."""
    return _KINDS.get(name, _KINDS["torchrun"])


def _read(name: str, words: list[str]) -> Start:
    """Split a launcher's arguments into flags and the program."""
    kind, module, written = kind_of(name), False, ""
    flags: list[tuple[str, str, tuple[str, ...]]] = []
    while words and words[0].startswith("-") and words[0] != "-":
        written = words.pop(0)
        if written == "--":
            break
        flag, equals, value = written.partition("=")
        flag = _unabbreviated(flag.replace("_", "-"), kind)
        if flag in kind.module:
            module = True
            continue
        taken: list[str] = []
        if flag in kind.pairs or (flag in kind.env and words and "=" not in words[0]):
            taken = words[: 2 if flag != "-x" else 1]
        elif (
            not equals
            and flag not in kind.switches
            and (
                flag in {*kind.ours, *kind.env, *kind.variables}
                or kind.passes(flag)
                or _is_value(flag, kind, words)
            )
        ):
            taken = words[:1]
        del words[: len(taken)]
        flags.append((flag, value if equals else "=".join(taken), (written, *taken)))
    if words[1:2] == ["--"] and written != "--" and name not in {"mpirun", "srun"}:
        del words[1]  # argparse does so
    return Start(name=name, flags=tuple(flags), module=module, program=tuple(words))


def _every(kind: Flags) -> frozenset[str]:
    """Return the long names of a launcher's flags."""
    return kind.passed.union(kind.ours, kind.switches, kind.ignored, kind.module, kind.variables)


def _unabbreviated(flag: str, kind: Flags) -> str:
    """Return the whole name of a long flag, which argparse lets people shorten."""
    every = _every(kind)
    if flag in every or not flag.startswith("--"):
        return flag
    fits = [name for name in every if name.startswith(flag)]
    return fits[0] if len(fits) == 1 else flag


def _is_value(flag: str, kind: Flags, words: list[str]) -> bool:
    """Tell whether the next word is probably the value of an unknown flag."""
    return (
        flag not in kind.ignored
        and len(words) > 1
        and not words[0].startswith("-")
        and not words[0].endswith((".py", ".sh"))
        and not PYTHON.fullmatch(posixpath.basename(words[0]))
    )


def shell_words(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words from the first that only a shell understands: `> log 2>&1 &`."""
    for at, word in enumerate(command):
        if _SHELL_WORD.fullmatch(word):
            return command[at:]
    return ()
