"""``eaglegate chat``: talk to any endpoint of chat completions, in a terminal or a pipe.

``command.py`` reads the options, ``endpoint.py`` sends a request and reads its stream,
``answer.py`` folds the chunks and measures them, ``session.py`` holds the conversation. A number
that another server reports is a line in ``answer.py``.
"""
