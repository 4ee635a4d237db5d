"""HTTP in, HTTP out. Knows nothing of vLLM or Prometheus.

The folders follow the life of a request (docs/architecture.md): ``http``, ``access``, ``apis``,
``generation``, and back. ``store`` keeps responses and conversations, ``backends`` makes the
engine, ``cli`` holds the commands and puts everything together. ``app.py`` makes the ASGI
application, ``settings.py`` holds the settings and ``flags.py`` turns them into flags,
``errors.py`` holds every error that a client can see.
"""
