"""HTTP for every API: connections, responses and SSE.

ASGI middleware and uvicorn's protocol, assembled in ``server.app`` and ``server.cli.serve``.
Nothing here knows an API: the format of errors is in ``server.errors``. A new middleware is a
module here and a line in ``eaglegate.server.app``.
"""
