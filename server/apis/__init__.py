"""The APIs, one package each.

``request.py`` defines the request body, ``to_job.py`` applies the rules that span several fields,
and ``response.py`` turns events into frames or one body. ``server/app.py`` has the routes of
stateless APIs and ``responses/route.py`` those of the Responses API. ``shared`` has code common to
several APIs, ``operations`` the endpoints that generate nothing. Only ``server.app`` calls these
packages. A new API is a new package with a route in ``server/app.py``.
"""
