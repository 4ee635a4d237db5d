"""XML calls. With names as attributes: MiniMax-M2, dots.llm, Step3, MiniCPM5, DeepSeek.

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Paris</parameter>
    </invoke>
    </minimax:tool_call>

    <｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>                          Step3
    <steptml:invoke name="get_weather"><steptml:parameter name="city">Paris</steptml:parameter>
    </steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>

    <function name="get_weather"><param name="city">Paris</param></function>               MiniCPM5

    <｜DSML｜function_calls>                                                        DeepSeek V3.2
    <｜DSML｜invoke name="get_weather">
    <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
    <｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

Sources: the chat template of MiniMaxAI/MiniMax-M2 (ggml-org/llama.cpp keeps a copy,
models/templates/unsloth-MiniMax-M2.jinja) has a line break before and after the section's opening
tag and none inside the parameter tags. Strings are plain text, other values JSON. The other formats
follow the parsers of vllm-project/vllm. The sections' tags are tokens, the inner tags plain text
(see ``text/parsing/tagged.py``). MiniCPM5 has no section.

DeepSeek: encoding/encoding_dsv32.py of deepseek-ai/DeepSeek-V3.2 (ggml-org/llama.cpp renders the
same in models/templates/DeepSeek-V3.2.jinja). ``string`` is true for a plain string and false for
JSON. Two line breaks precede the section. The tags are plain text around the token ``｜DSML｜``, so
tags spelled without that token are text. Models of one version sometimes write the section of
another version, or misspell its name.

Names in the tags, one call to a ``<tool_call>``: Qwen3-Coder, Qwen3.5 and others.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Source: the chat template of Qwen/Qwen3-Coder-480B-A35B-Instruct (vllm-project/vllm keeps a copy,
examples/tool_chat_template_qwen3coder.jinja). It writes a line break after ``<parameter=...>`` and
before ``</parameter>``, which is not part of the value. Strings are plain text, objects and lists
JSON, and other values are written as Python prints them (``True``, ``None``). ``<tool_call>`` and
``</tool_call>`` are added tokens, the inner tags plain text; ``text/parsing/tagged.py`` reads
values that contain them. Models sometimes write names as attributes
(``<function name="get_weather">``) or after a blank (``<function get_weather>``), or the closing
tag of an older format (``</function_invocation>``). A ``<function=`` outside ``<tool_call>`` opens
a call only if it names an offered tool.
"""

from __future__ import annotations

from dataclasses import replace

from eaglegate.text.parsing.message import CallFrame
from eaglegate.text.parsing.tags import Tags

_M2 = Tags(
    section="<minimax:tool_call>",
    section_end="</minimax:tool_call>",
    call="<invoke name=",
    call_end="</invoke>",
    parameter="<parameter name=",
    parameter_end="</parameter>",
)
_DOTS = replace(_M2, section="<dots_function_call>", section_end="</dots_function_call>")
_STEP3 = Tags(
    section="<｜tool_calls_begin｜>",
    section_end="<｜tool_calls_end｜>",
    call="<steptml:invoke name=",
    call_end="</steptml:invoke>",
    parameter="<steptml:parameter name=",
    parameter_end="</steptml:parameter>",
    inside=("<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"),
)
_MINICPM5 = Tags(
    section="",
    section_end="",
    call="<function name=",
    call_end="</function>",
    parameter="<param name=",
    parameter_end="</param>",
    line="<![CDATA[",
    line_end="]]>",
)

MINIMAX_M2 = _M2.format()
DOTS = _DOTS.format()
"""rednote-hilab/dots.llm: MiniMax-M2's tags in a section of its own."""
STEP3 = _STEP3.format()
"""stepfun-ai/step3: tokens and the word "function" around each call."""
MINICPM5 = replace(
    _MINICPM5.format(), texts=("<function", "</function>", "<param", "</param>", "<![CDATA[", "]]>")
)
"""openbmb/MiniCPM5: a call of an offered tool counts anywhere. Its tags are treated as text even if
they are special tokens. A value may be in CDATA."""


def _dsml(section: str, *others: str, prefix: str = "｜DSML｜", older: Tags | None = None) -> Tags:
    """Return the tags of one version, by the names of its section and of other sections."""
    pairs = [(f"<{prefix}{name}>", f"</{prefix}{name}>") for name in (section, *others)]
    return Tags(
        *pairs[0],
        call=f"<{prefix}invoke name=",
        call_end=f"</{prefix}invoke>",
        parameter=f"<{prefix}parameter name=",
        parameter_end=f"</{prefix}parameter>",
        others=tuple(pairs[1:]),
        older=older,
    )


_V32 = _dsml("function_calls", "tool_calls", "toolcalls", "tool_call", "calls", "tool_use")
_V4 = _dsml("tool_calls", "function_calls", "toolcalls", "tool_call", "calls", "tool_use")
_V41 = _dsml("calls", "tool_use", prefix="｜DSML｜ ", older=_V4)
_GCML = _dsml("tool_calls", prefix="｜GCML｜")

V32 = _V32.format(fragment="｜DSML｜")
V4 = _V4.format(fragment="｜DSML｜")
"""DeepSeek V4: another name of the section."""
V41 = _V41.format(fragment="｜DSML｜")
"""DeepSeek V4.1: a space after the token. Sections of V3.2 and V4 are read, too."""
GIGACHAT35 = _GCML.format(fragment="｜GCML｜")
"""GigaChat 3.5: DeepSeek V4's tags with another token, as sgl-project/sglang reads them."""

CODER = Tags(
    section="<tool_call>",
    section_end="</tool_call>",
    call="<function=",
    call_end="</function>",
    parameter="<parameter=",
    parameter_end="</parameter>",
    line="\n",
    attributes=("<function ", "<parameter "),
    strays=("</function_invocation>", "<function_invocation>"),
)

QWEN3_CODER = CODER.format()
MIMO = replace(CODER, line="").format()
"""XiaomiMiMo/MiMo-V2-Flash: no line breaks inside the parameter tags."""
SEED_OSS = replace(
    CODER,
    section="<seed:tool_call>",
    section_end="</seed:tool_call>",
    line="",
    may_line=True,
).format()
"""ByteDance-Seed/Seed-OSS-36B-Instruct: the section's tags have a prefix. Its template (a copy is
models/templates/ByteDance-Seed-OSS.jinja in ggml-org/llama.cpp) has no line breaks around values.
"""

_QWEN_XML_FRAME = CallFrame(
    "<tool_call>\n<function=NAME>\n",
    "\n</function>\n</tool_call>",
    style="qwen_xml",
    text=("<parameter=input>\n", "\n</parameter>"),
    separator="\n",
)
_DSML_FRAME = CallFrame(
    '<｜DSML｜invoke name="NAME">\n',
    "</｜DSML｜invoke>\n",
    style="deepseek_xml",
    text=('<｜DSML｜parameter name="input" string="true">', "</｜DSML｜parameter>\n"),
    section=("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"),
)
FRAMES = {
    "deepseek_v32": _DSML_FRAME,
    "deepseek_v4": replace(
        _DSML_FRAME, section=("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>")
    ),
    "minimax_m2": CallFrame(
        '<invoke name="NAME">\n',
        "</invoke>\n",
        style="minimax_xml",
        text=('<parameter name="input">', "</parameter>\n"),
        section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
    ),
    "nemotron_v3": _QWEN_XML_FRAME,
    "qwen3_coder": _QWEN_XML_FRAME,
    "qwen3_xml": _QWEN_XML_FRAME,
    "seed_oss": CallFrame(
        "<seed:tool_call>\n<function=NAME>\n",
        "\n</function>\n</seed:tool_call>",
        style="qwen_xml",
        text=("<parameter=input>\n", "\n</parameter>"),
        separator="\n",
    ),
    "step3p5": _QWEN_XML_FRAME,
}
