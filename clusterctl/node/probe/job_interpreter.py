"""What the job's own interpreter is and has; its text is run by that interpreter with `-c`.

Not part of the agent's process: the job's Python may be another one, with other packages. Few
imports, since every node pays for them at every check: `importlib.metadata` alone takes four times
as long as all of this, so the names of the packages' metadata folders are read, as it would.
"""

from __future__ import annotations

import gc
import os
import sys

gc.disable()  # there is nothing to collect in milliseconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, List, Sequence

PACKAGES = (
    "torch", "transformers", "peft", "accelerate", "datasets", "tokenizers", "safetensors",
    "numpy", "bitsandbytes", "flash-attn", "deepspeed", "triton", "ray", "axolotl", "trl",
    "lightning", "pytorch-lightning", "torchtitan", "torchtune", "megatron-core",
    "transformer-engine", "xformers", "liger-kernel", "vllm",
)  # fmt: skip


def describe(prefixes: Sequence[str] = (), packages: Sequence[str] = ()) -> List[str]:
    """Return executable, version, what torch was built for, then names and versions in turn.

    The names are those of PACKAGES and `packages`.

    With prefixes of variables, an empty word follows, and these variables and their values.
    """
    words = [sys.executable, "%d.%d.%d" % sys.version_info[:3], torch_build()]
    for name, version in installed({*PACKAGES, *packages}).items():
        words += [name, version]
    if prefixes:
        words.append("")
    for name, value in sorted(os.environ.items()):
        if prefixes and name.startswith(tuple(prefixes)):
            words += [name, value]
    return words


def installed(wanted: Collection[str] = PACKAGES) -> Dict[str, str]:
    """Return the versions of the packages that matter, from the first place that has each."""
    found: Dict[str, str] = {}
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            stem, _, kind = entry.rpartition(".")
            if kind not in {"dist-info", "egg-info"}:
                continue
            project, _, version = stem.partition("-")
            name = project.lower().replace("_", "-").replace(".", "-")
            if name in wanted and version:
                # An egg's folder goes on with the Python that it is for.
                found.setdefault(name, version.split("-py")[0])
    return found


def torch_build() -> str:
    """Return what torch was built for, from its version file; empty for no torch."""
    for folder in sys.path:
        try:
            with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        for wanted, prefix in (("cuda", ""), ("hip", "rocm"), ("xpu", "xpu")):
            for line in lines:
                name, _, value = line.partition("=")
                value = value.strip().strip("'\"")
                if name.split(":")[0].strip() == wanted and value not in {"", "None"}:
                    return prefix + value
        return "cpu"
    return ""


def query_torch() -> Dict[str, Any]:
    """Import torch and ask it for its devices; only where it was built for any."""
    answer: Dict[str, Any] = {"cuda_available": False, "device_count": 0, "nccl": "", "error": ""}
    answer.update(archs=[], devices=[])
    if torch_build() in {"", "cpu"}:
        return answer
    try:
        import torch  # noqa: PLC0415

        answer["cuda_available"] = torch.cuda.is_available()
        answer["device_count"] = torch.cuda.device_count()
        if answer["cuda_available"]:
            answer["archs"] = list(torch.cuda.get_arch_list())
            answer["devices"] = [_arch(torch, i) for i in range(answer["device_count"])]
            torch.zeros(1, device="cuda")
            nccl: Any = torch.cuda.nccl
            answer["nccl"] = ".".join(map(str, nccl.version()))
    except Exception as error:  # noqa: BLE001  (whatever torch says is the answer)
        answer["error"] = str(error)
    return answer


def _arch(torch: Any, device: int) -> str:  # noqa: ANN401  (a module)
    """Return the architecture of a GPU, as torch names those that it was built for."""
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    return "sm_%d%d" % torch.cuda.get_device_capability(device)


if __name__ == "__main__":
    if sys.argv[1:] == ["torch"]:
        import json

        json.dump(query_torch(), sys.stdout)
    else:
        words = sys.argv[1:]
        at = words.index("--") if "--" in words else len(words)
        sys.stdout.write("\0".join(describe(words[:at], words[at + 1 :])))
        sys.stdout.flush()
        os._exit(0)  # to take the interpreter down would cost as much as all of the above
