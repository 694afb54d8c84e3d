"""What in a launcher's words keeps the nodes of a run apart, and how to change it. Pure."""

import posixpath
import re
from collections.abc import Collection, Iterator

from clusterctl.inventory.wrap import DOCKER_LIKE
from clusterctl.plan.command.launcher_flags import Start

LOCAL = re.compile(
    r"(?:localhost(?:\.localdomain)?|127(?:\.\d+){3}|\[?::1\]?|0\.0\.0\.0"
    r"|\$\{?HOSTNAME\}?|\$\(\s*hostname\b.*\)|`\s*hostname\b.*`)(?::\S*)?"
)
"""An address at which each node finds itself only."""
_ALONE = "each node would train alone"
_APART = {
    "composer": (
        "--world-size",
        "composer takes WORLD_SIZE, here the number of scripts, for that of ranks",
        "add --world_size with the number of all ranks",
    ),
    "deepspeed": ("--node-rank", "deepspeed does not read NNODES", "replace it by torchrun"),
    "mpirun": ("", "mpirun without other hosts starts ranks of this node only", "replace it"),
}
"""Launcher → the flag without which its nodes stay apart, why, and what to do."""
_FOR_ACCELERATE = (
    'add --num_machines "$NNODES" --machine_rank "$NODE_RANK"'
    ' --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT"'
)


def alone(
    start: Start,
    nodes: int | None,
    variables: Collection[str] = (),
    around: tuple[tuple[str, ...], ...] = (),
) -> Iterator[tuple[str, str]]:
    """Yield what keeps the nodes of a script's launcher apart, and how to change it."""
    counts = start.value("--nnodes", "--num-machines", "--num-nodes")
    rank = start.value("--node-rank", "--machine-rank")
    backend = start.value("--rdzv-backend")
    endpoint = start.value("--rdzv-endpoint")
    name = start.name
    if start.has("--standalone"):
        yield f"{name} --standalone: {_ALONE}", "remove --standalone"
        return
    least, _, most = counts.partition(":")
    if least.isdecimal() and nodes and not int(least) <= nodes <= int(most or least or 0):
        effect = _ALONE if least == "1" else f"the run has {nodes} nodes"
        yield (
            f"{name} starts {counts} {'node' if counts == '1' else 'nodes'}: {effect}",
            f'write "$NNODES" instead of {counts}',
        )
    if rank.isdecimal() and backend in {"", "static"}:
        yield (
            f"{name} has the node rank {rank} on every node: the nodes would not meet",
            f'write "$NODE_RANK" instead of {rank}',
        )
    address = start.value("--master-addr", "--main-process-ip")
    if backend == "c10d" and not endpoint and "PET_RDZV_ENDPOINT" not in variables:
        yield (
            (
                "with --rdzv-backend=c10d torchrun ignores --master-addr and --node-rank,"
                f" and meets at localhost: {_ALONE}"
            ),
            'add --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT", or remove --rdzv-backend',
        )
    elif LOCAL.fullmatch(endpoint or address):
        ours = "$MASTER_ADDR:$MASTER_PORT" if endpoint else "$MASTER_ADDR"
        found = endpoint or address
        yield f"the ranks of {name} meet at {found}: {_ALONE}", f'write "{ours}" instead of {found}'
    if name in _APART and not start.has(_APART[name][0]):
        _, why, fix = _APART[name]
        yield f"{why}: {_ALONE}", fix
    if name == "accelerate launch":
        yield from _accelerate_alone(start, counts)
    inside = any(posixpath.basename(words[0]) in DOCKER_LIKE for words in around)
    if inside and name in {"torchrun", "tune run"} and not counts:
        yield (
            f"{name} in a container does not get NNODES: {_ALONE}",
            (
                'add --nnodes "$NNODES" --node-rank "$NODE_RANK"'
                ' --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
            ),
        )


def _accelerate_alone(start: Start, counts: str) -> Iterator[tuple[str, str]]:
    if not counts:
        effect = f"unless its config has all nodes, {_ALONE}" if has_config(start) else _ALONE
        yield f"accelerate launch does not read NNODES: {effect}", _FOR_ACCELERATE
    way = start.value("--deepspeed-multinode-launcher")
    if start.has("--use-deepspeed") and way not in {"standard", "nossh"}:
        message = "with DeepSpeed accelerate starts the ranks of other nodes itself, by pdsh"
        yield message, "add --deepspeed_multinode_launcher standard"


def has_config(start: Start) -> bool:
    """Tell whether the number of nodes may be in a file of accelerate's."""
    given = start.has("--config-file", "--machine-rank")
    return start.name == "accelerate launch" and given and not start.has("--num-machines")
