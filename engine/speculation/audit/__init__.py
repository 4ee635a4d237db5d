"""Audits: answers scored again by the target without the draft, and what follows from a fault.

``scores.py`` is what the engine tells of one answer, ``evidence.py`` the verdict on it and the
sequential test over many. The engine computes the scores in its worker
(``engine/vllm_backend/scoring.py``).
"""
