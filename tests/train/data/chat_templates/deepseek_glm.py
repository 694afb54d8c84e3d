"""Templates of GLM, DeepSeek and gpt-oss."""

# ruff: noqa: E501, RUF001  (a line of a template is a line of what it writes; DeepSeek's bars)
from __future__ import annotations

from tests.train.data.chat_templates.family import family

# Writes nothing after an answer: the next message's mark ends it. Thoughts before the last
# question are dropped.
GLM = family(
    r"""
{{- '[gMASK]<sop>' -}}
{%- if tools -%}
{{- '<|system|>\n# Tools\n<tools>\n' -}}
{%- for tool in tools -%}{{- tool | tojson(ensure_ascii=False) + '\n' -}}{%- endfor -%}
{{- '</tools>' -}}
{%- endif -%}
{%- set ns = namespace(asked=-1, thought='', said='') -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- set off = enable_thinking is defined and not enable_thinking -%}
{%- if m.role == 'user' -%}
{{- '<|user|>\n' + m.content + ('/nothink' if off and not m.content.endswith('/nothink') else '') -}}
{%- elif m.role == 'assistant' -%}
{%- set ns.thought = m.reasoning_content or '' -%}{%- set ns.said = m.content -%}
{%- if m.reasoning_content is not string and '</think>' in ns.said -%}
{%- set ns.thought = ns.said.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
{%- set ns.said = ns.said.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{- '<|assistant|>' -}}{#<#}{{- '\n<think>' -}}{#|#}
{{- (ns.thought.strip() if loop.index0 > ns.asked else '') + '</think>' -}}
{%- if ns.said.strip() -%}{{- '\n' + ns.said.strip() -}}{%- endif -%}
{%- for call in m.tool_calls or [] -%}
{%- set call = call.function or call -%}
{{- '\n<tool_call>' + call.name + '\n' -}}
{%- for key, value in call.arguments.items() -%}
{{- '<arg_key>' + key + '</arg_key>\n<arg_value>' -}}
{{- value if value is string else value | tojson(ensure_ascii=False) -}}{{- '</arg_value>\n' -}}
{%- endfor -%}
{{- '</tool_call>' -}}
{%- endfor -%}
{#>#}
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|observation|>' -}}{%- endif -%}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' -}}
{%- elif m.role == 'system' -%}{{- '<|system|>\n' + m.content -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' + ('\n<think></think>' if enable_thinking is defined and not enable_thinking else '') -}}
{%- endif -%}
""",
    name="GLM-4.5",
    marks=(
        "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
        "<|endoftext|>",
    ),
    words=(
        "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
        "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink",
    ),
    bos="[gMASK]",
    eos="<|endoftext|>",
    end="<|user|>",
    end_of_call="<|observation|>",
    next_marks=("<|user|>", "<|observation|>"),
    writes_end="never",
)  # fmt: skip

DEEPSEEK_MARKS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
# (none of these is special)
DEEPSEEK_WORDS = (
    "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜tool▁outputs▁begin｜>",
    "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>",
    "<think>", "</think>",
)  # fmt: skip
DEEPSEEK_SYSTEM = r"""
{{- bos_token -}}
{%- for m in messages | selectattr('role', 'equalto', 'system') -%}{{- ('' if loop.first else '\n\n') + m.content -}}{%- endfor -%}
"""

# A question brings the header of its answer; an answer to a result has none.
DEEPSEEK_V3 = family(
    DEEPSEEK_SYSTEM
    + r"""
{%- if tools -%}
{{- '\n\n# Tools\n' -}}
{%- for tool in tools -%}{{- '\n' -}}{{- tool | tojson -}}{%- endfor -%}
{%- endif -%}
{%- set ns = namespace(result=false, output=false, asked=false) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- set ns.result = false -%}{%- set ns.asked = true -%}
{{- '<｜User｜>' + m.content + '<｜Assistant｜>' -}}
{%- elif m.role == 'assistant' -%}
{%- set ns.asked = false -%}
{{- '<｜tool▁outputs▁end｜>' if ns.result -}}{#<#}
{%- set ns.result = false -%}
{{- m.content -}}
{%- if m.tool_calls is defined -%}
{%- set ns.output = false -%}
{{- '<｜tool▁calls▁begin｜>' -}}
{%- for call in m.tool_calls -%}
{{- ('' if loop.first else '\n') + '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name -}}
{{- '\n```json\n' -}}{{- call.function.arguments | tojson -}}{{- '\n```<｜tool▁call▁end｜>' -}}
{%- endfor -%}
{{- '<｜tool▁calls▁end｜>' -}}
{%- endif -%}
{{- '<｜end▁of▁sentence｜>' -}}{#>#}
{%- elif m.role == 'tool' -%}
{{- '\n' if ns.output else '<｜tool▁outputs▁begin｜>' -}}
{%- set ns.result = true -%}{%- set ns.output = true -%}{%- set ns.asked = false -%}
{{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' -}}
{%- endif -%}
{%- endfor -%}
{%- if ns.result -%}{{- '<｜tool▁outputs▁end｜>' -}}
{%- elif add_generation_prompt and not ns.asked -%}{{- '<｜Assistant｜>' -}}
{%- endif -%}
""",
    name="DeepSeek V3",
    marks=DEEPSEEK_MARKS,
    words=DEEPSEEK_WORDS,
    bos="<｜begin▁of▁sentence｜>",
    eos="<｜end▁of▁sentence｜>",
    end="<｜end▁of▁sentence｜>",
)

# All thoughts are dropped, but for those after a result; arguments of calls are text; it starts
# the calls of a chat once; tools are nowhere.
DEEPSEEK_R1 = family(
    DEEPSEEK_SYSTEM
    + r"""
{%- set ns = namespace(result=false, output=false, called=false) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- set ns.result = false -%}
{{- '<｜User｜>' + m.content -}}
{%- elif m.role == 'assistant' and m.tool_calls is defined -%}
{%- set ns.result = false -%}
{%- for call in m.tool_calls -%}
{%- if ns.called -%}{%- if loop.first -%}{#<#}{%- endif -%}{{- '\n' -}}{%- if loop.first -%}{#|#}{%- endif -%}
{%- else -%}{{- '<｜Assistant｜>' -}}{#<#}{{- m.content + '<｜tool▁calls▁begin｜>' -}}
{%- endif -%}
{%- set ns.called = true -%}
{{- '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name -}}
{{- '\n```json\n' + call.function.arguments + '\n```<｜tool▁call▁end｜>' -}}
{%- endfor -%}
{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' -}}{#>#}
{%- elif m.role == 'assistant' -%}
{{- '<｜tool▁outputs▁end｜>' if ns.result else '<｜Assistant｜>' -}}{#<#}
{{- (m.content if ns.result else m.content.split('</think>')[-1]) + '<｜end▁of▁sentence｜>' -}}{#>#}
{%- set ns.result = false -%}
{%- elif m.role == 'tool' -%}
{{- '' if ns.output else '<｜tool▁outputs▁begin｜>' -}}
{%- set ns.result = true -%}{%- set ns.output = true -%}
{{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' -}}
{%- endif -%}
{%- endfor -%}
{%- if ns.result -%}{{- '<｜tool▁outputs▁end｜>' -}}
{%- elif add_generation_prompt -%}{{- '<｜Assistant｜><think>\n' -}}
{%- endif -%}
""",
    name="DeepSeek R1",
    marks=DEEPSEEK_MARKS,
    words=DEEPSEEK_WORDS,
    bos="<｜begin▁of▁sentence｜>",
    eos="<｜end▁of▁sentence｜>",
    end="<｜end▁of▁sentence｜>",
    text_arguments=True,
    starts_calls_once=True,
)

# Empty thoughts after every question; those of an answer are dropped, but for one after a result.
DEEPSEEK_V31 = family(
    DEEPSEEK_SYSTEM
    + r"""
{%- set ns = namespace(result=false, asked=false, said='') -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- set ns.result = false -%}{%- set ns.asked = true -%}
{{- '<｜User｜>' + m.content -}}
{%- elif m.role == 'assistant' -%}
{{- '<｜Assistant｜>' if ns.asked -}}{#<#}{{- '<think>' if ns.asked -}}{#|#}{{- '</think>' if ns.asked -}}
{%- set ns.asked = false -%}
{%- set ns.said = m.content -%}
{%- if m.tool_calls -%}
{{- ns.said + '<｜tool▁calls▁begin｜>' -}}
{%- for call in m.tool_calls -%}
{{- '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' -}}{{- call.function.arguments | tojson -}}{{- '<｜tool▁call▁end｜>' -}}
{%- endfor -%}
{{- '<｜tool▁calls▁end｜>' -}}
{%- elif '</think>' in ns.said and not ns.result -%}{{- ns.said.split('</think>', 1)[1] -}}
{%- else -%}{{- ns.said -}}
{%- endif -%}
{%- set ns.result = false -%}
{{- '<｜end▁of▁sentence｜>' -}}{#>#}
{%- elif m.role == 'tool' -%}
{%- set ns.result = true -%}{%- set ns.asked = false -%}
{{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and ns.asked -%}
{{- '<｜Assistant｜><think>' + ('' if thinking or enable_thinking else '</think>') -}}
{%- endif -%}
""",
    name="DeepSeek V3.1",
    marks=DEEPSEEK_MARKS,
    words=DEEPSEEK_WORDS,
    bos="<｜begin▁of▁sentence｜>",
    eos="<｜end▁of▁sentence｜>",
    end="<｜end▁of▁sentence｜>",
)

# Channels; thoughts of the last answer only, and of a call while no answer follows; an inner
# answer, a call and the last answer have ends of their own.
GPT_OSS = family(
    r"""
{{- '<|start|>system<|message|>Today: ' + strftime_now('%Y-%m-%d') + '\n# Channels: analysis, commentary, final.<|end|>' -}}
{%- set rules = messages[0].content if messages[0].role in ('developer', 'system') else '' -%}
{%- if messages[0].role in ('developer', 'system') -%}{%- set messages = messages[1:] -%}{%- endif -%}
{%- if rules or tools -%}
{{- '<|start|>developer<|message|>' -}}
{%- if rules -%}{{- '# Instructions\n\n' + rules + '\n\n' -}}{%- endif -%}
{%- if tools -%}{{- '# Tools\n\n' -}}{{- tools | tojson -}}{%- endif -%}
{{- '<|end|>' -}}
{%- endif -%}
{%- set ns = namespace(called=none, final=false) -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- for text in (m.content, m.thinking or '') -%}
{%- if '<|channel|>analysis<|message|>' in text or '<|channel|>final<|message|>' in text -%}{{- raise_exception('thoughts have a field') -}}{%- endif -%}
{%- endfor -%}
{{- '<|start|>assistant' -}}{#<#}
{%- if m.tool_calls is defined -%}
{%- set ns.final = false -%}
{%- for later in messages[loop.index:] -%}
{%- if later.role == 'assistant' and later.tool_calls is not defined -%}{%- set ns.final = true -%}{%- endif -%}
{%- endfor -%}
{%- if m.content and m.thinking -%}{{- raise_exception('text or thoughts before a call, not both') -}}{%- endif -%}
{%- if (m.content or m.thinking) and not ns.final -%}
{{- '<|channel|>analysis<|message|>' + (m.content or m.thinking) + '<|end|><|start|>assistant' -}}
{%- endif -%}
{%- set call = m.tool_calls[0].function or m.tool_calls[0] -%}
{{- ' to=functions.' + call.name + '<|channel|>commentary json<|message|>' -}}{{- call.arguments | tojson -}}{{- '<|call|>' -}}
{%- set ns.called = call.name -%}
{%- elif loop.last and not add_generation_prompt -%}
{%- if m.thinking is defined -%}{{- '<|channel|>analysis<|message|>' + m.thinking + '<|end|><|start|>assistant' -}}{%- endif -%}
{{- '<|channel|>final<|message|>' + m.content + '<|return|>' -}}
{%- else -%}
{{- '<|channel|>final<|message|>' + m.content + '<|end|>' -}}
{%- set ns.called = none -%}
{%- endif -%}
{#>#}
{%- elif m.role == 'tool' -%}
{%- if not ns.called -%}{{- raise_exception('nobody called') -}}{%- endif -%}
{{- '<|start|>functions.' + ns.called + ' to=assistant<|channel|>commentary<|message|>' -}}{{- m.content | tojson -}}{{- '<|end|>' -}}
{%- elif m.role == 'user' -%}{{- '<|start|>user<|message|>' + m.content + '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
""",
    name="gpt-oss",
    marks=(
        "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>",
        "<|start|>", "<|end|>", "<|message|>", "<|call|>",
    ),
    bos="<|startoftext|>",
    eos="<|return|>",
    end="<|return|>",
    end_of_call="<|call|>",
)  # fmt: skip

DEEPSEEK_GLM_FAMILIES = {
    "glm": GLM,
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-r1": DEEPSEEK_R1,
    "deepseek-v3.1": DEEPSEEK_V31,
    "gpt-oss": GPT_OSS,
}
