"""Trials of a change on a part of live traffic: a draft, rules of speculation or a worker.

``sequential.py`` holds the statistics, ``canary.py`` runs a trial of a change: a draft
(``changes.py``), rules of speculation (``rules.py``) or a worker (``workers.py``). The
interface of a change is in ``arms.py``; a new kind is one more class and a field of the POST.
``draft_command.py`` is the command line. Nothing here runs unless it is asked for. docs/canary.md.
"""
