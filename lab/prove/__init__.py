"""Checks of ``eaglegate prove``: an engine with its draft against the same engine without one.

``lane.py`` is an engine as the checks see it, and how requests are sent to it; ``checks.py`` is the
table of checks, a function each; ``report.py`` writes what they found. ``lab.prove.command`` starts
the engines. docs/prove.md explains every check.
"""
