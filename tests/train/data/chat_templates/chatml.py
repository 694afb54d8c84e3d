"""Templates with `<|im_start|>` and `<|im_end|>`: ChatML, Qwen, SmolLM3, Nemotron, LFM2."""

# ruff: noqa: E501  (a line of a template is a line of what it writes)
from __future__ import annotations

from tests.train.data.chat_templates.family import family

THINK = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip

CHATML = family(
    r"""
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\n' -}}{#<#}{{- m.content + '<|im_end|>' -}}{#>#}{{- '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
""",
    name="ChatML",
    marks=("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    eos="<|im_end|>",
    end="<|im_end|>",
)

# Leaves the last message open, so that it may go on.
CHATML_OPEN = family(
    r"""
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\n' -}}{#<#}{{- m.content -}}
{%- if add_generation_prompt or not loop.last -%}{{- '<|im_end|>' -}}{%- endif -%}{#>#}
{%- if add_generation_prompt or not loop.last -%}{{- '\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'assistant' -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
""",
    name="ChatML (last message open)",
    marks=CHATML.marks,
    eos="<|im_end|>",
    end="<|im_end|>",
    writes_end="before another message",
)

# A system message of its own if there is none; calls begin on a new line; results are a user's.
QWEN25_SOURCE = r"""
{%- set given = messages[0].content if messages[0].role == 'system' else 'You are a model of these tests.' -%}
{{- '<|im_start|>system\n' + given -}}
{%- if tools -%}
{{- '\n\n# Tools\n' -}}
{%- for tool in tools -%}{{- '\n' -}}{{- tool | tojson -}}{%- endfor -%}
{{- '\n</tools>' -}}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- elif m.role == 'assistant' and m.tool_calls -%}
{{- '<|im_start|>assistant' -}}
{{- '\n' -}}{#<#}{#[#}
{%- if m.content -%}{{- m.content + '\n' -}}{%- endif -%}
{%- for call in m.tool_calls -%}
{%- set call = call.function if call.function is defined else call -%}
{{- '<tool_call>\n{"name": "' + call.name + '", "arguments": ' -}}{{- call.arguments | tojson -}}{{- '}\n</tool_call>' -}}
{%- if not loop.last -%}{{- '\n' -}}{%- endif -%}
{%- endfor -%}
{{- '<|im_end|>' -}}{#>#}{{- '\n' -}}{#]#}
{%- elif m.role == 'assistant' -%}
{{- '<|im_start|>assistant\n' -}}{#<#}{#[#}{{- m.content + '<|im_end|>' -}}{#>#}{{- '\n' -}}{#]#}
{%- elif m.role == 'user' or (m.role == 'system' and not loop.first) -%}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
QWEN25 = family(
    QWEN25_SOURCE,
    name="Qwen 2.5",
    marks=("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    words=("<tool_call>", "</tool_call>"),
    eos="<|im_end|>",
    end="<|im_end|>",
)
QWEN25_TAGS = family(
    QWEN25_SOURCE,
    tags=True,
    name="Qwen 2.5 with `{% generation %}`",
    marks=QWEN25.marks,
    words=QWEN25.words,
    eos="<|im_end|>",
    end="<|im_end|>",
)

# Thoughts after the last question only, empty ones in the last answer; results are a user's.
QWEN3_HEAD = r"""
{%- if tools -%}
{{- '<|im_start|>system\n' -}}
{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\n\n' -}}{%- endif -%}
{{- '# Tools\n' -}}
{%- for tool in tools -%}{{- '\n' -}}{{- tool | tojson -}}{%- endfor -%}
{{- '\n</tools><|im_end|>\n' -}}
{%- elif messages[0].role == 'system' -%}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' -}}
{%- endif -%}
{%- set ns = namespace(asked=messages | length - 1, thought='', said='') -%}
{%- for m in messages -%}
{%- if m.role == 'user' and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) -%}
{%- set ns.asked = loop.index0 -%}
{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) -%}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}
{%- elif m.role == 'assistant' -%}
{%- set ns.thought = m.reasoning_content or '' -%}{%- set ns.said = m.content -%}
{%- if m.reasoning_content is not string and '</think>' in m.content -%}
{%- set ns.thought = m.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
{%- set ns.said = m.content.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{- '<|im_start|>assistant\n' -}}{#<#}{#[#}
"""
QWEN3_TAIL = r"""
{%- for call in m.tool_calls or [] -%}
{%- if not loop.first or ns.said -%}{{- '\n' -}}{%- endif -%}
{%- set call = call.function or call -%}
{{- '<tool_call>\n{"name": "' + call.name + '", "arguments": ' -}}
{{- call.arguments if call.arguments is string else call.arguments | tojson -}}{{- '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>' -}}{#>#}{{- '\n' -}}{#]#}
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}
{%- endif -%}
"""
QWEN3_THOUGHTS = r"""{{- '<think>\n' -}}{#|#}{{- ns.thought.strip('\n') + '\n</think>\n\n' + ns.said.lstrip('\n') -}}"""
QWEN = family(
    QWEN3_HEAD
    + r"{%- if loop.index0 > ns.asked and (loop.last or ns.thought) -%}"
    + QWEN3_THOUGHTS
    + r"{%- else -%}{#|#}{{- ns.said -}}{%- endif -%}"
    + QWEN3_TAIL,
    name="Qwen 3",
    marks=("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    words=THINK,
    eos="<|im_end|>",
    end="<|im_end|>",
)
# As training programs change it: thoughts in every answer, so that a chat begins as it did.
QWEN3_TAGS = family(
    QWEN3_HEAD + QWEN3_THOUGHTS + QWEN3_TAIL,
    tags=True,
    name="Qwen 3 with `{% generation %}`",
    marks=QWEN.marks,
    words=QWEN.words,
    eos="<|im_end|>",
    end="<|im_end|>",
)

# Opens the thoughts in the prompt; calls in tags; texts are trimmed; no chat without a question.
QWEN35 = family(
    r"""
{%- set first = messages[0].content | trim if messages[0].role == 'system' else '' -%}
{%- if tools -%}
{{- '<|im_start|>system\n# Tools\n' -}}
{%- for tool in tools -%}{{- '\n' -}}{{- tool | tojson -}}{%- endfor -%}
{{- '\n</tools>' -}}
{%- if first -%}{{- '\n\n' + first -}}{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- elif messages[0].role == 'system' -%}
{{- '<|im_start|>system\n' + first + '<|im_end|>\n' -}}
{%- endif -%}
{%- set ns = namespace(asked=-1, thought='', said='') -%}
{%- for m in messages -%}
{%- set said = m.content | trim -%}
{%- if m.role == 'user' and not (said.startswith('<tool_response>') and said.endswith('</tool_response>')) -%}
{%- set ns.asked = loop.index0 -%}
{%- endif -%}
{%- endfor -%}
{%- if ns.asked < 0 -%}{{- raise_exception('nobody asks') -}}{%- endif -%}
{%- for m in messages -%}
{%- set ns.said = m.content | trim -%}
{%- if m.role == 'system' -%}
{%- if not loop.first -%}{{- raise_exception('the system comes first') -}}{%- endif -%}
{%- elif m.role == 'user' -%}
{{- '<|im_start|>user\n' + ns.said + '<|im_end|>\n' -}}
{%- elif m.role == 'assistant' -%}
{%- set ns.thought = m.reasoning_content or '' -%}
{%- if m.reasoning_content is not string and '</think>' in ns.said -%}
{%- set ns.thought = ns.said.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
{%- set ns.said = ns.said.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{- '<|im_start|>assistant\n' -}}{#<#}
{%- if loop.index0 > ns.asked -%}{{- '<think>\n' -}}{#|#}{{- ns.thought | trim + '\n</think>\n\n' -}}{%- else -%}{#|#}{%- endif -%}
{{- ns.said -}}
{%- for call in m.tool_calls or [] -%}
{%- set call = call.function if call.function is defined else call -%}
{{- ('\n\n' if ns.said | trim else '') if loop.first else '\n' -}}
{{- '<tool_call>\n<function=' + call.name + '>\n' -}}
{%- for key, value in call.arguments | items -%}
{{- '<parameter=' + key + '>\n' -}}
{{- value | tojson if value is mapping or (value is sequence and value is not string) else value | string -}}
{{- '\n</parameter>\n' -}}
{%- endfor -%}
{{- '</function>\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>' -}}{#>#}{{- '\n' -}}
{%- elif m.role == 'tool' -%}
{%- if not loop.first and messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\n<tool_response>\n' + ns.said + '\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- else -%}{{- raise_exception('nobody knows this role') -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n<think>\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '\n</think>\n\n' -}}{%- endif -%}
{%- endif -%}
""",
    name="Qwen 3.5",
    marks=("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    words=THINK,
    eos="<|im_end|>",
    end="<|im_end|>",
)

# Its author's tags hold the header and the line break after the end; nothing of calls is written.
SMOLLM3 = family(
    r"""
{%- set ns = namespace(mode='/think' if enable_thinking is not defined or enable_thinking else '/no_think', rules='') -%}
{{- '<|im_start|>system\n' -}}
{%- if messages[0].role == 'system' -%}
{%- set ns.rules = messages[0].content -%}
{%- if '/no_think' in ns.rules -%}{%- set ns.mode = '/no_think' -%}
{%- elif '/think' in ns.rules -%}{%- set ns.mode = '/think' -%}
{%- endif -%}
{%- set ns.rules = ns.rules.replace('/no_think', '').replace('/think', '').rstrip() -%}
{%- endif -%}
{{- '## Metadata\n\nReasoning: ' + ns.mode + '\n\n## Rules\n\n' -}}
{{- (ns.rules or ('Think first.' if ns.mode == '/think' else 'Be kind.')) + '\n\n' -}}
{{- '<|im_end|>\n' -}}
{%- for m in messages -%}
{%- if m.role == 'user' or m.role == 'tool' -%}{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' -}}
{%- elif m.role == 'assistant' -%}
{#[#}{{- '<|im_start|>assistant\n' -}}{#<#}
{%- if ns.mode == '/no_think' -%}{{- '<think>\n' -}}{#|#}{{- '\n</think>\n' -}}{%- else -%}{#|#}{%- endif -%}
{{- m.content.lstrip('\n') + '<|im_end|>' -}}{#>#}{{- '\n' -}}{#]#}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- if ns.mode == '/no_think' -%}{{- '<think>\n\n</think>\n' -}}{%- endif -%}
{%- endif -%}
""",
    tags=True,
    name="SmolLM3",
    marks=("<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "<|end_of_text|>"),
    words=("<think>", "</think>"),
    eos="<|im_end|>",
    end="<|im_end|>",
)

# An empty system message always; an empty thought before every answer without one; thoughts before
# the last question are dropped; a line break between calls and the end.
NEMOTRON = family(
    r"""
{%- set ns = namespace(asked=-1, said='', shown='') -%}
{%- set first = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if messages[0].role == 'system' -%}{%- set messages = messages[1:] -%}{%- endif -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}{%- endfor -%}
{{- '<|im_start|>system\n' + first -}}
{%- if tools -%}
{{- ('\n\n' if first else '') + '# Tools\n\n<tools>' -}}
{%- for tool in tools -%}
{{- '\n' -}}{{- tool | tojson -}}
{%- endfor -%}
{{- '\n</tools>' -}}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- set ns.said = m.content or '' -%}
{%- if m.reasoning_content is string and m.reasoning_content | trim -%}
{%- set ns.said = '<think>\n' + m.reasoning_content + '\n</think>\n' + ns.said -%}
{%- elif '<think>' not in ns.said and '</think>' not in ns.said -%}
{%- set ns.said = '<think></think>' + ns.said -%}
{%- endif -%}
{%- set ns.shown = ns.said | trim -%}
{%- if loop.index0 < ns.asked and truncate_history_thinking is not false -%}
{%- if m.tool_calls -%}
{%- set ns.shown = ns.said.split('</think>')[-1] if '</think>' in ns.said else ns.said.split('<think>')[0] -%}
{%- set ns.shown = '<think></think>' + ns.shown | trim -%}
{%- elif '<think>' in ns.said and '</think>' in ns.said -%}
{%- set ns.shown = ('<think></think>' + ns.said.split('</think>')[-1]) | trim -%}
{%- endif -%}
{%- endif -%}
{{- '<|im_start|>assistant\n' -}}{#<#}
{%- if ns.shown.startswith('<think>') -%}{{- '<think>' -}}{#|#}{{- ns.shown[7:] -}}{%- else -%}{#|#}{{- ns.shown -}}{%- endif -%}
{%- if m.tool_calls -%}
{%- if ns.said | trim -%}{{- '\n' -}}{%- else -%}{{- '<think></think>' -}}{%- endif -%}
{%- for call in m.tool_calls -%}
{%- set call = call.function if call.function is defined else call -%}
{{- '<tool_call>\n<function=' + call.name + '>\n' -}}
{%- for key, value in call.arguments | items -%}
{{- '<parameter=' + key + '>\n' -}}
{{- value | tojson if value is mapping or (value is sequence and value is not string) else value | string -}}
{{- '\n</parameter>\n' -}}
{%- endfor -%}
{{- '</function>\n</tool_call>\n' -}}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>' -}}{#>#}{{- '\n' -}}
{%- elif m.role == 'tool' -%}
{%- if not loop.first and messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user\n' -}}{%- endif -%}
{{- '<tool_response>\n' + m.content + '\n</tool_response>\n' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- else -%}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n<think>' + ('</think>' if enable_thinking is false else '\n') -}}
{%- endif -%}
""",
    name="Nemotron 3",
    marks=("<s>", "</s>", "<|im_start|>", "<|im_end|>"),
    words=THINK,
    eos="<|im_end|>",
    end="<|im_end|>",
)

# A list of tools in the system message; calls are a part of an answer's text, never a field.
LFM2 = family(
    r"""
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- if messages[0].role == 'system' -%}
{%- set ns.system = messages[0].content -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}
{%- set ns.system = ns.system + ('\n' if ns.system else '') + 'Tools: <|tool_list_start|>[' -%}
{%- for tool in tools -%}{%- set ns.system = ns.system + tool | tojson + ('' if loop.last else ', ') -%}{%- endfor -%}
{%- set ns.system = ns.system + ']<|tool_list_end|>' -%}
{%- endif -%}
{%- if ns.system -%}{{- '<|im_start|>system\n' + ns.system + '<|im_end|>\n' -}}{%- endif -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\n' -}}{#<#}
{{- '<|tool_response_start|>' + m.content + '<|tool_response_end|>' if m.role == 'tool' else m.content -}}
{{- '<|im_end|>' -}}{#>#}{{- '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
""",
    name="LFM2",
    marks=(
        "<|startoftext|>", "<|im_start|>", "<|im_end|>", "<|tool_list_start|>", "<|tool_list_end|>",
        "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_response_start|>",
        "<|tool_response_end|>",
    ),
    bos="<|startoftext|>",
    eos="<|im_end|>",
    end="<|im_end|>",
)  # fmt: skip

CHATML_FAMILIES = {
    "chatml": CHATML,
    "chatml-open": CHATML_OPEN,
    "qwen2.5": QWEN25,
    "qwen2.5-tags": QWEN25_TAGS,
    "qwen": QWEN,
    "qwen3-tags": QWEN3_TAGS,
    "qwen3.5": QWEN35,
    "smollm3": SMOLLM3,
    "nemotron3": NEMOTRON,
    "lfm2": LFM2,
}
