"""Metrics, traces and logs, from steps and events. Knows nothing of ``server``.

``telemetry.py`` collects what ``engine.events.Observer`` and the wrapped engine (``engine.py``)
report; ``metrics`` has one class per group of Prometheus metrics; ``pages.py`` the operator's
pages; ``middleware.py`` has request ids and the access log; ``tracing.py`` sends traces;
``explain.py`` accounts for the time of one request. ``server.cli.serve`` puts them together. A new
metric is a class in a module of ``metrics`` and a row of its ``GROUPS``.
"""
