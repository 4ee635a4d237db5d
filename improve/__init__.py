"""Improvement of a running draft: tuned on captured traffic, tried live, promoted or rolled back.

In the gateway: ``sequential.py`` holds the statistics, ``canary.py`` runs a trial over
``engine.speculation.swap``. Beside it, a process of its own (``eaglegate improve``): ``loop.py``
takes candidates through the ``stages.py``, and ``ledger.py`` remembers all of it. Nothing here runs
unless it is asked for.
"""
