"""Parsers of model output: token ids in, events out, however the ids are split into steps.

``answer.make_parser`` makes a parser for one answer; ``server/generation/grammar.py`` calls it
for each choice. ``reader.py`` drives a format's routine over text and marker tokens, and explains
it with a worked example. ``answer.py`` has the routine of a whole answer, and ``output.py`` the
output that a routine writes to. Formats are in ``formats/``, with one row each in ``registry.py``.
Most of them are tables for the routines in ``tagged.py`` and ``json_blocks.py``. The rules are in
docs/parsers.md.

For a new format, begin with the format that looks most like it:

    {"name": "get_weather", "arguments": {}} between markers    formats/json_lists.py
    a name, then JSON, between tokens                           formats/sections.py
    <parameter name="city">Paris</parameter>                    formats/xml_calls.py
    <arg_key>city</arg_key><arg_value>Paris</arg_value>         formats/key_values.py
    [get_weather(city="Paris")]                                 formats/pythonic.py
    messages on channels, or to recipients                      formats/harmony.py, muse.py
    anything else                                               the worked example in reader.py
"""
