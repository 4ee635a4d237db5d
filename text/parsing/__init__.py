"""Parsers of model output: token ids in, events out, the same however they are cut into steps.

``answer.make_parser`` makes a parser for one answer; ``server/generation/grammar.py`` calls it
for each choice. ``reader.py`` drives a format's grammar over text and marker tokens, with a worked
example; ``answer.py`` is the grammar of a whole answer, ``output.py`` where a grammar writes.
Formats are in ``formats/``, one row each in ``registry.py``, most of them tables for the grammars
in ``tagged.py`` and ``json_blocks.py``. Rules: docs/parsers.md.
"""
