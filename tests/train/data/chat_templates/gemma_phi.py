"""Templates of Gemma and Phi."""

# ruff: noqa: E501  (a line of a template is a line of what it writes)
from __future__ import annotations

from tests.train.data.chat_templates.family import family

# No system message (Gemma 2), or as a part of the first question (Gemma 3); no tools.
GEMMA_SOURCE = r"""
{{- bos_token -}}
{%- set ns = namespace(first='') -%}
SYSTEM
{%- for m in messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('roles take turns') -}}{%- endif -%}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (ns.first if loop.first else '') -}}
{#<#}{{- m.content | trim + '<end_of_turn>' -}}{#>#}{{- '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}
"""
GEMMA2 = family(
    GEMMA_SOURCE.replace(
        "SYSTEM",
        "{%- if messages[0].role == 'system' -%}{{- raise_exception('no system') -}}{%- endif -%}",
    ),
    name="Gemma 2",
    marks=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    bos="<bos>",
    eos="<eos>",
    end="<end_of_turn>",
)
GEMMA = family(
    GEMMA_SOURCE.replace(
        "SYSTEM",
        r"{%- if messages[0].role == 'system' -%}{%- set ns.first = messages[0].content + '\n\n' -%}"
        "{%- set messages = messages[1:] -%}{%- endif -%}",
    ),
    name="Gemma 3",
    marks=GEMMA2.marks,
    bos="<bos>",
    eos="<eos>",
    end="<end_of_turn>",
)

# The end of a text follows a chat that asks for no answer; tools are nowhere.
PHI_SOURCE = r"""
{%- for m in messages -%}
{%- if m.role in ('user', 'assistant') or (m.role == 'system' and WRITTEN) -%}
{{- '<|' + m.role + '|>\n' -}}{#<#}{{- m.content + '<|end|>' -}}{#>#}{{- '\n' -}}
{%- endif -%}
{%- endfor -%}
{{- '<|assistant|>\n' if add_generation_prompt else eos_token -}}
"""
PHI_MARKS = ("<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
PHI3 = family(
    PHI_SOURCE.replace("WRITTEN", "true"),
    name="Phi 3",
    marks=PHI_MARKS,
    eos="<|endoftext|>",
    end="<|end|>",
    strips=True,
)
PHI35 = family(
    PHI_SOURCE.replace("WRITTEN", "m.content"),
    name="Phi 3.5",
    marks=PHI_MARKS,
    eos="<|endoftext|>",
    end="<|end|>",
    strips=True,
)

PHI4 = family(
    r"""
{%- for m in messages -%}
{%- if m.role in ('system', 'user', 'assistant') -%}
{{- '<|im_start|>' + m.role + '<|im_sep|>' -}}{#<#}{{- m.content + '<|im_end|>' -}}{#>#}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant<|im_sep|>' -}}{%- endif -%}
""",
    name="Phi 4",
    marks=("<|endoftext|>", "<|im_start|>", "<|im_sep|>", "<|im_end|>"),
    eos="<|im_end|>",
    end="<|im_end|>",
)
# As it was published first: a question brings the header of its answer.
PHI4_FIRST = family(
    r"""
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}{#<#}{{- m.content + '<|im_end|>' -}}{#>#}
{%- elif m.role in ('system', 'user') -%}
{{- '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' -}}
{{- '<|im_start|>assistant<|im_sep|>' if m.role == 'user' -}}
{%- endif -%}
{%- endfor -%}
""",
    name="Phi 4 (as first published)",
    marks=PHI4.marks,
    eos="<|im_end|>",
    end="<|im_end|>",
)

GEMMA_PHI_FAMILIES = {
    "gemma2": GEMMA2,
    "gemma": GEMMA,
    "phi3": PHI3,
    "phi3.5": PHI35,
    "phi4": PHI4,
    "phi4-first": PHI4_FIRST,
}
