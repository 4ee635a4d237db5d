"""Grammars that clients send as text: Lark and regular expressions."""
