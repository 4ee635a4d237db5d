"""Checks of ``eaglegate prove``: an engine with its draft against the same engine without one.

``lane.py`` represents an engine under test and sends requests to it. ``checks.py`` is the table of
checks, one function each, and ``report.py`` writes the findings. ``lab.prove.command`` starts the
engines. docs/prove.md explains every check.
"""
