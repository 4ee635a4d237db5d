"""``eaglegate top``: the numbers of the operator's page in a terminal.

``command.py`` reads the options, ``reading.py`` queries the gateway, ``panels.py`` turns a reading
into text and rows, and ``screen.py`` shows them (textual, the extra ``top``). A new number is a row
in ``panels.py`` and nothing else.
"""
