"""Completions: POST /v1/completions."""
