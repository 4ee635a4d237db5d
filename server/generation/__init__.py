"""The way from a Job to events: prompt, context, grammar, engine steps and parsers.

``generate.py`` is the page to read first. The routes of ``server.apis`` call it in the same way for
streamed and complete answers. Nothing here knows an API or HTTP.
"""
