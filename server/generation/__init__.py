"""Way from a Job to events: prompt, context, grammar, engine steps and parsers.

``generate.py`` is the page to read first. Called by the routes of ``server.apis``, the same way
for answers that are streamed and those that are not. Knows no API and no HTTP.
"""
