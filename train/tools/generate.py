"""Let the base model and the trained adapter continue a prompt: `python -m train.tools.generate`.

Both run on the GPUs if there are any, and choose the likeliest token each time, as PEFT and other
programs do without sampling: the answers are the same every time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from train.config.config import Config
from train.data import hub
from train.data.chat.template import dated
from train.data.encoding import begin_of
from train.errors import DONE, USAGE, ConfigError
from train.tools.merge import (
    ADAPTER,
    load_adapter,
    load_base,
    load_tokenizer,
    loaded,
    require_base,
)

OTHER_BASE = "take the adapter on another base than it was trained on"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the prompt, and what base and adapter generate."""
    parser = argparse.ArgumentParser(prog="python -m train.tools.generate", description=__doc__)
    parser.add_argument("--model", required=True, help="the base model: a folder or a hub id")
    parser.add_argument("--adapter", type=Path, help="folder of the trained adapter")
    parser.add_argument("--other-base", action="store_true", help=OTHER_BASE)
    parser.add_argument(
        "--prompt", required=True, help="text to continue, or with --chat to answer"
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="ask as a user in the model's chat template: for models trained on messages",
    )
    parser.add_argument("--max-new-tokens", type=int, default=60, metavar="N", help="at most (60)")
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="P",
        help="make tokens that have occurred less likely; 1.2 ends loops of small models (1: not)",
    )
    options = parser.parse_args(argv)
    if options.max_new_tokens < 1:
        parser.error(f"--max-new-tokens: expected 1 or more, found {options.max_new_tokens}")
    penalty = options.repetition_penalty
    if not penalty > 0:
        parser.error(f"--repetition-penalty: expected more than 0, found {penalty}")
    encode = as_question if options.chat else as_text
    asked = (options.model, options.adapter, options.prompt, options.max_new_tokens)
    try:
        if options.adapter and not options.other_base:
            require_own_base(options.adapter, options.model)
        texts = answers(*asked, encode, penalty=penalty)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    print(f"sampling: greedy, repetition penalty {penalty:g}", file=sys.stderr)
    for title, text in {"prompt": options.prompt, **texts}.items():
        print(f"--- {title}\n{text.strip() or '(nothing)'}")
    if texts.get("adapter") == texts["base"]:
        print(
            "note: the adapter changes no word here: train longer, or ask something from your data",
            file=sys.stderr,
        )
    return DONE


def require_own_base(adapter: Path, model: str) -> None:
    """Refuse an adapter that was trained on another model, if it tells on which."""
    if (adapter / ADAPTER).exists():
        folder = hub.model_folder(Config(name_or_path=model, dataset_path="-"))
        require_base(adapter, folder, "--other-base takes this one")


def as_text(tokenizer: Any, prompt: str) -> list[int]:
    """Return the ids of a text to continue: with the begin mark once, without an end mark."""
    ids: list[int] = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    begin = begin_of(tokenizer)
    return ids if ids[: len(begin)] == begin else [*begin, *ids]


def as_question(tokenizer: Any, prompt: str) -> list[int]:
    """Return the ids of a user's question in the chat template, as in training on messages."""
    if not tokenizer.chat_template:
        raise ConfigError(
            "--chat: expected a tokenizer with a chat template, found none",
            hint="without --chat the prompt is continued as text",
        )
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        tokenize=False,
        add_generation_prompt=True,
        chat_template=dated(tokenizer.get_chat_template()),
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def answers(
    model: str,
    adapter: Path | None,
    prompt: str,
    most: int,
    encode: Callable[[Any, str], list[int]] = as_text,
    *,
    penalty: float = 1.0,
) -> dict[str, str]:
    """Return how the base, and the adapter if there is one, continue a prompt by `most` tokens."""
    if adapter and not (adapter / ADAPTER).exists():
        found = f"no {ADAPTER} in it" if adapter.is_dir() else "no such folder"
        raise ConfigError(
            f"--adapter: expected an exported adapter, found {found}",
            hint="a finished training writes one to its output_dir/adapter",
        )
    import torch

    device_map = "auto" if torch.cuda.is_available() else None
    wanted = "--model: expected a causal language model"
    tokenizer = loaded(lambda: load_tokenizer(model), wanted)
    ids = encode(tokenizer, prompt)
    base = loaded(lambda: load_base(model, device_map=device_map), wanted)
    room = getattr(base.config, "max_position_embeddings", None) or sys.maxsize
    if not ids or len(ids) + most > room:
        message = (
            f"--prompt: expected 1 to {max(0, room - most)} tokens, so that {most} new ones fit "
            f"the model's {room} positions, found {len(ids)}"
        )
        raise ConfigError(message)
    texts = {"base": continued(base, tokenizer, ids, most, penalty)}
    if adapter is not None:
        wanted = f"--adapter: expected an adapter of {model}"
        trained = loaded(lambda: load_adapter(base, adapter), wanted)
        texts["adapter"] = continued(trained, tokenizer, ids, most, penalty)
    return texts


def continued(model: Any, tokenizer: Any, ids: list[int], most: int, penalty: float = 1.0) -> str:
    """Return how a model continues some tokens, always with the likeliest one."""
    import torch

    given = torch.tensor([ids], device=model.device)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    output = model.eval().generate(
        input_ids=given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=most,
        # The model's own generation_config.json may ask for other ways.
        do_sample=False,
        num_beams=1,
        temperature=None,
        top_p=None,
        top_k=None,
        repetition_penalty=penalty,
        pad_token_id=pad,
    )
    return str(tokenizer.decode(output[0][len(ids) :], skip_special_tokens=True))


if __name__ == "__main__":
    sys.exit(main())
