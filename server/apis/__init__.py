"""The APIs, a folder each: request model, request to Job, events to response, route."""
