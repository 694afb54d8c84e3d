"""Tiny random models that see images, with real processors of transformers and images on disk."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.train.tiny import VOCABULARY, trained_tokenizer

TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY + 64, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    "initializer_range": 0.2, "tie_word_embeddings": False,
}  # fmt: skip
TOWER: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "initializer_range": 0.2,
}  # fmt: skip
PATCH = 14
IN_PARTS = (
    "{%% for m in messages %%}<|im_start|>{{ m.role }}\n"
    "{%% for part in m.content %%}"
    "{%% if part.type == 'image' %%}%s{%% else %%}{{ part.text }}{%% endif %%}"
    "{%% endfor %%}<|im_end|>\n{%% endfor %%}"
    "{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}"
)
TOKENS: dict[str, dict[str, str]] = {
    "llava": {"image_token": "<image>"},
    "qwen2_5_vl": {
        "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
    },
    "gemma3": {
        "image_token": "<image_soft_token>", "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
    },
    "idefics3": {"image_token": "<image>"},
}  # fmt: skip
MARKS = {
    "llava": "<image>\n", "qwen2_5_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "gemma3": "<start_of_image>", "idefics3": "<image>",
}  # fmt: skip
"""What each family's template writes for an image."""


def _tokenizer(name: str) -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    found = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(trained_tokenizer()),
        eos_token="<eos>",
        pad_token="<eos>",
        extra_special_tokens=TOKENS[name],
        chat_template=IN_PARTS % MARKS[name],
    )
    found.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return found


def _processor(name: str) -> tuple[Any, Any]:
    """Return a processor, and the configuration of a model that goes with it."""
    import transformers as hf

    tokenizer = _tokenizer(name)
    template = tokenizer.chat_template
    token = tokenizer.convert_tokens_to_ids
    if name == "llava":
        square = {"height": 2 * PATCH, "width": 2 * PATCH}
        images = hf.CLIPImageProcessorPil(size={"shortest_edge": 2 * PATCH}, crop_size=square)
        how = {"patch_size": PATCH, "vision_feature_select_strategy": "default"}
        processor = hf.LlavaProcessor(
            images, tokenizer, num_additional_image_tokens=1, chat_template=template, **how
        )
        tower = hf.CLIPVisionConfig(**TOWER, image_size=2 * PATCH, patch_size=PATCH)
        text = hf.LlamaConfig(**TEXT)
        return processor, hf.LlavaConfig(
            vision_config=tower, text_config=text, image_token_id=token("<image>"),
            vision_feature_layer=-2, tie_word_embeddings=False,
        )  # fmt: skip
    if name == "gemma3":
        square = {"height": 4 * PATCH, "width": 4 * PATCH}
        images = hf.Gemma3ImageProcessorPil(size=square)
        processor = hf.Gemma3Processor(
            images, tokenizer, image_seq_length=4, chat_template=template
        )
        tower = hf.SiglipVisionConfig(**TOWER, image_size=4 * PATCH, patch_size=PATCH)
        layers = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
        text = hf.Gemma3TextConfig(**TEXT | {"query_pre_attn_scalar": 8} | layers)
        return processor, hf.Gemma3Config(
            vision_config=tower, text_config=text, mm_tokens_per_image=4,
            image_token_id=token("<image_soft_token>"), boi_token_id=token("<start_of_image>"),
            eoi_token_id=token("<end_of_image>"), tie_word_embeddings=False,
        )  # fmt: skip
    if name == "idefics3":
        side = 2 * PATCH
        images = hf.Idefics3ImageProcessorPil(
            size={"longest_edge": 2 * side}, max_image_size={"longest_edge": side}
        )
        processor = hf.Idefics3Processor(images, tokenizer, image_seq_len=1, chat_template=template)
        tower = hf.models.idefics3.Idefics3VisionConfig(**TOWER, image_size=side, patch_size=PATCH)
        return processor, hf.Idefics3Config(
            vision_config=tower, text_config=hf.LlamaConfig(**TEXT),
            image_token_id=token("<image>"), scale_factor=2, tie_word_embeddings=False,
        )  # fmt: skip
    raise ValueError(name)


def _qwen(folder: Path) -> Any:
    """Write Qwen's processor as the hub has it; return the model's configuration.

    transformers makes none without torchvision, which it needs for videos.
    """
    import transformers as hf

    tokenizer = _tokenizer("qwen2_5_vl")
    tokenizer.save_pretrained(folder)
    token = tokenizer.convert_tokens_to_ids
    images = {
        "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2,
        "temporal_patch_size": 2, "min_pixels": 28 * 28, "max_pixels": 84 * 84,
        "processor_class": "Qwen2_5_VLProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    tower = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
        "out_hidden_size": 32, "fullatt_block_indexes": [1], "window_size": 56,
        "initializer_range": 0.2,
    }  # fmt: skip
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    text = TEXT | {"rope_parameters": rope}
    return hf.Qwen2_5_VLConfig(
        vision_config=tower, text_config=text, tie_word_embeddings=False,
        image_token_id=token("<|image_pad|>"), video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )  # fmt: skip


def make_seeing(folder: Path, name: str, *, seed: int = 0) -> Path:
    """Write a model of a family and its processor as the hub has them."""
    import torch
    from transformers import AutoModelForImageTextToText

    folder.mkdir(parents=True)
    if name == "qwen2_5_vl":
        shape = _qwen(folder)
    else:
        processor, shape = _processor(name)
        processor.save_pretrained(folder)
    torch.manual_seed(seed)
    AutoModelForImageTextToText.from_config(shape).save_pretrained(folder)
    return folder


def make_image(path: Path, width: int, height: int, seed: int = 0) -> Path:
    """Write an image of noise."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    noise = random.Random(seed).randbytes(width * height * 3)
    Image.frombytes("RGB", (width, height), noise).save(path)
    return path


def make_chats(folder: Path, count: int, *, every: int = 4) -> Path:
    """Write chats about images of different sizes; one in `every` has none, one has two."""
    rng = random.Random(1)
    words = [rng.choice("bdfklm") + rng.choice("aeiou") for _ in range(30)]

    def text() -> str:
        return " ".join(rng.choices(words, k=rng.randint(2, 9)))

    lines = []
    for number in range(count):
        images = (1, 0, 2, 1)[number % every]
        names = [f"images/{number}-{at}.{'jpg' if at else 'png'}" for at in range(images)]
        for at, name in enumerate(names):
            make_image(folder / name, rng.randint(20, 120), rng.randint(20, 90), number + at)
        content = [{"type": "text", "text": text()}]
        content[number % 2 : number % 2] = [{"type": "image", "path": name} for name in names]
        chat = [{"role": "user", "content": content}, {"role": "assistant", "content": text()}]
        if number % 3 == 0:
            chat += [{"role": "user", "content": text()}, {"role": "assistant", "content": text()}]
        lines.append(json.dumps({"messages": chat}))
    path = folder / "chats.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path
