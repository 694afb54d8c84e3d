"""What a model says before and after its training: `python -m train.tools.generate`.

Loads the base model, on the GPUs where there are any, then the adapter on top of it as PEFT does
anywhere, and lets both continue the same prompt without dice, so that the answer is the same
every time: the likeliest token, of which one that was said before counts less.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Unanswered(Exception):  # noqa: N818  (said of the prompt, not of the program)
    """Nothing can be said to this; the message says why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the prompt and what base and adapter say."""
    parser = argparse.ArgumentParser(prog="python -m train.tools.generate", description=__doc__)
    parser.add_argument("--model", required=True, help="the base model: a folder or a hub id")
    parser.add_argument("--adapter", type=Path, help="folder of the adapter that was trained")
    parser.add_argument(
        "--prompt", required=True, help="text to continue, or with --chat to answer"
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="ask as a user in the model's chat template: for what was trained on messages",
    )
    parser.add_argument("--max-new-tokens", type=int, default=60, metavar="N", help="at most (60)")
    options = parser.parse_args(argv)
    if options.max_new_tokens < 1:
        parser.error(f"--max-new-tokens: expected 1 or more, found {options.max_new_tokens}")
    if options.adapter and not (options.adapter / "adapter_config.json").exists():
        found = "no adapter_config.json in it" if options.adapter.is_dir() else "no such folder"
        print(f"error: --adapter: expected an exported adapter, found {found}", file=sys.stderr)
        print("hint: a finished training leaves one in its output_dir/adapter", file=sys.stderr)
        return 2
    words = as_question if options.chat else as_text
    try:
        said = answers(
            options.model, options.adapter, options.prompt, options.max_new_tokens, words=words
        )
    except Unanswered as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for speaker, text in {"prompt": options.prompt, **said}.items():
        print(f"--- {speaker}\n{text.strip() or '(nothing)'}")
    return 0


def as_text(tokenizer: Any, prompt: str) -> list[int]:  # noqa: ANN401  (a transformers tokenizer)
    """Return a text to continue as training gives it: with the beginning's mark, without an end's.

    Args:
        tokenizer: The model's.
        prompt: The text.
    """
    ids: list[int] = tokenizer(prompt)["input_ids"]
    return ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] else ids


def as_question(tokenizer: Any, prompt: str) -> list[int]:  # noqa: ANN401  (as above)
    """Return a question to answer as training on messages gives it.

    Args:
        tokenizer: The model's.
        prompt: What the user says.

    Raises:
        Unanswered: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise Unanswered(
            "--chat: expected a tokenizer with a chat template, found none\n"
            "hint: without --chat the prompt is continued as text"
        )
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def answers(
    model: str,
    adapter: Path | None,
    prompt: str,
    most: int,
    *,
    words: Callable[[Any, str], list[int]] = as_text,
) -> dict[str, str]:
    """Return what the base, and the adapter where there is one, make of a prompt.

    Args:
        model: The base model.
        adapter: What was trained.
        prompt: What is said to them.
        most: New tokens at most.
        words: How it is said: `as_text` or `as_question`.

    Raises:
        Unanswered: there is no such model, or the prompt or the adapter is nothing for it.
    """
    # ruff: noqa: PLC0415  (they take seconds: not for --help)
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
        ids = words(tokenizer, prompt)
        # As the weights are on disk: 8 billion in float32 would fill a GPU that has room for them.
        base = AutoModelForCausalLM.from_pretrained(
            model, dtype="auto", device_map="auto" if torch.cuda.is_available() else None
        )
    except (OSError, ValueError) as error:
        found = _first(error)
        raise Unanswered(f"--model: expected a causal language model, found: {found}") from error
    room = getattr(base.config, "max_position_embeddings", None) or sys.maxsize
    if not ids or len(ids) + most > room:
        raise Unanswered(
            f"--prompt: expected 1 to {max(0, room - most)} tokens, so that {most} new ones find "
            f"room in the model's {room}, found {len(ids)}"
        )
    said = {"base": _continue(base, tokenizer, ids, most)}
    if adapter is not None:
        from peft import PeftModel

        with warnings.catch_warnings():
            # peft asks transformers by a name that it will have to drop; nothing to us.
            warnings.filterwarnings("ignore", message=".is_gradient_checkpointing")
            # No weight for some layer: that is the base, said again in the adapter's name.
            warnings.filterwarnings("error", message="Found missing adapter keys")
            try:
                trained = PeftModel.from_pretrained(base, str(adapter))
            except (
                OSError, KeyError, RuntimeError, SafetensorError, UserWarning, ValueError
            ) as error:  # fmt: skip
                found = f"{type(error).__name__}: {_first(error)}"
                raise Unanswered(
                    f"--adapter: expected an adapter of {model}, found: {found}"
                ) from error
        said["adapter"] = _continue(trained, tokenizer, ids, most)
    return said


def _first(error: Exception) -> str:
    """Return what a library says first, without the names of all the weights it says it of."""
    return str(error).strip().splitlines()[0].partition(": [")[0]


def _continue(model: Any, tokenizer: Any, ids: list[int], most: int) -> str:  # noqa: ANN401
    import torch

    given = torch.tensor([ids], device=model.device)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    made = model.eval().generate(
        input_ids=given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=most,
        do_sample=False,
        repetition_penalty=1.2,
        pad_token_id=pad,
    )
    text = tokenizer.decode(made[0][len(ids) :], skip_special_tokens=True)
    assert isinstance(text, str)
    return text


if __name__ == "__main__":
    sys.exit(main())
