"""The lab: measuring, proving, tuning and training. The running gateway never imports it.

``measure`` has the load, statistics and reports of ``eaglegate bench`` and ``replay``. ``prove``
compares an engine with the same engine without a draft. ``improve`` tunes a draft on captured
traffic. ``training`` makes the demo checkpoint. ``benchmarks`` has side-by-side measurements for
developers.
"""
