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
from pathlib import Path
from typing import TYPE_CHECKING

from train.errors import DONE, USAGE, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Write the model with the adapter in it, and its tokenizer; return the base's name.

    Raises:
        ConfigError: The adapter, the base or the output cannot be used.
    """
    # ruff: noqa: PLC0415  (they take seconds: not for --help)
    about = _about(adapter)
    name = model or about.get("base_model_name_or_path")
    if not name:
        raise ConfigError((f"--model: expected the base of {adapter}, found no name in it",))
    if output.exists():
        raise ConfigError((f"{output}: expected a new folder, found that it exists",))
    from peft import PeftModel
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    aside = output.with_name(f"{output.name}.tmp-merge")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        base = AutoModelForCausalLM.from_pretrained(name, dtype="auto")
        tokenizer = AutoTokenizer.from_pretrained(name)
        with warnings.catch_warnings():
            # peft asks transformers by a deprecated name.
            warnings.filterwarnings("ignore", message=".is_gradient_checkpointing")
            # A layer without a weight would stay the base's.
            warnings.filterwarnings("error", message="Found missing adapter keys")
            merged = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
        merged.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
    except (
        ImportError, KeyError, OSError, RuntimeError, SafetensorError, UserWarning, ValueError
    ) as error:  # fmt: skip
        shutil.rmtree(aside, ignore_errors=True)
        found = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        problem = f"{adapter}: expected an adapter of {name}, found: {found}"
        raise ConfigError((problem,), hint="--model BASE if the base is elsewhere") from error
    for path in aside.glob("*.safetensors"):
        path.chmod(0o644)  # (safetensors makes files that one user alone can read)
    aside.rename(output)
    return str(name)


def _about(adapter: Path) -> dict[str, str]:
    try:
        about: dict[str, str] = json.loads((adapter / ADAPTER).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError((f"{adapter}: expected {ADAPTER} in it, found: {error}",)) from error
    return about


if __name__ == "__main__":
    sys.exit(main())
