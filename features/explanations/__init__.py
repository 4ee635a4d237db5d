"""Explanations of requests: the time of one request, step by step (docs/explain.md)."""
