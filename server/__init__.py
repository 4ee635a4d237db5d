"""The HTTP gateway. It knows nothing of vLLM or Prometheus.

The packages follow the life of a request (docs/architecture.md): ``http``, ``access``, ``apis``,
``generation``, and back. ``store`` stores responses and conversations, ``backends`` creates the
engine, and ``cli`` has the commands and assembles the gateway. ``app.py`` makes the ASGI
application, ``settings.py`` has the settings, ``flags.py`` turns settings into flags, and
``errors.py`` has every error that a client can see.
"""
