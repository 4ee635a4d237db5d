"""Grammars that requests bring, in Lark's syntax or as a regular expression, read once."""

from __future__ import annotations

import re
from functools import lru_cache

from eaglegate.server.errors import InvalidRequest
from eaglegate.text.grammars.text_grammar import BadGrammar, TextGrammar

MAX_DEFINITION = 16 << 10
"""Characters; parsing more would delay other requests."""
COMMENT = re.compile(r"(#|//).*$", re.MULTILINE)
DIALECT = re.compile(r"\A\s*%llguidance\s*\{\s*\}")
"""Header that llguidance, which vLLM may use, wants at the beginning of its Lark."""


def compile_grammar(syntax: str, definition: str, param: str) -> TextGrammar:
    """Raises InvalidRequest."""
    if len(definition) > MAX_DEFINITION:
        raise InvalidRequest(
            f"'{param}' has {len(definition)} characters; the limit is {MAX_DEFINITION}.",
            param=param,
        )
    try:
        return _compile(syntax, definition)
    except BadGrammar as error:
        raise InvalidRequest(f"'{param}' cannot be used: {error}.", param=param) from None


def to_ebnf(grammar: str, param: str) -> str:
    """A grammar in EBNF as it is; one in Lark as EBNF, as ``vllm serve`` tells the two apart."""
    if "::=" in COMMENT.sub("", grammar):
        return grammar
    return compile_grammar("lark", DIALECT.sub("", grammar), param).ebnf(in_json=False)


@lru_cache(maxsize=64)
def _compile(syntax: str, definition: str) -> TextGrammar:
    """Cached: agents send the same tools with every turn."""
    # The compilers are loaded with the first grammar that a request brings.
    from eaglegate.text.grammars.lark_grammar import lark_grammar, regex_grammar

    return lark_grammar(definition) if syntax == "lark" else regex_grammar(definition)
