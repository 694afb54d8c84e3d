"""Writes docs/reference/train-config.md from the keys themselves: `python docs/make_train_config.py`."""
# ruff: noqa: INP001, E501  (a script, not a module of a package; prose has a line a sentence)

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
from collections.abc import Mapping
from pathlib import Path

from train.config import foreign
from train.config.config import Config
from train.config.parse import TYPES, describe

SWITCHES = {
    "sample_packing": "batching: packed",
    "group_by_length": "batching: balanced",
    "bf16": "dtype: bfloat16",
    "lora": "method: lora",
    "lora_target_linear": "lora_target_modules: [all-linear]",
    "flash_attention": "attn_implementation: flash_attention_2",
    "sdp_attention": "attn_implementation: sdpa",
    "ddp": "parallel: ddp",
    "auto_resume_from_checkpoints": "resume_from_checkpoint: latest",
    "use_tensorboard": "report_to: [tensorboard]",
}
PAGE = Path(__file__).parent / "reference" / "train-config.md"

HEAD = """\
# Keys of a training

Every key of `python -m train`, with its default and its meaning. [Fine-tune your model](../how-to/fine-tune-your-model.md) shows a first configuration.

Put a key into the file of `--config`, or set it on the command line. These three mean the same:

```sh
python -m train --config config.yaml --learning-rate 1e-4
python -m train --config config.yaml --learning_rate=1e-4
python -m train --config config.yaml --set learning_rate=1e-4
```

- A flag overrides the file. If you give a flag twice, the last one wins.
- Headings in the file (`model:`, `data:`, …) are optional: a key may be under any heading or none. Under `lora:` you can also write `r`, `alpha`, `dropout` and `target_modules`.
- An unknown key is an error that names the nearest known key. A wrong value is reported as `file:line: key: expected, found`. All errors of a file are reported at once, with exit code 2.
- Keys of other programs are accepted if they mean the same: see the last column, and [Keys of other programs](#keys-of-other-programs). `packing: true`, `bf16: true`, `use_lora: false`, `group_by_length: true`, `save_strategy: epoch` and `eval_strategy: epoch` work too.
- Keys that belong to the launcher (`num_nodes`, `gpus_per_node`, `master_addr`, …) are refused, with a message that tells you so.

The batch of a step is `per_device_train_batch_size` x ranks x `gradient_accumulation_steps`.

With `global_batch_size` the accumulation is computed for you, so the batch is the same on any number of nodes. If it does not divide evenly, the last micro-batch of some ranks gets padding samples, which have no weight. The run then prints a warning.
"""


def render() -> str:
    """Return the page."""
    sections: dict[str, list[dataclasses.Field[object]]] = {}
    for item in dataclasses.fields(Config):
        sections.setdefault(item.metadata["section"], []).append(item)
    blocks, about = [HEAD], texts()
    for name, items in sections.items():
        rows = ["| key | value | default | what it means | also |", "|---|---|---|---|---|"]
        rows += [_row(item, about[item.name]) for item in items]
        blocks.append(f"## {name}\n\n" + "\n".join(rows) + "\n")
    return "\n".join((*blocks, _foreign()))


def _foreign() -> str:
    """Return what becomes of keys that only other programs have."""
    refused = {**foreign.REFUSED, **foreign.ALWAYS}
    rows = [
        "## Keys of other programs",
        "",
        "Besides the spellings above, clusterctl's training program knows these keys of axolotl, Surogate and transformers' Trainer.",
        "",
        "| their key | same as |",
        "|---|---|",
        *(f"| `{key}: true` | `{ours}` |" for key, ours in SWITCHES.items()),
        "",
        "These keys change no result here. They are accepted with a note:",
        "",
        "| their key | why |",
        "|---|---|",
        *_grouped(foreign.NO_EFFECT),
        "",
        "These keys are refused, all of a file in one error. A value that is empty, 0 or false is accepted:",
        "",
        "| their key | what the error says |",
        "|---|---|",
        *_grouped(refused),
        "",
        "Keys that begin with these words are refused too: "
        + ", ".join(f"`{start}`" for start in foreign.REFUSED_STARTS)
        + ".",
        "",
    ]
    return "\n".join(rows)


def _grouped(keys: Mapping[str, str]) -> list[str]:
    """Return a row for each meaning, with all keys that have it."""
    groups: dict[str, list[str]] = {}
    for key, meaning in keys.items():
        groups.setdefault(meaning, []).append(f"`{key}`")
    return [f"| {' '.join(names)} | {meaning} |" for meaning, names in groups.items()]


def texts() -> dict[str, str]:
    """Return what each key means: the text below it in the source."""
    (config,) = ast.parse(inspect.getsource(Config)).body
    assert isinstance(config, ast.ClassDef)
    return {
        key.target.id: " ".join(text.value.value.split())
        for key, text in itertools.pairwise(config.body)
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(text.value.value, str)
    }


def _row(item: dataclasses.Field[object], text: str) -> str:
    kind = describe(TYPES[item.name]).replace("|", "\\|")
    text = text.replace("|", "\\|")
    also = " ".join(f"`{name}`" for name, ours in foreign.ALIASES.items() if ours == item.name)
    return f"| `{item.name}` | {kind} | {_default(item.default)} | {text} | {also} |"


def _default(value: object) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`"
    return f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
