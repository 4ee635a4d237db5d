"""DeepSeek V3.2: the DSML markup.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="get_weather">
    <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
    <｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

Source: encoding/encoding_dsv32.py of deepseek-ai/DeepSeek-V3.2 (ggml-org/llama.cpp renders the
same in models/templates/DeepSeek-V3.2.jinja). ``string`` says whether a value is a string as it
is or JSON. Two line breaks stand before the section. The tags are plain text around the token
``｜DSML｜``, so that tags spelled without that token are text; see ``server/parsing/tagged.py`` for
values that contain tags all the same.
"""

from __future__ import annotations

from dataclasses import replace

from server.parsing.tagged import Tags

_V32 = Tags(
    section="<｜DSML｜function_calls>",
    section_end="</｜DSML｜function_calls>",
    call="<｜DSML｜invoke name=",
    call_end="</｜DSML｜invoke>",
    parameter="<｜DSML｜parameter name=",
    parameter_end="</｜DSML｜parameter>",
)
_V4 = replace(_V32, section="<｜DSML｜tool_calls>", section_end="</｜DSML｜tool_calls>")
_V41 = Tags(
    section="<｜DSML｜ calls>",
    section_end="</｜DSML｜ calls>",
    call="<｜DSML｜ invoke name=",
    call_end="</｜DSML｜ invoke>",
    parameter="<｜DSML｜ parameter name=",
    parameter_end="</｜DSML｜ parameter>",
)

FORMAT = _V32.format(fragment="｜DSML｜")
V4 = _V4.format(fragment="｜DSML｜")
"""DeepSeek V4 renames the section."""
V41 = _V41.format(fragment="｜DSML｜")
"""DeepSeek V4.1 puts a space behind the token."""
