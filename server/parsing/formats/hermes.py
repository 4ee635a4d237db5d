"""Hermes and Qwen 2.5 / Qwen 3: JSON between ``<tool_call>`` and ``</tool_call>``.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Source: the chat templates of NousResearch/Hermes-2-Pro and Qwen/Qwen3, which put a line break
before each ``<tool_call>`` that content or another call precedes, and around the JSON; those are
framing. Qwen has both markers as added tokens. Where a tokenizer has not, the marker is plain
text: it opens a call only if a brace follows it, and closes one only outside a JSON string.

LongCat-Flash writes the same between markers of its own (meituan-longcat/LongCat-Flash-Chat).
"""

from __future__ import annotations

from server.parsing.json_blocks import JsonBlock

FORMAT = JsonBlock("<tool_call>", "</tool_call>").format()
LONGCAT = JsonBlock("<longcat_tool_call>", "</longcat_tool_call>").format()
