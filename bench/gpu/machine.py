"""The interpreter for the steps, and the GPUs that its torch sees."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).absolute().parents[2]
QUERY_SECONDS = 60.0
CANDIDATES = (".venv/bin/python", "python3")
PACKAGES = (
    "transformers",
    "peft",
    "tokenizers",
    "safetensors",
    "numpy",
    "yaml",
    "accelerate",
    "pytest",
)
"""What the steps import besides torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one interpreter can use here."""

    python: str
    version: tuple[int, ...] = ()
    torch: str = ""
    cuda: str = ""
    """The CUDA version that torch was built for."""
    gpus: tuple[str, ...] = ()
    memory: int = 0
    """Bytes of the smallest GPU."""
    missing: tuple[str, ...] = ()
    error: str = ""

    def refusal(self, *, cpu: bool) -> str:
        """Return why the steps cannot run with this interpreter; empty if they can."""
        if self.error:
            return self.error
        if self.version < (3, 11):
            return f"expected Python 3.11 or newer, found {'.'.join(map(str, self.version))}"
        if self.missing:
            return f"packages are missing: {', '.join(self.missing)}"
        if cpu or self.gpus:
            return ""
        if not self.cuda:
            return f"torch {self.torch} is built without CUDA"
        return f"torch {self.torch} (CUDA {self.cuda}) sees no GPU"


def query() -> Machine:
    """Return what this very process can use; torch is asked, so it may start CUDA."""
    import importlib.util

    missing = tuple(name for name in PACKAGES if importlib.util.find_spec(name) is None)
    here = Machine(python=sys.executable, version=sys.version_info[:3], missing=missing)
    try:
        import torch
    except ImportError as error:
        return Machine(python=here.python, version=here.version, error=str(error))
    gpus, smallest = [], 0
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(number)
        gpus.append(about.name)
        smallest = min(smallest or about.total_memory, about.total_memory)
    return Machine(
        python=here.python, version=here.version, missing=missing, torch=torch.__version__,
        cuda=torch.version.cuda or "", gpus=tuple(gpus), memory=smallest,
    )  # fmt: skip


def ask(python: str, environment: Mapping[str, str]) -> Machine:
    """Return what another interpreter can use; its own error is part of the answer."""
    try:
        done = subprocess.run(
            [python, "-m", "bench.gpu.machine"], cwd=ROOT, env=environment, capture_output=True,
            text=True, timeout=QUERY_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Machine(python=python, error=f"no answer within {QUERY_SECONDS:g} s")
    except OSError as error:
        return Machine(python=python, error=error.strerror or str(error))
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Machine(python=python, error=said)
    lists = {name: tuple(found[name]) for name in ("version", "gpus", "missing")}
    return Machine(**{**found, **lists, "python": python})


def choose(
    given: str | None, environment: Mapping[str, str], *, cpu: bool
) -> tuple[Machine | None, list[str]]:
    """Return the first interpreter that can run the steps, and why the others cannot."""
    refused = []
    for name in (given,) if given else CANDIDATES:
        python = shutil.which(name) or str(ROOT / name)
        if not os.access(python, os.X_OK):
            refused.append(f"{name}: not found")
            continue
        machine = ask(python, environment)
        why = machine.refusal(cpu=cpu)
        if not why:
            return machine, refused
        refused.append(f"{name}: {why}")
    return None, refused


def gpus_of(environment: Mapping[str, str], count: int) -> Sequence[str]:
    """Return the names by which CUDA_VISIBLE_DEVICES can choose each GPU."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]


if __name__ == "__main__":
    print(json.dumps(asdict(query())))
