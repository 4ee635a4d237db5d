"""Conversations and templates on which renderers may differ."""

from __future__ import annotations

from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter für <Städte> & 'Dörfer'",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


TALKS: dict[str, list[dict[str, Any]]] = {
    "plain": [user("What is 84 - 37?")],
    "system": [{"role": "system", "content": "Be brief."}, user("Hi")],
    "parts": [user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])],
    "tools": [
        user("Weather in Ås?"),
        {"role": "assistant", "content": None, "tool_calls": [call('{"city": "Ås", "n": 1.50}')]},
        {"role": "tool", "tool_call_id": "call_1", "content": "5 °C"},
    ],
    "tool parts": [
        user("Weather?"),
        {"role": "assistant", "content": "", "tool_calls": [call("")]},
        {
            "role": "tool",
            "tool_call_id": "call_1",
            "content": [{"type": "text", "text": "5"}, {"type": "text", "text": "°C"}],
        },
    ],
    "bad arguments": [
        user("Weather?"),
        {"role": "assistant", "content": "hm", "tool_calls": [call("{not json"), call("[1]")]},
        {"role": "tool", "tool_call_id": "call_1", "content": "?"},
    ],
    "no calls": [user("Hi"), {"role": "assistant", "content": "Yes", "tool_calls": []}, user("?")],
    "reasoning": [
        user("Hi"),
        {"role": "assistant", "content": "Yes.", "reasoning": "I think."},
        user("And?"),
    ],
    "developer": [{"role": "developer", "content": "Be brief."}, user("Hi")],
    "two systems": [
        {"role": "system", "content": "Be brief."},
        user("Hi"),
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        user("And?"),
    ],
    "late systems": [
        {"role": "system", "content": "Be brief."},
        user("Hi"),
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "assistant", "content": "Yes."},
        user("And?"),
        {"role": "system", "content": "Be quick."},
    ],
    "billing": [
        {"role": "system", "content": "x-anthropic-billing-header: cch=1\nBe brief."},
        user("Hi"),
    ],
    "empty parts": [
        user([{"type": "text", "text": text} for text in ("", "one", "", "two")]),
        {"role": "assistant", "content": [{"type": "text", "text": ""}], "tool_calls": [call({})]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": ""}] * 2},
    ],
    "names": [user("Hi") | {"name": "Ann"}, {"role": "assistant", "content": None}, user("?")],
}
OPEN = {
    "open": [user("Count"), {"role": "assistant", "content": "one, two, "}],
    "open parts": [
        user("Count"),
        {"role": "assistant", "content": [{"type": "text", "text": "one, two,"}]},
    ],
}
"""These end in a message to go on with."""

IN_PARTS = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}
{%- for part in message['content'] %}[{{ part['type'] }}]{{ part['text'] }}{% endfor %}
{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
IMAGES = """{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}
{%- else %}{% for part in m.content %}{% if part.type == 'image' %}<pad>{% else %}{{ part.text }}
{%- endif %}{% endfor %}{% endif %};{% endfor %}"""
"""Writes ``<pad>`` at the place of an image."""
KNOWS_DEVELOPER = """{% for m in messages %}{% if m.role == 'developer' %}(dev) {{ m.content }}
{% else %}{{ m.role }}{{ '/' + m.name if m.name }}: {{ m.content | trim }}{% endif %}
{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson(indent=2) }}{% endfor %}
{% if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}{% endfor %}
{% set mark = 1 %}{% generation %}{% set mark = 2 %}{{ eos_token }}{% endgeneration %}{{ mark }}
{{- messages[0].items() | length }}{{ messages[0].nothing is defined }}
{{- messages[0].keys is defined }}{{ tools }}{{ documents is defined }}{{ pad_token }}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for n in range(9) %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}{{ mood }}"""
SYSTEM_FIRST = """{% for m in messages %}{% if m.role == 'system' and not loop.first %}
{{ raise_exception('System message must be at the beginning.') }}{% endif %}
{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}
{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}
{% endfor %}"""
TEMPLATES: dict[str, str | None] = {
    "own": None,
    "in parts": IN_PARTS,
    "knows developer": KNOWS_DEVELOPER,
    "system first": SYSTEM_FIRST,
}
