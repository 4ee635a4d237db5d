"""Captured requests: records of requests that ended, redacted, encrypted and bounded.

The gateway writes (``capture.py``, one record per request) where ``--capture`` names a folder.
``files.py`` reads and writes the files, within the bounds of ``limits.py``. ``record.py`` holds
their format, and ``redaction.py`` and ``patterns.py`` remove what must not be kept. ``eaglegate
capture`` (``command.py``) and the lab read them. A gateway without a capture loads ``limits.py``
alone. docs/capture.md.
"""
