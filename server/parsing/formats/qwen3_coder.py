"""Qwen3-Coder, Qwen3.5 and others: XML-like calls, one to a ``<tool_call>``.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Source: the chat template of Qwen/Qwen3-Coder-480B-A35B-Instruct (vllm-project/vllm keeps a copy,
examples/tool_chat_template_qwen3coder.jinja). It writes a line break after ``<parameter=...>`` and
before ``</parameter>``, which are no part of the value, strings as they are, objects and lists as
JSON, and other values as Python prints them (``True``, ``None``). ``<tool_call>`` and
``</tool_call>`` are added tokens, the inner tags plain text: ``server/parsing/tagged.py`` says how
a value that contains them is read. A ``<function=`` outside ``<tool_call>`` opens a call only where
it names an offered tool.
"""

from __future__ import annotations

from dataclasses import replace

from server.parsing.tags import Tags

_CODER = Tags(
    section="<tool_call>",
    section_end="</tool_call>",
    call="<function=",
    call_end="</function>",
    parameter="<parameter=",
    parameter_end="</parameter>",
    line="\n",
)

FORMAT = _CODER.format()
MIMO = replace(_CODER, line="").format()
"""XiaomiMiMo/MiMo-V2-Flash: no line breaks inside the parameter tags."""
SEED_OSS = replace(
    _CODER,
    section="<seed:tool_call>",
    section_end="</seed:tool_call>",
    line="",
    may_line=True,
).format()
"""ByteDance-Seed/Seed-OSS-36B-Instruct: the section's tags have a prefix. Its template (a copy is
models/templates/ByteDance-Seed-OSS.jinja in ggml-org/llama.cpp) has no line breaks around values.
"""
