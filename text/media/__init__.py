"""Images of a request, from the client's bytes to a checked image.

``image``, ``source`` and ``hosts`` have the types and the settings. Everything else is imported
with the first image.
"""
