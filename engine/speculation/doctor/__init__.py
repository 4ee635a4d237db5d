"""The doctor: finds why acceptance fell, and applies the smallest cure that works.

``suspicion.py`` compares the acceptance of finished answers with their own history. ``trials.py``
judges requests that ran twice with the same text. ``doctor.py`` runs the trials when the engine has
room, names the cause and applies the cures. The engine's part is
``engine/vllm_backend/prefix_cache.py``. The gateway's composition root puts it together.
"""
