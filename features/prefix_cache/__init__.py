"""What a draft costs in the prefix cache, and what keeps the cache whole for it.

``engine/drops.py`` counts the prompt tokens that are computed again because of the draft, and
``engine/step_plugin.py`` keeps tokens that the draft has not seen out of the cache. The rule of the
drops is in ``engine/speculation/accounts/prefix_cost.py``.
"""
