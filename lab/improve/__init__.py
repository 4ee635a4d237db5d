"""Improvement of a running draft: tuned on captured traffic, tried live, promoted or rolled back.

It runs in a process of its own (``eaglegate improve``). ``loop.py`` takes candidates through the
``stages.py``, and ``ledger.py`` records the results. The trials are those of ``canary``.
"""
