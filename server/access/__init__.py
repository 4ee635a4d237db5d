"""Access to the engine: API keys, quotas, budgets, memory and admission.

``server.http.auth`` calls this package before the body is read, and ``server.apis.shared`` calls it
once the request is a Job. Nothing here reads HTTP or knows an API. A new limit is a module here,
charged in one place.
"""
