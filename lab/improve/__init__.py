"""Improvement of a running draft: tuned on captured traffic, tried live, promoted or rolled back.

A process of its own (``eaglegate improve``): ``loop.py`` takes candidates through the
``stages.py``, and ``ledger.py`` remembers all of it. The trials are those of ``canary``.
"""
