"""Grammars in requests, in Lark's syntax or as a regular expression, compiled once."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from eaglegate.server.errors import InvalidRequest

if TYPE_CHECKING:
    from eaglegate.text.grammars.text_grammar import TextGrammar

MAX_DEFINITION = 16 << 10
"""Maximum number of characters. Parsing more would delay other requests."""
COMMENT = re.compile(r"(#|//).*$", re.MULTILINE)
DIALECT = re.compile(r"\A\s*%llguidance\s*\{\s*\}")
"""Header that llguidance, one of vLLM's grammar backends, expects at the beginning of a Lark
grammar.
"""


def compile_grammar(syntax: str, definition: str, param: str) -> TextGrammar:
    """Compile a grammar. Raises InvalidRequest."""
    if len(definition) > MAX_DEFINITION:
        raise InvalidRequest(
            f"'{param}' has {len(definition)} characters; the limit is {MAX_DEFINITION}.",
            param=param,
        )
    # The compilers are imported with the first grammar in a request.
    from eaglegate.text.grammars.text_grammar import BadGrammar

    try:
        return _compile(syntax, definition)
    except BadGrammar as error:
        raise InvalidRequest(f"'{param}' cannot be used: {error}.", param=param) from None


def to_ebnf(grammar: str, param: str) -> str:
    """Return a grammar in EBNF, converting it from Lark if needed. The syntax is detected as in
    ``vllm serve``.
    """
    if "::=" in COMMENT.sub("", grammar):
        return grammar
    return compile_grammar("lark", DIALECT.sub("", grammar), param).ebnf(in_json=False)


@lru_cache(maxsize=64)
def _compile(syntax: str, definition: str) -> TextGrammar:
    """Compile a grammar. Cached, because agents send the same tools with every turn."""
    from eaglegate.text.grammars.lark_grammar import lark_grammar, regex_grammar

    return lark_grammar(definition) if syntax == "lark" else regex_grammar(definition)
