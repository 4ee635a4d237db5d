"""``eaglegate top``: the numbers of the operator's page in a terminal.

``command.py`` reads the options, ``reading.py`` asks the gateway, ``panels.py`` turns a reading
into words and rows, and ``screen.py`` shows them (textual, the extra ``top``). A new number is a
row in ``panels.py``; nothing else needs to know it.
"""
