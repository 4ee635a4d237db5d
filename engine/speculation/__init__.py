"""Speculation: its accounts, the depth of every step, and drafts.

``accounting.py`` has the formulas, ``policy.py`` the depth of a request, ``planner`` the depth of a
step by its cost, ``inspection`` says whether a draft fits a target before anything is loaded,
``drafts.py`` copies drafts and ``swap.py`` exchanges the running one.
"""
