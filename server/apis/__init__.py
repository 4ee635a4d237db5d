"""The APIs, a folder each.

``request.py`` is what a client may send, ``to_job.py`` the rules that span fields,
``response.py`` turns events into frames or one body. ``server/app.py`` has the routes of those
that store nothing, ``responses/route.py`` those of the one that does. ``shared`` holds what several
APIs have in common, ``operations`` the endpoints that generate nothing. Called by ``server.app``
alone. A new API is a new folder and its route in ``server/app.py``.
"""
