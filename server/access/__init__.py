"""Access to the engine: authentication, other origins, API keys, quotas, budgets and admission.

``auth.py`` is the middleware that calls the rest before the body is read; ``server.apis.shared``
calls it once the request is a Job. Nothing here knows an API. A new limit is a module here, charged
in one place.
"""
