"""Improvement of a running draft: tried on live traffic, judged, promoted or rolled back.

``sequential.py`` holds the statistics, ``canary.py`` runs a trial over ``engine.speculation.swap``.
Nothing here runs unless it is asked for.
"""
