"""Parsers of model output: token ids in, events out, the same however they are cut into steps.

``answer.make_parser`` makes a parser for one answer; ``server/generation/grammar.py`` calls it
for each choice. ``reader.py`` drives a format's routine over text and marker tokens, with a worked
example; ``answer.py`` is the routine of a whole answer, ``output.py`` where a routine writes.
Formats are in ``formats/``, one row each in ``registry.py``, most of them tables for the routines
in ``tagged.py`` and ``json_blocks.py``. Rules: docs/parsers.md.

For a new format, begin with the one that looks most like it:

    {"name": "get_weather", "arguments": {}} between markers    formats/json_lists.py
    a name, then JSON, between tokens                           formats/sections.py
    <parameter name="city">Paris</parameter>                    formats/xml_calls.py
    <arg_key>city</arg_key><arg_value>Paris</arg_value>         formats/key_values.py
    [get_weather(city="Paris")]                                 formats/pythonic.py
    messages on channels, or to recipients                      formats/harmony.py, muse.py
    anything else                                               the worked example in reader.py
"""
