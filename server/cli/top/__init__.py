"""``eaglegate top``: the numbers of the operator's page in a terminal.

``command.py`` reads the options and queries the gateway, and ``panels.py`` turns a
reading into lines. A new number is a row in ``panels.py`` and nothing else.
"""
