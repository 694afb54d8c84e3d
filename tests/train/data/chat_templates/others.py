"""Templates of Granite, Command R, zephyr, vicuna, falcon, OpenChat and SOLAR."""

# ruff: noqa: E501  (a line of a template is a line of what it writes)
from __future__ import annotations

from tests.train.data.chat_templates.family import family

TURNS = r"""{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('roles take turns') -}}{%- endif -%}"""
TURNS_AFTER_SYSTEM = r"""{%- if (m.role == 'user') != (loop.index0 % 2 == (1 if messages[0].role == 'system' else 0)) -%}{{- raise_exception('roles take turns') -}}{%- endif -%}"""

# A system message of its own, with a date, if there is none; calls are a part of an answer's text.
GRANITE = family(
    r"""
{%- set ns = namespace(given='Today: ' + strftime_now('%B %d, %Y') + (' Call tools.' if tools else ' Be kind.')) -%}
{%- if messages[0].role == 'system' -%}
{%- set ns.given = messages[0].content -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{{- '<|start_of_role|>system<|end_of_role|>' + ns.given + '<|end_of_text|>\n' -}}
{%- if tools -%}
{{- '<|start_of_role|>available_tools<|end_of_role|>' -}}{{- tools | tojson(indent=4) -}}{{- '<|end_of_text|>\n' -}}
{%- endif -%}
{%- for m in messages -%}
{{- '<|start_of_role|>' + m.role + '<|end_of_role|>' -}}{#<#}{{- m.content + '<|end_of_text|>' -}}{#>#}{{- '\n' -}}
{%- if loop.last and add_generation_prompt -%}{{- '<|start_of_role|>assistant<|end_of_role|>' -}}{%- endif -%}
{%- endfor -%}
""",
    name="Granite 3.3",
    marks=("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>"),
    eos="<|end_of_text|>",
    end="<|end_of_text|>",
)

COMMAND_R = family(
    r"""
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + messages[0].content + '<|END_OF_TURN_TOKEN|>' -}}
{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for m in messages -%}
"""
    + TURNS
    + r"""
{%- if m.role in ('user', 'assistant') -%}
{{- '<|START_OF_TURN_TOKEN|>' + ('<|USER_TOKEN|>' if m.role == 'user' else '<|CHATBOT_TOKEN|>') -}}
{#<#}{{- m.content.strip() + '<|END_OF_TURN_TOKEN|>' -}}{#>#}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' -}}{%- endif -%}
""",
    name="Command R",
    marks=(
        "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>",
        "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>",
    ),
    bos="<BOS_TOKEN>",
    eos="<|END_OF_TURN_TOKEN|>",
    end="<|END_OF_TURN_TOKEN|>",
)  # fmt: skip

ZEPHYR = family(
    r"""
{%- for m in messages -%}
"""
    + TURNS_AFTER_SYSTEM
    + r"""
{{- '<|' + m.role + '|>\n' -}}{#<#}{{- m.content | trim + eos_token -}}{#>#}{{- '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- endif -%}
""",
    name="zephyr",
    marks=("<s>", "</s>"),
    eos="</s>",
    end="</s>",
)

# The prompt ends before the space that an answer begins with; tools and results are nowhere.
VICUNA = family(
    r"""
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}{{- messages[0].content | trim + '\n\n' -}}{%- set messages = messages[1:] -%}{%- endif -%}
{%- for m in messages -%}
"""
    + TURNS
    + r"""
{%- if m.role == 'user' -%}{{- 'USER: ' + m.content | trim + '\n' -}}
{%- elif m.role == 'assistant' -%}{{- 'ASSISTANT:' -}}{#<#}{{- ' ' + m.content | trim + eos_token -}}{#>#}{{- '\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}
""",
    name="vicuna",
    marks=("<s>", "</s>"),
    bos="<s>",
    eos="</s>",
    end="</s>",
)

# No token ends an answer: only the last one gets the end of a text.
FALCON = family(
    r"""
{%- if messages[0].role == 'system' -%}{{- messages[0].content | trim -}}{%- set messages = messages[1:] -%}{%- endif -%}
{%- for m in messages -%}
"""
    + TURNS
    + r"""
{{- '\n\n' + m.role | capitalize + ':' -}}{#<#}{{- ' ' + m.content.replace('\r\n', '\n').replace('\n\n', '\n') | trim -}}{#>#}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '\n\nAssistant:' -}}{%- endif -%}
""",
    name="falcon",
    marks=("<|endoftext|>",),
    eos="<|endoftext|>",
    end="<|endoftext|>",
    writes_end="never",
)
SOLAR = family(
    r"""
{{- bos_token -}}
{%- for m in messages -%}
"""
    + TURNS_AFTER_SYSTEM
    + r"""
{{- '### ' + m.role | capitalize + ':\n' -}}{#<#}{{- m.content | trim -}}{#>#}{{- '\n\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '### Assistant:\n' -}}{%- endif -%}
""",
    name="SOLAR",
    marks=("<s>", "</s>"),
    bos="<s>",
    eos="</s>",
    end="</s>",
    writes_end="never",
)

OPENCHAT = family(
    r"""
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}{{- messages[0].content | trim + '<|end_of_turn|>' -}}{%- set messages = messages[1:] -%}{%- endif -%}
{%- for m in messages -%}
"""
    + TURNS
    + r"""
{{- 'GPT4 Correct ' + m.role | capitalize + ':' -}}{#<#}{{- ' ' + m.content + '<|end_of_turn|>' -}}{#>#}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'GPT4 Correct Assistant:' -}}{%- endif -%}
""",
    name="OpenChat 3.5",
    marks=("<s>", "</s>", "<|end_of_turn|>"),
    bos="<s>",
    eos="<|end_of_turn|>",
    end="<|end_of_turn|>",
)

OTHER_FAMILIES = {
    "granite3.3": GRANITE,
    "command-r": COMMAND_R,
    "zephyr": ZEPHYR,
    "vicuna": VICUNA,
    "falcon": FALCON,
    "solar": SOLAR,
    "openchat": OPENCHAT,
}
