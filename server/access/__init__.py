"""Access to the engine: API keys, quota, budget, memory and admission.

Called by ``server.http.auth`` before the body is read and by ``server.apis.shared`` once the
request is a Job. Nothing here reads HTTP or knows an API. A new limit is a module here, charged
in one place.
"""
