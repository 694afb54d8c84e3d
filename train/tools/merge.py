"""Write a base model with a trained adapter in its weights: `python -m train.tools.merge`.

The new folder is a model as any other: to train on, to serve, or to export. The weights keep the
dtype of the base, and one file of them is in memory at a time. If there is room, the logits of the
new model are then compared with those of the base and its adapter.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from train.checkpoint import provenance
from train.config.config import Config
from train.data import hub
from train.distributed import host_memory
from train.errors import DONE, USAGE, ConfigError
from train.model import memory, vision
from train.tools import merge_files

ADAPTER = "adapter_config.json"
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""Names in the header of a safetensors file → torch's."""
SAMPLES, LENGTH = 3, 24
"""Of the tokens whose logits are compared."""
ORDER = 1e-4
"""What float32 may change of a logit, as a share of the largest, if an adapter's product is added
to the weights before and not after: 1e-6 in models of 2 to 32 layers, 1e-5 in chaotic ones."""
SAME = 1e-6
"""The same, of two models with the same weights. Rounding these to bfloat16 would change 2e-3 to
5e-3, which hides one wrong layer of many: so both are rounded."""


def main(argv: Sequence[str] | None = None) -> int:
    """Merge, and print where the model is."""
    parser = argparse.ArgumentParser(prog="python -m train.tools.merge", description=__doc__)
    parser.add_argument("adapter", type=Path, help="folder of the trained adapter")
    parser.add_argument("output", type=Path, help="folder of the new model, which is not there yet")
    parser.add_argument(
        "--model", help="the base model: a folder or a hub id (default: the one in the adapter)"
    )
    parser.add_argument(
        "--other-base", action="store_true", help="merge into another base than was trained on"
    )
    options = parser.parse_args(argv)
    adapter, output = options.adapter, options.output
    try:
        base, compared = merge(adapter, output, options.model, any_base=options.other_base)
        print(f"{output}: {base} with {adapter} in its weights\n{compared}")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    folder = shlex.quote(str(output))
    print(f"serve it:       vllm serve {folder}")
    print(f"measure it:     python -m train.tools.evaluate {folder} DATA")
    print(f"for llama.cpp:  python convert_hf_to_gguf.py {folder} --outfile {folder}.gguf")
    return DONE


def merge(
    adapter: Path, output: Path, model: str | None = None, *, any_base: bool = False
) -> tuple[str, str]:
    """Write the model with the adapter in it; return the base's name, and how they compare."""
    try:
        about: dict[str, str] = json.loads((adapter / ADAPTER).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{adapter}: expected {ADAPTER} in it, found: {error}") from error
    name = model or about.get("base_model_name_or_path")
    if not name:
        raise ConfigError(f"--model: expected the base of {adapter}, found no name in it")
    if output.exists():
        raise ConfigError(f"{output}: expected a new folder, found that it exists")
    folder = hub.model_folder(Config(name_or_path=name, dataset_path="-"))
    if not any_base:
        require_base(adapter, folder, "--other-base merges into this one")
    aside = output.with_name(f"{output.name}.tmp-merge")
    shutil.rmtree(aside, ignore_errors=True)

    def write() -> None:
        try:
            merge_files.write(folder, adapter, aside)
        except merge_files.NotByName as error:
            print(f"all weights are read at once: {error} is in no file under its own name")
            tokenizer, base = load_tokenizer(str(folder)), load_base(str(folder))
            merge_files.keep_float32(base, folder)
            merge_files.merged_whole(load_adapter(base, adapter)).save_pretrained(aside)
            tokenizer.save_pretrained(aside)
            for path in folder.glob("*processor_config.json"):
                shutil.copyfile(path, aside / path.name)

    wanted = f"{adapter}: expected an adapter of {name}"
    try:
        loaded(write, wanted, "--model BASE if the base is elsewhere")
        compared = _compared(folder, adapter, aside)
    except BaseException:  # Ctrl-C too
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for path in aside.glob("*.safetensors"):
        path.chmod(0o644)  # (safetensors makes files that one user alone can read)
    aside.rename(output)
    return name, compared


def require_base(adapter: Path, base: Path, otherwise: str) -> None:
    """Refuse a base with other files than the adapter was trained on, if that is known.

    Args:
        otherwise: of the hint, the flag that takes this one.
    """
    if provenance.is_of_another(adapter, provenance.base(base)):
        raise ConfigError(
            f"{base}: expected the files that {adapter} was trained on, found others",
            hint=f"--model BASE names another folder, {otherwise}",
        )


def _compared(base: Path, adapter: Path, merged: Path) -> str:
    """Compare the new model with the base and its adapter on some tokens; return the result.

    Raises:
        ConfigError: They do not compute the same.
    """
    import torch

    about = json.loads((base / "config.json").read_text(encoding="utf-8"))
    if {*merge_files.QUANTIZATION} & about.keys():
        return "not verified: transformers would compute with the quantized base"
    needed = 5 * memory.shape(base).parameters  # float32, and what loading takes besides
    if needed > (left := host_memory.available()):
        sizes = memory.size_in_words(needed), memory.size_in_words(left)
        return "not verified: comparing logits takes {} of memory, {} are available".format(*sizes)

    @torch.no_grad()
    def logits(model: Any) -> Any:
        tokens = torch.arange(SAMPLES * LENGTH).view(SAMPLES, LENGTH) * 997
        return model.eval()(tokens % model.get_input_embeddings().weight.shape[0]).logits

    network = load_base(str(base), dtype=torch.float32)
    before = logits(network)
    network = load_adapter(network, adapter)
    wanted = logits(network)
    whole = float(wanted.abs().max().clamp_min(1e-9))
    network = network.merge_and_unload()
    added = logits(network)
    # Rounded as the files have them, the weights are those of the new model.
    usual = about.get("dtype") or about.get("torch_dtype") or "float32"
    files = [memory.header(path) for path in merged.glob("*.safetensors")]
    kinds = {name: DTYPES[tensor["dtype"]] for file in files for name, tensor in file.items()}
    for name, parameter in network.named_parameters():
        parameter.data = parameter.to(getattr(torch, kinds.get(name, usual))).float()
    rounded = logits(network)
    del network
    found = logits(load_base(str(merged), dtype=torch.float32))

    def share(one: Any, other: Any) -> float:
        return float((one - other).abs().max()) / whole

    off, effect = share(found, wanted), share(before, wanted)
    words = f"logits are off by {off:.1e} of the largest; the adapter changes them by {effect:.1e}"
    if share(added, wanted) > ORDER or share(found, rounded) > SAME:
        raise ConfigError(
            f"{merged}: expected the logits of the base with its adapter, found: {words}"
        )
    return f"verified: {words}"


def load_tokenizer(name: str) -> Any:
    """Return a model's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


def load_base(name: str, dtype: Any = "auto", **how: Any) -> Any:
    """Return a model, in the dtype on disk if no other is named; one that sees, if it is."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    return vision.auto_class(Path(name)).from_pretrained(name, dtype=dtype, **how)


def load_adapter(base: Any, adapter: Path) -> Any:
    """Return the base with a trained adapter, which must have weights for all its layers."""
    from train.model.peft import PeftModel, without_bitsandbytes

    with warnings.catch_warnings(), without_bitsandbytes():
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
