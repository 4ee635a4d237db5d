"""Trials of a change on part of the live traffic: a draft, speculation rules or a worker.

``sequential.py`` has the statistics and ``canary.py`` runs a trial. The change is a draft
(``changes.py``), speculation rules (``rules.py``) or a worker (``workers.py``). ``arms.py`` defines
the interface of a change; a new kind is one more class and a field of the POST body.
``draft_command.py`` is the command line. Nothing here runs until a canary is started. See
docs/canary.md.
"""
