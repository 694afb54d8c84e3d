"""Recognizes a launcher by its argument list.

The controller uses it for a job's command, the supervisor for the processes below a rank.
"""

from __future__ import annotations

import os
import re
from typing import List, Optional, Tuple

PYTHON = re.compile(r"python[\d.]*")
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
PROGRAMS = {
    "torchrun": "torchrun",
    "accelerate-launch": "accelerate launch",
    **dict.fromkeys(("deepspeed", "deepspeed.pt", "ds"), "deepspeed"),
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
    "orterun": "mpirun",
    "horovodrun": "mpirun",
    "srun": "srun",
}


def split_launcher(words: List[str]) -> Optional[Tuple[str, List[str]]]:
    """Return the launcher that an argument list starts and its arguments; None: it starts none."""
    if words and PYTHON.fullmatch(os.path.basename(words[0])):
        words = words[1:]
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
            words = words[2 if words[0] in ("-W", "-X") else 1 :]  # such as -u
    first, rest = "".join(words[:1]), words[1:]
    if first == "-m":
        if rest[:2] == ["accelerate.commands.accelerate_cli", "launch"]:
            return "accelerate launch", rest[2:]
        name = MODULES.get("".join(rest[:1]))
        return (name, rest[1:]) if name else None
    program = os.path.basename(first)
    if program == "accelerate" and rest[:1] == ["launch"]:
        return "accelerate launch", rest[1:]
    return (PROGRAMS[program], rest) if program in PROGRAMS else None
