"""The doctor: finds why acceptance fell, and applies the smallest cure that works.

``suspicion.py`` compares the acceptance of finished answers with their own history.
``trial_runs.py`` runs requests twice with the same text, and ``trials.py`` judges the pairs.
``cures.py`` applies cures and measures their effect. ``doctor.py`` examines suspicions when the
engine has room, and names the cause. The engine's part is
``engine/vllm_backend/prefix_cache.py``. The gateway's composition root puts it together.
"""
