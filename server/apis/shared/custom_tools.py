"""The format of a custom tool to the grammar its text must match."""

from __future__ import annotations

from functools import lru_cache

from server.apis.chat.request import CustomFormat
from server.errors import InvalidRequest
from server.generation.lark_grammar import lark_grammar
from server.generation.regex import regex_grammar
from server.generation.text_grammar import BadGrammar, TextGrammar

MAX_DEFINITION = 16 << 10
"""Characters: reading more would hold up everybody."""
SYNTAXES = {"lark": lark_grammar, "regex": regex_grammar}


def text_grammar(form: CustomFormat | None, path: str) -> TextGrammar | None:
    """None for any text. Chat completions give the grammar a level deeper than Responses do."""
    if form is None or form.type == "text":
        return None
    given, where = (
        (form.grammar, f"{path}.format.grammar") if form.grammar else (form, f"{path}.format")
    )
    if given.syntax is None or given.definition is None:
        raise InvalidRequest(
            f"'{where}' needs a 'syntax' (lark or regex) and a 'definition'.", param=where
        )
    if len(given.definition) > MAX_DEFINITION:
        raise InvalidRequest(
            f"'{where}.definition' has {len(given.definition)} characters; at most "
            f"{MAX_DEFINITION} are read.",
            param=f"{where}.definition",
        )
    try:
        return _read(given.syntax, given.definition)
    except BadGrammar as error:
        raise InvalidRequest(
            f"'{where}.definition' cannot be used: {error}.", param=f"{where}.definition"
        ) from None


@lru_cache(maxsize=64)
def _read(syntax: str, definition: str) -> TextGrammar:
    """Agents send the same tools with every turn."""
    return SYNTAXES[syntax](definition)
