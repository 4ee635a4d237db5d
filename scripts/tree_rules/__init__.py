"""Rules of the source tree that no linter has, and the budget of its lines.

``python -m scripts.tree_rules`` checks them all; each file is read and parsed once. A module of
this package has the rules of one subject, listed in its ``RULES``. A rule is a function of a
``Tree`` that yields a sentence for each fault.
"""
