"""Where a model and a data set are: on this node, or on the hub or in a store, downloaded once."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from train.config.config import Config
from train.data import stored
from train.data.files import paths, streams
from train.data.stored import Item
from train.errors import ConfigError, without_credentials
from train.files import write_text
from train.lock import Lock
from train.object_store import is_url

Kind = Literal["model", "dataset"]
HUB_ID = re.compile(
    r"(?=.{1,96}$)(?!.*(?:--|\.\.|\.git$))[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII
)
"""What huggingface_hub takes for one."""
MODEL_FILES = ["*.json", "*.jinja", "*.safetensors", "*.model", "*.txt", "*.py"]
OTHER_WEIGHTS = ["consolidated*", "*/*.safetensors"]
"""The same weights once more, in the form of a model's own program (Mistral, Llama)."""
DATASET_FILES, OTHER_DATASET_FILES = (
    [f"*{plain}{packed}" for kind in kinds for plain in kind for packed in ("", *streams.SUFFIXES)]
    for kinds in (paths.KINDS[:2], paths.KINDS[2:])
)
"""Those of the second kind are downloaded if there are none of the first."""
CONVERT = "python -m train.tools.convert_weights"
FRESH = 600.0
"""Seconds in which a node's other processes take the commit that the first one found."""


def settle(config: Config) -> None:
    """Set the hub's own variables; call it before transformers is imported.

    A local model needs no hub, and a node without a way out must not wait for one to fail.
    """
    datasets = (*(each.path for each in config.datasets), config.eval_dataset_path or "")
    names = (config.name_or_path, *(part for name in datasets for part in parts(name)))
    everything_here = not any(is_hub_id(name) for name in names if name)
    if config.offline or everything_here:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def is_hub_id(name: str) -> bool:
    """Whether a name can only mean a repository on the hub: it is no path that exists here."""
    return bool(HUB_ID.fullmatch(name)) and not Path(name).exists()


def is_hub_dataset(name: str) -> bool:
    """Return whether some of a data set is on the hub; a file that is not there is no hub id."""
    return any(
        is_hub_id(part) and Path(part).suffix.lower() not in paths.OF_FILES for part in parts(name)
    )


def parts(name: str) -> tuple[str, ...]:
    """Return the paths and hub ids of a list with commas; a path that is there is only itself."""
    if "," not in name or os.path.exists(name):  # noqa: PTH110  (Path's raises for a long name)
        return (name,)
    return tuple(part.strip() for part in name.split(",") if part.strip())


def model_folder(config: Config) -> Path:
    """Return the folder of the base model on this node, downloaded if it has to be."""
    name = config.name_or_path
    if is_hub_id(name):
        folder = fetch(name, kind="model", config=config, key="name_or_path")
        if not any(folder.glob("*.safetensors")):
            raise ConfigError(
                f"name_or_path: expected *.safetensors in {name} on the hub, found none",
                hint=f"hf download {name} --local-dir FOLDER; {CONVERT} FOLDER; and FOLDER as "
                "name_or_path, on every node",
            )
        return folder
    folder = Path(name)
    if not (folder / "config.json").is_file():
        found = _instead(folder)
        hint = "a path must be there on every node; a hub id looks like org/name"
        if (folder / "adapter_config.json").is_file():
            given, merged = (shlex.quote(str(path)) for path in (folder, f"{folder}-merged"))
            found = f"a LoRA adapter: merge it with its base into {merged} first, and train on that"
            hint = f"python -m train.tools.merge {given} {merged}"
        problem = f"name_or_path: expected a model's folder at {folder}, found {found}"
        raise ConfigError(problem, hint=hint)
    if any(folder.glob("pytorch_model*.bin")) and not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"name_or_path: expected *.safetensors in {folder}, found pytorch_model*.bin",
            hint=f"{CONVERT} {shlex.quote(str(folder))} on every node",
        )
    return folder


def dataset_files(name: str, config: Config, *, key: str) -> tuple[Path, ...]:
    """Return the files of a data set that `key` names."""
    files = [file for part in parts(name) for file in _files(part, config, key)]
    if twice := [file for file, times in Counter(files).items() if times > 1]:
        raise ConfigError(f"{key}: expected {twice[0]} once, found it again in {name}")
    return tuple(files)


def dataset_items(name: str, config: Config, *, key: str) -> tuple[Item, ...]:
    """Return the same files to be streamed: those in a store are downloaded as they are reached."""
    found: list[Item] = []
    for part in parts(name):
        if is_url(part):
            found += stored.items(part, config, key=key)
        else:
            files = dataset_files(part, config, key=key)
            found += [Item(path=path, size=path.stat().st_size) for path in files]
    return tuple(found)


def _files(name: str, config: Config, key: str) -> tuple[Path, ...]:
    if is_url(name):
        return paths.find(stored.fetch(name, config, key=key), key=key)
    if not is_hub_dataset(name):
        return paths.find(Path(name), key=key)
    for files in (DATASET_FILES, OTHER_DATASET_FILES):
        folder = fetch(name, kind="dataset", config=config, key=key, files=files)
        items = paths.below(folder) if folder.is_dir() else []
        if any(paths.ending(item) in paths.PLAIN for item in items):
            return paths.of_folder(folder, items, key=key, name=f"{name} on the hub")
    raise ConfigError(
        f"{key}: expected {paths.READ} files in {name} on the hub, found none",
        hint=f"hf download --repo-type dataset {name} --local-dir FOLDER, make JSON lines of "
        f"its files, and give FOLDER as {key}",
    )


def fetch(
    name: str, *, kind: Kind, config: Config, key: str, files: list[str] = MODEL_FILES
) -> Path:
    """Return a repository's folder in the hub's cache; one process of the node downloads it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    logging.getLogger(snapshot_download.__module__).addFilter(_is_news)
    revision = config.revision if kind == "model" else None
    offline = config.offline or os.environ.get("HF_HUB_OFFLINE") == "1"
    folder = Path(HF_HUB_CACHE)
    folder.mkdir(parents=True, exist_ok=True)
    other = "-other" if files is OTHER_DATASET_FILES else ""
    label = re.sub(r"\W", "-", f"{kind}-{name}-{revision or 'main'}{other}")
    with Lock(folder / f".clusterctl-{label}.owner").held():
        known = _known(folder / f".clusterctl-{label}.json")
        try:
            path = snapshot_download(
                name,
                repo_type=kind,
                revision=known or revision,
                allow_patterns=files,
                ignore_patterns=OTHER_WEIGHTS,
                local_files_only=offline or known is not None,
            )
        except (LocalEntryNotFoundError, HfHubHTTPError) as error:
            raise _refused(name, kind, key, error, offline=offline) from error
        if known is None:
            commit = {"commit": Path(path).name, "time": time.time()}
            write_text(folder / f".clusterctl-{label}.json", json.dumps(commit))
    return Path(path)


def _is_news(record: logging.LogRecord) -> bool:
    return "No files matched" not in record.getMessage()


def _known(path: Path) -> str | None:
    """Return the commit that another process of this node has just downloaded."""
    try:
        about = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return str(about["commit"]) if 0 <= time.time() - about["time"] < FRESH else None


def _endpoint() -> str:
    return without_credentials(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))


def _refused(name: str, kind: Kind, key: str, error: Exception, *, offline: bool) -> ConfigError:
    """Say what the hub answered, or that it did not: that may be the cause of another error."""
    both = () if offline else (error, error.__cause__)
    answer: Any = next((e for e in both if getattr(e, "response", None) is not None), None)
    what = "--repo-type dataset " if kind == "dataset" else ""
    hint = f"hf download {what}{name}"
    if answer is not None:
        status = answer.response.status_code
        said = f"from {_endpoint()}, found HTTP {status} ({type(answer).__name__})"
        hint = "a local path needs no hub; the name's spelling is the hub's own"
        if status in {401, 403}:
            hint = "HF_TOKEN must be set on the nodes (env_from: [HF_TOKEN]) and have access to it"
    elif offline:
        said = "from this machine's hub cache, found it missing there"
    else:
        said = f"from {_endpoint()}, found no answer"
        hint += " on this node, or give a local path"
    return ConfigError(f"{key}: expected {name} {said}", hint=hint)


def _instead(folder: Path) -> str:
    if folder.is_dir():
        return "a folder without config.json"
    if folder.exists():
        return "a file"
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    return f"nothing below {above}"
