"""The commands ``serve``, ``check``, ``parse`` and others.

``serve.py`` is the composition root: settings, engine, observers, application, uvicorn. A new
command is a module here and a row in ``eaglegate.server.__main__``.
"""
