"""How requests survive the loss of their engine, one way for a local engine and for a fleet.

``policy.py`` has the limits and what counts as a loss, ``recovery.py`` submits requests again,
``continuation.py`` joins the steps without a gap, ``pool.py`` is what a restarted engine and a
fleet share. Called by ``engine.supervisor`` and ``engine.fleet``.
"""
