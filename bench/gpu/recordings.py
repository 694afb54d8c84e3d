"""What this machine's tools print: recordings that parsers can be tested with."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

COMMANDS = {
    "nvidia-smi-q-x.xml": "nvidia-smi -q -x",
    "nvidia-smi.txt": "nvidia-smi",
    "nvlink.txt": "nvidia-smi nvlink -s",
    "topo.txt": "nvidia-smi topo -m",
}
LIMIT_SECONDS = 15.0
DRIVER = Path("/proc/driver/nvidia")
KERNEL_LINES = 200
_OF_NVIDIA = re.compile(r"nvrm|xid|nvidia|nvlink|nvswitch", re.IGNORECASE)
_PACKAGES = re.compile(
    r"(torch|transformers|peft|accelerate|numpy|triton|safetensors|tokenizers|flash|pytest|"
    r"hypothesis|psutil|huggingface|nvidia|cuda)",
    re.IGNORECASE,
)


def main() -> int:
    folder, needs_gpu = Path(sys.argv[1]), sys.argv[2] == "cuda"
    folder.mkdir(parents=True, exist_ok=True)
    codes = {}
    for name, command in COMMANDS.items():
        codes[name], text = output(command)
        # An XML file stays one: a parser is tested with it as it is.
        (folder / name).write_text(text if name.endswith(".xml") else f"$ {command}\n{text}")
        print(f"{command}: exit code {codes[name]}")
    _, text = output("dmesg")
    lines = [line for line in text.splitlines() if _OF_NVIDIA.search(line)]
    (folder / "dmesg.txt").write_text("\n".join(lines[-KERNEL_LINES:]) + "\n")
    print(f"dmesg: {len(lines)} lines of NVIDIA")
    (folder / "proc-driver-nvidia.txt").write_text(driver_files(DRIVER))
    (folder / "versions.txt").write_text(versions())
    return int(needs_gpu and codes["nvidia-smi-q-x.xml"] != 0)


def output(command: str) -> tuple[int | None, str]:
    """Return the exit code and what was printed; no code if the command did not end."""
    try:
        done = subprocess.run(
            shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=LIMIT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"no end within {LIMIT_SECONDS:g} s\n"
    except OSError as error:
        return None, f"{error}\n"
    return done.returncode, done.stdout.decode(errors="replace")


def driver_files(folder: Path) -> str:
    """Return the text files of the driver's folder, each after its name."""
    parts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            try:
                text = path.read_text(errors="replace")
            except OSError as error:
                text = f"{error}\n"
            parts.append(f"== {path.relative_to(folder)}\n{text}")
    return "\n".join(parts) or f"{folder}: not found\n"


def versions() -> str:
    """Return the versions of Python, the kernel and the packages that matter here."""
    packages = sorted(
        f"{found.name} {found.version}"
        for found in importlib.metadata.distributions()
        if found.name and _PACKAGES.match(found.name)
    )
    head = [f"Python {platform.python_version()}", f"Linux {platform.release()}"]
    return "\n".join([*head, *packages]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
