"""Grammars that clients send as text, and the keywords of schemas that grammars enforce."""
