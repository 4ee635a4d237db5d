"""Improvement of a running draft: tuned on captured traffic, tried live, promoted or rolled back.

In the gateway: ``sequential.py`` holds the statistics, ``canary.py`` runs a trial of a change: a
draft (``changes.py``), rules of speculation (``rules.py``) or a worker (``workers.py``). What every
change must do is in ``arms.py``; a new kind is one more class and a field of the POST. Beside it, a
process of its own (``eaglegate improve``): ``loop.py`` takes candidates through the ``stages.py``,
and ``ledger.py`` remembers all of it. Nothing here runs unless it is asked for.
"""
