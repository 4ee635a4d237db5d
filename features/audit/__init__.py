"""Audits: answers that the target scores again without the draft, and the response to a fault.

``engine/speculation/accounts/scores.py`` has the engine's scores of one answer, ``evidence.py`` the
verdict on it and the sequential test over many answers, and ``grammars.py`` the check of
constrained ones. ``auditor.py`` selects answers and audits them when there is room. ``holds.py``
takes speculation from a workload, and ``files.py`` writes the evidence that reproduces a violation.
The engine computes the scores in its worker (``engine/scoring.py``). Remote workers score each
other's answers instead (``workers.py``, ``likelihood.py``), each in a queue of its own
(``audit_queue.py``). The gateway's composition root puts the parts together.
"""
