"""Trials of a change on part of the live traffic: a draft, speculation rules or a worker.

A gateway loads ``runner.py``, which runs one canary at a time, ``changes.py``, which creates the
changes, and ``promoted.py``, which remembers promoted rules. The first canary loads the rest:
``sequential.py`` has the statistics, ``keyed_test.py`` lets no API key decide alone, and
``canary.py`` runs a trial of a draft (``drafts.py``), speculation rules (``rules.py``) or a worker
(``workers.py``). ``arms.py`` defines the interface of a change; a new kind is one more class and a
field of the POST body. ``draft_command.py`` is the command line. See docs/canary.md.
"""
