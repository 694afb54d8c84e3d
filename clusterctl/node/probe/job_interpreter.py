"""What the job's own interpreter is and has; its text is run by that interpreter with `-c`.

Not part of the agent's process: the job's Python may be another one, with other packages. Few
imports, since every node pays for them at every check: `importlib.metadata` alone takes four times
as long as all of this, so the names of the packages' metadata folders are read, as it would.
"""

from __future__ import annotations

import _frozen_importlib_external
import gc
import os
import sys

gc.disable()  # there is nothing to collect in milliseconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, List, Optional, Sequence

PACKAGES = (
    "torch", "transformers", "peft", "accelerate", "datasets", "tokenizers", "safetensors",
    "numpy", "bitsandbytes", "flash-attn", "deepspeed", "triton", "ray", "axolotl", "trl",
    "lightning", "pytorch-lightning", "torchtitan", "torchtune", "megatron-core",
    "transformer-engine", "xformers", "liger-kernel", "vllm",
)  # fmt: skip


MODULES = {"megatron-core": "megatron"}
"""What is imported of a package, if its name does not say."""
SHADOW = "import:"
"""Begins the names of the pairs that say from where a package would be imported."""
ON_PATH = "path:python"
"""The name of the pair that says which `python` a shell would start; left out if there is none."""
FILE = "file:"
"""Begins the names of the pairs that have a file's text."""
NCCL_FILES = ("/etc/nccl.conf", "~/.nccl.conf")
"""What NCCL reads where the job runs: in a container the image has its own."""
ALL_PACKAGES, ALL_CHARACTERS = "all:packages", 32768
"""The name of the pair that has every installed package, as far as so many characters do."""
SHOWN, PTH_FILES, PTH_BYTES = 500, 200, 65536
"""Characters of a path that are shown; how many `.pth` files are read, and of each how much."""


def describe(prefixes: Sequence[str] = (), packages: Sequence[str] = ()) -> List[str]:
    """Return executable, version, what torch was built for, then names and versions in turn.

    The names are those of PACKAGES and `packages`. Pairs of `import:NAME` follow: see `foreign`;
    then ON_PATH, ALL_PACKAGES, and pairs of `file:PATH`.

    With prefixes of variables, an empty word follows, and these variables and their values.
    """
    words = [sys.executable, "%d.%d.%d" % sys.version_info[:3], torch_build()]
    wanted = {*PACKAGES, *packages}
    every = installed(None)
    known = [(name, every[name]) for name in every if name in wanted]
    for name, told in (*known, (SHADOW, "asked"), *foreign(wanted).items()):
        words += [name, told]
    listed = " ".join("%s==%s" % one for one in sorted(every.items()))
    if len(listed) > ALL_CHARACTERS:
        listed = listed[:ALL_CHARACTERS].rpartition(" ")[0]
    words += [ALL_PACKAGES, listed]
    own = os.path.dirname(sys.executable)
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and os.access(os.path.join(folder, "python"), os.X_OK):
            is_own = os.path.realpath(folder) == os.path.realpath(own)
            words += [ON_PATH, os.path.join(own if is_own else folder, "python")[:SHOWN]]
            break
    for path in NCCL_FILES:
        try:
            with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
                words += [FILE + path, file.read(PTH_BYTES).replace("\0", "?")]
        except OSError:
            continue
    if prefixes:
        words.append("")
    for name, value in sorted(os.environ.items()):
        if prefixes and name.startswith(tuple(prefixes)):
            words += [name, value]
    return words


def installed(wanted: Optional[Collection[str]] = PACKAGES) -> Dict[str, str]:
    """Return the packages' versions, from the first place that has each; None: of all packages."""
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
            if version and (wanted is None or name in wanted):
                # An egg's folder name ends with the Python that it is for.
                found.setdefault(name, version.split("-py")[0])
    return found


def foreign(wanted: Collection[str]) -> Dict[str, str]:
    """Return the packages whose import would not load what is in the interpreter's own folders.

    Nothing is imported: the finders are asked, as an import asks them. The value has three lines:
    the file that wins, the own file that it hides (or nothing), and what put its folder on the
    path.
    """
    own = [folder for folder in sys.path if _is_own(folder)]
    found: Dict[str, str] = {}
    for name in sorted(wanted):
        module = MODULES.get(name, name.replace("-", "_"))
        file = _file_of(module, None)
        # A package's folder is one above that of its file.
        folder = os.path.dirname(file)
        if os.path.basename(folder) == module:
            folder = os.path.dirname(folder)
        if file and not _is_own(folder):
            lines = (file, _file_of(module, own), _origin_of(folder, own))
            found[SHADOW + name] = "\n".join(line[:SHOWN].replace("\n", "?") for line in lines)
    return found


def _is_own(folder: str) -> bool:
    prefixes = {sys.prefix, sys.base_prefix}
    is_site = os.path.basename(folder) in {"site-packages", "dist-packages"}
    return is_site and any(folder.startswith(prefix.rstrip("/") + "/") for prefix in prefixes)


def _file_of(module: str, folders: Any) -> str:  # noqa: ANN401  (None: as an import would)
    """Return the file that an import of a module would load; empty for none."""
    path_finder = _frozen_importlib_external.PathFinder
    for finder in sys.meta_path if folders is None else [path_finder]:
        try:
            spec = finder.find_spec(module, folders)
        except Exception:  # noqa: BLE001, S112  (anyone's finder; an import would say)
            continue
        if spec is not None:
            if spec.origin and spec.has_location:
                return str(spec.origin)
            places = list(spec.submodule_search_locations or ())
            return str(places[0]) + "/" if places else ""
    return ""


def _origin_of(folder: str, own: Sequence[str]) -> str:
    """Return what put a folder on the path: PYTHONPATH, a `.pth` file, or the user's packages."""
    listed = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder in map(os.path.abspath, filter(None, listed)):
        return "PYTHONPATH"
    user_site = getattr(sys.modules.get("site"), "USER_SITE", None)
    if folder == user_site:
        return "user site"
    files = [
        os.path.join(site, name)
        for site in [*own, *([user_site] if user_site else [])]
        if os.path.isdir(site)
        for name in sorted(os.listdir(site))
        if name.endswith(".pth")
    ]
    for file in files[:PTH_FILES]:
        try:
            with open(file, encoding="utf-8", errors="replace") as lines:
                listed = lines.read(PTH_BYTES).splitlines()
        except OSError:
            continue
        if folder in (os.path.join(os.path.dirname(file), line.strip()) for line in listed if line):
            return str(file)
    return ""


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
