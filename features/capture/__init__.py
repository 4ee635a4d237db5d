"""Captured requests: redacted, encrypted and bounded records of finished requests.

The gateway writes one record per request (``capture.py``) when ``--capture`` names a folder.
``files.py`` writes the files, within the bounds of ``limits.py``. ``observability.captures`` has
their format, and ``redaction.py`` and ``patterns.py`` remove text that must not be kept.
``eaglegate capture`` (``command.py``) and the lab read the files. A gateway without a capture loads
only ``limits.py``. See docs/capture.md.
"""
