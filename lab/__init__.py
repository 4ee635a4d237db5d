"""The lab: measuring, proving, tuning and training. The running gateway never imports it.

``measure`` is load, statistics and reports behind ``eaglegate bench`` and ``replay``; ``prove``
checks an engine against itself without a draft; ``improve`` tunes a draft on captured traffic;
``training`` makes the demo checkpoint; ``benchmarks`` are side-by-side figures for developers.
"""
