"""Write a base model with a trained adapter in its weights: `python -m train.tools.merge`.

The new folder is a model as any other: to train on, to serve, or to export. The weights keep the
dtype of the base, and are added up in memory: it must have room for the base.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from train.data import images
from train.errors import DONE, USAGE, ConfigError

ADAPTER = "adapter_config.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Merge, and print where the model is."""
    parser = argparse.ArgumentParser(prog="python -m train.tools.merge", description=__doc__)
    parser.add_argument("adapter", type=Path, help="folder of the trained adapter")
    parser.add_argument("output", type=Path, help="folder of the new model, which is not there yet")
    parser.add_argument(
        "--model", help="the base model: a folder or a hub id (default: the one in the adapter)"
    )
    options = parser.parse_args(argv)
    try:
        base = merge(options.adapter, options.output, options.model)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    print(f"{options.output}: {base} with {options.adapter} in its weights")
    return DONE


def merge(adapter: Path, output: Path, model: str | None = None) -> str:
    """Write the model with the adapter in it, and its tokenizer; return the base's name."""
    try:
        about: dict[str, str] = json.loads((adapter / ADAPTER).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{adapter}: expected {ADAPTER} in it, found: {error}") from error
    name = model or about.get("base_model_name_or_path")
    if not name:
        raise ConfigError(f"--model: expected the base of {adapter}, found no name in it")
    if output.exists():
        raise ConfigError(f"{output}: expected a new folder, found that it exists")
    aside = output.with_name(f"{output.name}.tmp-merge")
    shutil.rmtree(aside, ignore_errors=True)

    def write() -> None:
        tokenizer, base = load_tokenizer(name), load_base(name)
        load_adapter(base, adapter).merge_and_unload().save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        for path in Path(name).glob("*processor_config.json"):
            shutil.copyfile(path, aside / path.name)

    wanted = f"{adapter}: expected an adapter of {name}"
    try:
        loaded(write, wanted, "--model BASE if the base is elsewhere")
    except ConfigError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for path in aside.glob("*.safetensors"):
        path.chmod(0o644)  # (safetensors makes files that one user alone can read)
    aside.rename(output)
    return name


def load_tokenizer(name: str) -> Any:
    """Return a model's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


def load_base(name: str, **how: Any) -> Any:
    """Return a model in the dtype on disk, for which there is room; one that sees, if it is."""
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    sees = images.has_processor(Path(name))
    kind = "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"
    return getattr(transformers, kind).from_pretrained(name, dtype="auto", **how)


def load_adapter(base: Any, adapter: Path) -> Any:
    """Return the base with a trained adapter, which must have weights for all its layers."""
    from peft import PeftModel

    with warnings.catch_warnings():
        # peft asks transformers by a deprecated name.
        warnings.filterwarnings("ignore", message=".is_gradient_checkpointing")
        # A layer without a weight would run as the base's, under the adapter's name.
        warnings.filterwarnings("error", message="Found missing adapter keys")
        return PeftModel.from_pretrained(base, str(adapter))


def loaded(load: Callable[[], Any], wanted: str, hint: str | None = None) -> Any:
    """Return what is loaded; if it fails, say what was expected, and the error's first line."""
    from safetensors import SafetensorError

    try:
        return load()
    except (
        ImportError, KeyError, OSError, RuntimeError, SafetensorError, UserWarning, ValueError
    ) as error:  # fmt: skip
        lines = str(error).strip().splitlines() or [""]
        first = lines[0].partition(": [")[0]  # without a list of all the weights it is about
        problem = f"{wanted}, found: {type(error).__name__}: {first}"
        raise ConfigError(problem, hint=hint) from error


if __name__ == "__main__":
    sys.exit(main())
