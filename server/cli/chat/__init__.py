"""``eaglegate chat``: talk to any chat completions endpoint, in a terminal or a pipe.

``command.py`` reads the options, ``endpoint.py`` sends a request and reads its stream,
``answer.py`` folds and measures the chunks, and ``session.py`` holds the conversation. Support for
a number that another server reports is one more line in ``answer.py``.
"""
