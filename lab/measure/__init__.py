"""Measurement: load, data sets, statistics and reports of ``eaglegate bench`` and ``replay``.

All of it works with any OpenAI-compatible URL. Only ``server.cli`` imports it, lazily, for its
commands. It imports ``engine`` for the terms of speculation and ``observability`` for the
format of captures, but neither ``server`` nor vLLM. Definitions of every figure: docs/measure.md.
"""
