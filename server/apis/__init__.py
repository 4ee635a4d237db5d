"""The APIs, a folder each.

``request.py`` is what a client may send, ``to_job.py`` the rules that span fields,
``response.py`` turns events into frames or one body, ``route.py`` is the endpoint. ``shared``
holds what several APIs have in common, ``operations`` the endpoints that generate nothing. Called
by ``server.app`` alone. A new API is a new folder and its router in ``server.app``.
"""
