"""HTTP in, HTTP out. Knows nothing of vLLM or Prometheus.

The folders follow the life of a request (docs/architecture.md): ``http``, ``access``, ``apis``,
``generation``, ``parsing``, and back. ``store`` keeps responses and conversations, ``backends``
says which engine there is, ``cli`` is the command line and the composition root. ``app.py`` makes
the ASGI application, ``settings.py`` holds every setting, ``errors.py`` every error a client can
see.
"""
