"""Images of a request, from the client's bytes to a checked image. Requests without images import
none of it but ``image``.
"""
