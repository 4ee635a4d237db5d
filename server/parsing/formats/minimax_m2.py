"""MiniMax-M2: XML calls in a ``<minimax:tool_call>`` section.

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Paris</parameter>
    </invoke>
    </minimax:tool_call>

Source: the chat template of MiniMaxAI/MiniMax-M2 (ggml-org/llama.cpp keeps a copy,
models/templates/unsloth-MiniMax-M2.jinja): a line break before and after the section's opening
tag, none inside the parameter tags; strings as they are, other values as JSON. The section's tags
are tokens, the inner ones plain text (see ``server/parsing/tagged.py``).
"""

from __future__ import annotations

from server.parsing.tagged import Tags

FORMAT = Tags(
    section="<minimax:tool_call>",
    section_end="</minimax:tool_call>",
    call="<invoke name=",
    call_end="</invoke>",
    parameter="<parameter name=",
    parameter_end="</parameter>",
).format()

DOTS = Tags(
    section="<dots_function_call>",
    section_end="</dots_function_call>",
    call="<invoke name=",
    call_end="</invoke>",
    parameter="<parameter name=",
    parameter_end="</parameter>",
).format()
"""rednote-hilab/dots.llm: the same in a section of its own."""
