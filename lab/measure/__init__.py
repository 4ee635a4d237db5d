"""Measurement: load, data sets, statistics and reports behind ``eaglegate bench`` and ``replay``.

Everything here works on any OpenAI-compatible URL, but for ``prove/``, which drives engines. Only
``server.cli`` imports it, lazily, for its commands; it imports ``engine`` for the words of
speculation and ``eaglegate.capture`` for the format of captures, never ``server`` nor vLLM.
Definitions of every figure: docs/measure.md.
"""
