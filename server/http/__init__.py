"""HTTP around every API: connections, authentication, bodies, responses and SSE.

ASGI middleware and uvicorn's protocol, put together in ``server.app`` and ``server.cli.serve``.
Knows no API: what an error looks like is in ``server.errors``. A new middleware is a module here
and a line in ``eaglegate.server.app``.
"""
