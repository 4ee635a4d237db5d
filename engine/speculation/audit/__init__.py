"""Audits: answers scored again by the target without the draft, and what follows from a fault.

``scores.py`` is what the engine tells of one answer, ``evidence.py`` the verdict on it and the
sequential test over many, ``grammars.py`` the check of constrained answers. ``auditor.py`` selects
answers and audits them when there is room, ``holds.py`` takes speculation from a workload, and
``files.py`` keeps what shows a violation again. The engine computes the scores in its worker
(``engine/vllm_backend/scoring.py``). The gateway's composition root puts it together.
"""
