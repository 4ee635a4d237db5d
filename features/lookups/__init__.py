"""Lookups: drafts copied from earlier text of the same request, beside the draft model's.

An answer that quotes its prompt, such as an edit of a file, is predicted by the text itself.
``index.py`` finds where the last tokens stood before, ``acceptance.py`` learns how often lookups
and the draft model's tokens are accepted, and ``chooser.py`` chooses between the two for every
request and step. The part in the engine is ``features/lookups/engine/first_runner.py``.
"""
