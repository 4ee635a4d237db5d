"""Metrics, traces and logs made from steps and events. This folder knows nothing of ``server``.

``telemetry.py`` collects the reports of ``engine.events.Observer`` and of the wrapped engine
(``engine.py``). ``metrics`` has one class per group of Prometheus metrics, ``pages.py`` the
operator's pages, ``middleware.py`` request ids and the access log. ``tracing.py`` sends traces.
``captures`` defines the format of captured requests. ``facts.py`` is the bus of rare facts.
``server.cli.serve`` puts them together. A new metric is a class in a module of ``metrics`` and a
row of its ``GROUPS``.
"""
