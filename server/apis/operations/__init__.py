"""Operator and utility endpoints: status, tokens, admin."""
