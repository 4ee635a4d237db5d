"""Fair share: the steps of an engine are shared between a latency class of keys and all others.

``fair_share.py`` divides a step, with the prices that ``work_prices.py`` learns, and
``engine/step_plugin.py`` enforces the ration in vLLM's scheduler. Keys get their class from
``server/access/key_classes.py``.
"""
