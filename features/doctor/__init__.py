"""The doctor: finds why acceptance fell.

``suspicion.py`` compares the acceptance of finished answers with their own history.
``trial_runs.py`` runs requests twice with the same text, and ``trials.py`` judges the pairs.
``doctor.py`` examines suspicions when the engine has room, and names the cause.
"""
