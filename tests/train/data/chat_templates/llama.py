"""Templates of Llama and Mistral."""

# ruff: noqa: E501  (a line of a template is a line of what it writes)
from __future__ import annotations

from tests.train.data.chat_templates.family import family

HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

# The first message of a chat brings the beginning of a text.
LLAMA3_SOURCE = r"""
{%- for m in messages -%}
{%- if loop.first -%}{{- bos_token -}}{%- endif -%}
{%- if m.role == 'assistant' -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{#<#}{#[#}{{- m.content | trim + '<|eot_id|>' -}}{#>#}{#]#}
{%- else -%}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}
"""
LLAMA3 = family(
    LLAMA3_SOURCE,
    name="Llama 3",
    marks=HEADERS,
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    end="<|eot_id|>",
)
LLAMA3_TAGS = family(
    LLAMA3_SOURCE,
    tags=True,
    name="Llama 3 with `{% generation %}`",
    marks=HEADERS,
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    end="<|eot_id|>",
)

# A system message of its own always, with a date; tools in the first question; one call a message,
# without the text before it; results with the role ipython.
LLAMA31_SOURCE = r"""
{{- bos_token -}}
{%- set given = messages[0].content | trim if messages[0].role == 'system' else '' -%}
{%- if messages[0].role == 'system' -%}{%- set messages = messages[1:] -%}{%- endif -%}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' -}}
{%- if tools -%}{{- 'Environment: ipython\n' -}}{%- endif -%}
{{- 'Today: ' + (date_string or DATE) + '\n\n' + given + '<|eot_id|>' -}}
{%- if tools -%}
{%- if not messages -%}{{- raise_exception('tools need a question') -}}{%- endif -%}
{{- '<|start_header_id|>user<|end_header_id|>\n\nFunctions:\n\n' -}}
{%- for tool in tools -%}{{- tool | tojson(indent=4) + '\n\n' -}}{%- endfor -%}
{{- messages[0].content | trim + '<|eot_id|>' -}}
{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for m in messages -%}
{%- if m.tool_calls is defined -%}
{%- if m.tool_calls | length != 1 -%}{{- raise_exception('one call only') -}}{%- endif -%}
{%- set call = m.tool_calls[0].function -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{#<#}
{{- '{"name": "' + call.name + '", "parameters": ' -}}{{- call.arguments | tojson -}}{{- '}<|eot_id|>' -}}{#>#}
{%- elif m.role == 'tool' or m.role == 'ipython' -%}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' -}}{{- m.content | tojson -}}{{- '<|eot_id|>' -}}
{%- else -%}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' -}}{#<#}{{- m.content | trim + '<|eot_id|>' -}}{#>#}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}
"""
LLAMA = family(
    LLAMA31_SOURCE.replace("DATE", "'26 Jul 2024'"),
    name="Llama 3.1, 3.3",
    marks=(*HEADERS, "<|eom_id|>", "<|python_tag|>"),
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    end="<|eot_id|>",
)
LLAMA32 = family(
    LLAMA31_SOURCE.replace("DATE", "strftime_now('%d %b %Y')"),
    name="Llama 3.2",
    marks=LLAMA.marks,
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    end="<|eot_id|>",
)

# A beginning of a text a question; the system message is a part of the first; no generation prompt.
LLAMA2 = family(
    r"""
{%- set given = '<<SYS>>\n' + messages[0].content | trim + '\n<</SYS>>\n\n' if messages[0].role == 'system' else '' -%}
{%- if given -%}{%- set messages = messages[1:] -%}{%- endif -%}
{%- for m in messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('roles take turns') -}}{%- endif -%}
{%- set said = ((given if loop.first else '') + m.content) | trim -%}
{%- if m.role == 'user' -%}{{- bos_token + '[INST] ' + said + ' [/INST]' -}}
{%- elif m.role == 'assistant' -%}{#<#}{{- ' ' + said + ' ' + eos_token -}}{#>#}
{%- endif -%}
{%- endfor -%}
""",
    name="Llama 2",
    marks=("<s>", "</s>"),
    bos="<s>",
    eos="</s>",
    end="</s>",
)

MISTRAL_MARKS = (
    "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
)  # fmt: skip

# The system message before everything; no beginning of an answer.
MISTRAL_V1 = family(
    r"""
{{- bos_token + (messages[0].content | trim + '\n\n' if messages[0].role == 'system' else '') -}}
{%- if messages[0].role == 'system' -%}{%- set messages = messages[1:] -%}{%- endif -%}
{%- for m in messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('roles take turns') -}}{%- endif -%}
{%- if m.role == 'user' -%}{{- '[INST] ' + m.content | trim + ' [/INST]' -}}
{%- elif m.role == 'assistant' -%}{#<#}{{- ' ' + m.content | trim + eos_token -}}{#>#}
{%- endif -%}
{%- endfor -%}
""",
    name="Mistral 7B (v1)",
    marks=("<s>", "</s>"),
    bos="<s>",
    eos="</s>",
    end="</s>",
)

# Writes system and tools before the last question, and the system only while it is the last
# message; no beginning of an answer; calls have ids of nine characters, and no text before them.
MISTRAL_SOURCE = r"""
{%- if messages[0].role == 'system' -%}{%- set system = messages[0].content -%}{%- set messages = messages[1:] -%}{%- endif -%}
{%- set asked = messages | selectattr('role', 'equalto', 'user') | list -%}
{%- for m in messages | rejectattr('role', 'equalto', 'tool') | selectattr('tool_calls', 'undefined') -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('roles take turns, only user, assistant and tool') -}}{%- endif -%}
{%- endfor -%}
{{- bos_token -}}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- if tools and m == asked[-1] -%}
{{- '[AVAILABLE_TOOLS]GAP' -}}{{- tools | tojson -}}{{- '[/AVAILABLE_TOOLS]' -}}
{%- endif -%}
{{- '[INST]GAP' + (system + '\n\n' if loop.last and system is defined else '') + m.content + '[/INST]' -}}
{%- elif m.tool_calls is defined -%}
{#<#}{{- '[TOOL_CALLS]GAP[' -}}
{%- for call in m.tool_calls -%}
{%- if call.id is not defined or call.id | length != 9 -%}{{- raise_exception('ids have 9') -}}{%- endif -%}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') -}}
{%- endfor -%}
{{- ']' + eos_token -}}{#>#}
{%- elif m.role == 'assistant' -%}
{#<#}{{- 'GAP' + SAID + eos_token -}}{#>#}
{%- elif m.role == 'tool' -%}
{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 -%}{{- raise_exception('ids have 9') -}}{%- endif -%}
{{- '[TOOL_RESULTS]GAP{"content": ' + m.content + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' -}}
{%- else -%}{{- raise_exception('only user, assistant and tool') -}}
{%- endif -%}
{%- endfor -%}
"""
MISTRAL = family(
    MISTRAL_SOURCE.replace("GAP", " ").replace("SAID", "m.content | trim"),
    name="Mistral 7B v0.3",
    marks=MISTRAL_MARKS,
    bos="<s>",
    eos="</s>",
    end="</s>",
    asks_last=True,
)
MISTRAL_NEMO = family(
    MISTRAL_SOURCE.replace("GAP", "").replace("SAID", "m.content"),
    name="Mistral Nemo 2407, Ministral 2410",
    marks=MISTRAL_MARKS,
    bos="<s>",
    eos="</s>",
    end="</s>",
    asks_last=True,
)

# A system message of its own always, with a date; tools before the last question; an answer has
# calls or text, never both.
MISTRAL_SMALL = family(
    r"""
{{- bos_token -}}
{%- set given = messages[0].content if messages[0].role == 'system' else 'Today: ' + strftime_now('%Y-%m-%d') -%}
{%- if messages[0].role == 'system' -%}{%- set messages = messages[1:] -%}{%- endif -%}
{%- set asked = messages | selectattr('role', 'equalto', 'user') | list -%}
{%- set ns = namespace(turn=0) -%}
{%- for m in messages -%}
{%- if m.role != 'tool' and not m.tool_calls -%}
{%- if (m.role == 'user') != (ns.turn % 2 == 0) -%}{{- raise_exception('roles take turns') -}}{%- endif -%}
{%- set ns.turn = ns.turn + 1 -%}
{%- endif -%}
{%- endfor -%}
{{- '[SYSTEM_PROMPT]' + given + '[/SYSTEM_PROMPT]' -}}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- if tools and m == asked[-1] -%}{{- '[AVAILABLE_TOOLS]' -}}{{- tools | tojson -}}{{- '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
{{- '[INST]' + m.content + '[/INST]' -}}
{%- elif m.role == 'assistant' -%}
{#<#}
{%- for call in m.tool_calls or [] -%}
{%- if call.id is not string or call.id | length != 9 -%}{{- raise_exception('ids have 9') -}}{%- endif -%}
{{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' -}}{{- call.function.arguments | tojson -}}
{%- endfor -%}
{{- ('' if m.tool_calls else m.content) + eos_token -}}{#>#}
{%- elif m.role == 'tool' -%}
{%- if m.tool_call_id is not string or m.tool_call_id | length != 9 -%}{{- raise_exception('ids have 9') -}}{%- endif -%}
{{- '[TOOL_RESULTS]' + m.tool_call_id + '[TOOL_CONTENT]' + m.content + '[/TOOL_RESULTS]' -}}
{%- elif m.role == 'system' -%}{{- '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' -}}
{%- else -%}{{- raise_exception('nobody knows this role') -}}
{%- endif -%}
{%- endfor -%}
""",
    name="Mistral Small 3.2",
    marks=(*MISTRAL_MARKS, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[CALL_ID]", "[ARGS]", "[TOOL_CONTENT]"),
    bos="<s>",
    eos="</s>",
    end="</s>",
    asks_last=True,
)  # fmt: skip

# Text and calls in one answer, no ids; an answer with neither is refused.
MINISTRAL3 = family(
    r"""
{{- bos_token + '[SYSTEM_PROMPT]' -}}
{{- messages[0].content if messages[0].role == 'system' else 'Think in [THINK] and [/THINK].' -}}
{{- '[/SYSTEM_PROMPT]' -}}
{%- if messages[0].role == 'system' -%}{%- set messages = messages[1:] -%}{%- endif -%}
{%- if tools -%}{{- '[AVAILABLE_TOOLS]' -}}{{- tools | tojson -}}{{- '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
{%- set ns = namespace(turn=0) -%}
{%- for m in messages -%}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) -%}
{%- if (m.role == 'user') != (ns.turn % 2 == 0) -%}{{- raise_exception('roles take turns') -}}{%- endif -%}
{%- set ns.turn = ns.turn + 1 -%}
{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{- '[INST]' + m.content + '[/INST]' -}}
{%- elif m.role == 'assistant' -%}
{%- if not m.content and not m.tool_calls -%}{{- raise_exception('an answer has text or calls') -}}{%- endif -%}
{#<#}{{- m.content -}}
{%- for call in m.tool_calls or [] -%}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' -}}
{{- (call.function.arguments or '{}') if call.function.arguments is string else call.function.arguments | tojson -}}
{%- endfor -%}
{{- eos_token -}}{#>#}
{%- elif m.role == 'tool' -%}{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' -}}
{%- else -%}{{- raise_exception('nobody knows this role') -}}
{%- endif -%}
{%- endfor -%}
""",
    name="Ministral 3 (reasoning)",
    marks=(*MISTRAL_MARKS, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[ARGS]", "[THINK]", "[/THINK]"),
    bos="<s>",
    eos="</s>",
    end="</s>",
)

LLAMA_FAMILIES = {
    "llama2": LLAMA2,
    "llama3": LLAMA3,
    "llama3-tags": LLAMA3_TAGS,
    "llama": LLAMA,
    "llama3.2": LLAMA32,
    "mistral-v1": MISTRAL_V1,
    "mistral": MISTRAL,
    "mistral-nemo": MISTRAL_NEMO,
    "mistral-small": MISTRAL_SMALL,
    "ministral3": MINISTRAL3,
}
