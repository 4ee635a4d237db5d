"""XML calls whose tags have ``name`` attributes: MiniMax-M2, dots.llm, Step3 and MiniCPM5.

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Paris</parameter>
    </invoke>
    </minimax:tool_call>

    <｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>                          Step3
    <steptml:invoke name="get_weather"><steptml:parameter name="city">Paris</steptml:parameter>
    </steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>

    <function name="get_weather"><param name="city">Paris</param></function>               MiniCPM5

Sources: the chat template of MiniMaxAI/MiniMax-M2 (ggml-org/llama.cpp keeps a copy,
models/templates/unsloth-MiniMax-M2.jinja): a line break before and after the section's opening
tag, none inside the parameter tags; strings as they are, other values as JSON. The others as the
parsers of vllm-project/vllm describe them. The sections' tags are tokens, the inner ones plain text
(see ``server/parsing/tagged.py``); MiniCPM5 has no section.
"""

from __future__ import annotations

from dataclasses import replace

from server.parsing.tagged import Tags

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

FORMAT = _M2.format()
DOTS = _DOTS.format()
"""rednote-hilab/dots.llm: the same in a section of its own."""
STEP3 = _STEP3.format()
"""stepfun-ai/step3: tokens and the word "function" stand around each call."""
MINICPM5 = replace(
    _MINICPM5.format(), texts=("<function", "</function>", "<param", "</param>", "<![CDATA[", "]]>")
)
"""openbmb/MiniCPM5: a call of an offered tool is one wherever it stands; its tags are text, special
tokens or not. A value may stand in CDATA."""
