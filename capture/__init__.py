"""Captured requests: what is written of a request that ended, redacted, encrypted and bounded.

The gateway writes (``capture.py``, one record per request) where ``--capture`` names a folder.
``files.py`` reads and writes the files, ``record.py`` is their format, ``redaction.py`` what is
left out. ``eaglegate capture`` (``command.py``) and the lab read them. docs/capture.md.
"""
