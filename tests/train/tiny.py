"""A language model, a tokenizer and a corpus for tests, made from what Python ships."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from pydoc_data.topics import topics

VOCABULARY = 384
LONGEST = 48


def paragraphs() -> list[str]:
    """Return the paragraphs of Python's own help, in an order that does not change."""
    texts = (text for _, text in sorted(topics.items()))
    return [" ".join(p.split()) for text in texts for p in text.split("\n\n") if len(p) > 80]


def make_corpus(path: Path, count: int, seed: int = 0) -> Path:
    """Write samples of different lengths."""
    chosen = random.Random(seed).sample(paragraphs(), count)
    rng = random.Random(seed)
    lines = (json.dumps({"text": text[: rng.randint(40, 160)]}) for text in chosen)
    path.write_text("\n".join(lines) + "\n")
    return path


@functools.cache
def trained_tokenizer() -> str:
    """Return a tokenizer as its file has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(paragraphs()[:300], trainer)
    return str(tokenizer.to_str())


def make_tokenizer(folder: Path, **more: str) -> None:
    """Write a tokenizer; `more` are its other values, such as its chat template."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(trained_tokenizer())
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", **more)
    fast.save_pretrained(folder)


def make_model(folder: Path, *, tied: bool = False, seed: int = 0, layers: int = 2) -> Path:
    """Write a Llama of a few thousand weights, and a tokenizer trained for it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    make_tokenizer(folder)
    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        initializer_range=0.2,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    return folder
