"""Chat templates that do what those of five model families do, in words of these tests.

What they share with the real ones: the marks, what becomes of a system message, the beginning of an
answer, what follows the last answer, thoughts, tools, and what they refuse.
"""

# ruff: noqa: E501  (a line of a template is a line of what it writes)
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family's template and its marks."""

    template: str
    marks: tuple[str, ...]
    """Tokens between messages."""
    words: tuple[str, ...] = ()
    """Other tokens of its own, which are no marks: thoughts and calls."""
    eos: str
    """The tokenizer's end of a text."""
    end: str
    """What ends an answer at inference."""


GLM = Family(
    # Writes nothing after an answer: the next message's mark ends it. Thoughts before the last
    # question are dropped.
    template="""[gMASK]<sop>
{%- if tools %}<|system|>
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}
{%- set ns = namespace(asked=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}<|user|>
{{ m.content }}{{ '/nothink' if enable_thinking is defined and not enable_thinking }}
{%- elif m.role == 'assistant' %}<|assistant|>
{%- set thought = m.reasoning_content or '' %}{% set said = m.content %}
{%- if '</think>' in said %}
{%- set thought = said.split('</think>')[0].split('<think>')[-1] %}
{%- set said = said.split('</think>')[-1] %}
{%- endif %}
{%- if loop.index0 > ns.asked and thought %}{{ '\\n<think>' + thought.strip() + '</think>' }}
{%- else %}{{ '\\n<think></think>' }}{% endif %}
{%- if said.strip() %}{{ '\\n' + said.strip() }}{% endif %}
{%- for call in m.tool_calls or [] %}
<tool_call>{{ call.function.name }}
{% for key, value in call.function.arguments.items() %}<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}
<tool_response>
{{ m.content }}
</tool_response>
{%- elif m.role == 'system' %}<|system|>
{{ m.content }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>
{{- '\\n<think></think>' if enable_thinking is defined and not enable_thinking }}{% endif %}""",
    marks=(
        "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
        "<|endoftext|>",
    ),
    words=("<think>", "</think>", "<tool_call>", "</tool_call>", "/nothink"),
    eos="<|endoftext|>",
    end="<|user|>",
)  # fmt: skip

LLAMA = Family(
    # A system message of its own always; one call a message; results with the role ipython.
    template="""{{ bos_token }}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}
{%- set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif -%}
<|start_header_id|>system<|end_header_id|>

Today: {{ date_string or '26 Jul 2024' }}

{{ system }}<|eot_id|>
{%- if tools %}{% set first = messages[0].content | trim %}{% set messages = messages[1:] -%}
<|start_header_id|>user<|end_header_id|>

Functions:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{ first }}<|eot_id|>{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call only') }}{% endif -%}
<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>
{%- elif m.role == 'tool' -%}
<|start_header_id|>ipython<|end_header_id|>

{{ m.content | tojson }}<|eot_id|>
{%- else -%}
<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    marks=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    eos="<|eot_id|>",
    end="<|eot_id|>",
)

QWEN = Family(
    # Thoughts after the last question only, empty ones in the last answer; results are a user's.
    template="""{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}# Tools
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}
{%- set ns = namespace(asked=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{%- set thought = m.reasoning_content or '' %}{% set said = m.content %}
{%- if not thought and '</think>' in said %}
{%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.asked and (loop.last or thought) %}
{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{% endif %}{{ said }}
{%- for call in m.tool_calls or [] %}
{%- if not loop.first or said %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}""",
    marks=("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    words=("<think>", "</think>", "<tool_call>", "</tool_call>"),
    eos="<|im_end|>",
    end="<|im_end|>",
)

MISTRAL = Family(
    # Writes system and tools before the last question, and the system only while it is the last
    # message; no beginning of an answer; calls have ids of nine characters.
    template="""{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}
{%- set messages = messages[1:] %}{% endif %}
{%- set asked = messages | selectattr('role', 'equalto', 'user') | list %}{{ bos_token }}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and m == asked[-1] %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- if loop.last and system is defined %}[INST] {{ system + '\\n\\n' + m.content }}[/INST]
{%- else %}[INST] {{ m.content }}[/INST]{% endif %}
{%- elif m.tool_calls %}[TOOL_CALLS] [
{%- for call in m.tool_calls %}
{%- if call.id is not defined or call.id | length != 9 %}{{ raise_exception('ids have 9') }}{% endif %}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}
{%- if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}
{%- elif m.role == 'assistant' %}{{ ' ' + m.content | trim + eos_token }}
{%- elif m.role == 'tool' %}[TOOL_RESULTS] {"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- else %}{{ raise_exception('only user, assistant and tool') }}{% endif %}{% endfor %}""",
    marks=("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
           "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    eos="</s>",
    end="</s>",
)  # fmt: skip

GEMMA = Family(
    # The system message is a part of the first question; questions and answers take turns; no tools.
    template="""{{ bos_token }}
{%- if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}
{%- set messages = messages[1:] %}{% else %}{% set first = '' %}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles take turns') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
{{- (first if loop.first else '') + m.content | trim }}{{ '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    marks=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    eos="<eos>",
    end="<end_of_turn>",
)

FAMILIES = {"glm": GLM, "llama": LLAMA, "qwen": QWEN, "mistral": MISTRAL, "gemma": GEMMA}
