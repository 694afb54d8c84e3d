"""Chat templates that do what those of published models do, in words of these tests.

What they share with the real ones: the marks, what becomes of a system message, the beginning of an
answer, what follows the last answer, thoughts, tools, and what they refuse.
"""

from __future__ import annotations

from tests.train.data.chat_templates.chatml import CHATML_FAMILIES, QWEN
from tests.train.data.chat_templates.deepseek_glm import DEEPSEEK_GLM_FAMILIES, GLM
from tests.train.data.chat_templates.family import BEGIN, END, OWN, Family
from tests.train.data.chat_templates.gemma_phi import GEMMA, GEMMA_PHI_FAMILIES
from tests.train.data.chat_templates.llama import LLAMA, LLAMA_FAMILIES, MISTRAL
from tests.train.data.chat_templates.others import OTHER_FAMILIES

FAMILIES = {"glm": GLM, "llama": LLAMA, "qwen": QWEN, "mistral": MISTRAL, "gemma": GEMMA}
"""Those that differ most."""
GROUPS = {
    "ChatML": CHATML_FAMILIES,
    "Llama and Mistral": LLAMA_FAMILIES,
    "Gemma and Phi": GEMMA_PHI_FAMILIES,
    "GLM, DeepSeek and gpt-oss": DEEPSEEK_GLM_FAMILIES,
    "Others": OTHER_FAMILIES,
}
TEMPLATES = {key: family for group in GROUPS.values() for key, family in group.items()}
"""All of them."""

__all__ = [
    "BEGIN",
    "END",
    "FAMILIES",
    "GEMMA",
    "GLM",
    "GROUPS",
    "LLAMA",
    "MISTRAL",
    "OWN",
    "QWEN",
    "TEMPLATES",
    "Family",
]
