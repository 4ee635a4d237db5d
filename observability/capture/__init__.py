"""Capture of requests for replay, draft training and the comparison of drafts (docs/capture.md).

``record.py`` and ``files.py`` are the format; they import nothing else of ours.
"""
