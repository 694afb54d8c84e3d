"""Flash attention is handed the bounds of packed documents, and does not look for them itself."""

from __future__ import annotations

from importlib.metadata import version
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.train.families import COMMON, FAMILIES
from train import versions
from train.data.collate import collate

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.torch

DOCUMENTS = [np.arange(length) + length for length in (7, 11, 5)]


class Samples:
    """Three documents."""

    def sample(self, number: int) -> tuple[Any, Any]:
        return DOCUMENTS[number], DOCUMENTS[number]


def refuse(*_: object) -> None:
    raise AssertionError("a layer looked for the bounds of documents on the device")


@pytest.mark.parametrize("family", ["llama", "glm4_moe", "gemma3_text"])
def test_flash_attention_takes_the_bounds_of_documents(
    monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    import torch
    from torch.nn import functional
    from transformers import (
        AttentionInterface,
        AttentionMaskInterface,
        AutoConfig,
        AutoModelForCausalLM,
        modeling_flash_attention_utils,
    )
    from transformers.integrations.flash_attention import flash_attention_forward
    from transformers.masking_utils import flash_attention_mask

    from train.model.model import Model

    seen: list[list[int]] = []

    def varlen(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
        max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float | None = None,
        *, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    ) -> Tensor:  # fmt: skip
        """Do what flash_attn_varlen_func does."""
        assert cu_seqlens_q.dtype == torch.int32
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        assert (type(max_seqlen_q), max_seqlen_q) == (type(max_seqlen_k), max_seqlen_k) == (int, 11)
        assert causal
        bounds = cu_seqlens_q.tolist()
        seen.append(bounds)
        documents = []
        for first, end in pairwise(bounds):
            query, key, value = (x[first:end].transpose(0, 1) for x in (q, k, v))
            attended = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=softmax_scale, enable_gqa=True
            )
            documents.append(attended.transpose(0, 1))
        return torch.cat(documents)

    def imports(*_: object, **__: object) -> tuple[object, ...]:
        return refuse, varlen, None, None, None

    monkeypatch.setattr(modeling_flash_attention_utils, "_lazy_imports", imports)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    # The oldest transformers looks for them all the same, and takes those that it is handed.
    older = versions.release(version("transformers")) < (5, 24)
    looks = (lambda *_, **__: False) if older else refuse
    monkeypatch.setattr(modeling_flash_attention_utils, "_is_packed_sequence", looks)
    monkeypatch.setitem(
        AttentionInterface._global_mapping, "flash_for_tests", flash_attention_forward
    )
    monkeypatch.setitem(
        AttentionMaskInterface._global_mapping, "flash_for_tests", flash_attention_mask
    )
    batch = collate(Samples(), [np.arange(3)], packed=True)  # type: ignore[arg-type]
    shape = AutoConfig.for_model(family, **COMMON | FAMILIES[family])
    losses = []
    for attention in ("sdpa", "flash_for_tests"):
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(shape, attn_implementation=attention)
        model = Model(
            network, network, "single", None, torch.float32, (),  # type: ignore[arg-type]
            flash="flash" in attention,
        )  # fmt: skip
        assert batch.position_ids is not None
        arrays = (batch.input_ids, batch.labels, batch.position_ids)
        ids, labels, positions = map(torch.from_numpy, arrays)
        loss = model.loss(ids, labels, positions)
        losses.append(loss.total.item())
    assert seen == [[0, 7, 18, 23, 24]] * shape.num_hidden_layers
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
