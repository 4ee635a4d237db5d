"""Errors for unknown paths and methods, which suggest the path or method that was meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from eaglegate.server.errors import MethodNotAllowed, NotFound, UpgradeRequired

PREFIX = "/v1"
"""The API's prefix. Clients whose base URL lacks it, or has it twice, request paths that do not
exist.
"""


def method_error(routes: Sequence[BaseRoute], scope: Scope) -> MethodNotAllowed | UpgradeRequired:
    """Return the error for a path that only has other methods, and name these."""
    methods = list_methods(routes, scope)
    if _is_websocket(scope):
        return UpgradeRequired(
            f"{scope['path']} takes no websockets; send {' or '.join(sorted(methods))} over HTTP."
        )
    methods |= {"HEAD"} if "GET" in methods else set()
    names = sorted(methods)
    request = f"{scope['method']} {scope['path']}"
    error = MethodNotAllowed(f"{request} is not allowed; use {' or '.join(names)}.")
    error.allowed = ", ".join(names)
    return error


def path_error(routes: Sequence[BaseRoute], scope: Scope) -> NotFound:
    """Return the error for an unknown path, and suggest one with another prefix or slash if it
    exists.
    """
    sentence = f"There is no {scope['method']} {scope['path']}."
    if _is_websocket(scope):
        return NotFound(f"{sentence} There are no websockets either; send requests over HTTP.")
    for path in _similar_paths(scope["path"]):
        if scope["method"] in list_methods(routes, {**scope, "path": path}):
            hint = f" Did you mean {path}? Check the client's base URL."
            return NotFound(sentence + hint)
    return NotFound(sentence)


def _is_websocket(scope: Scope) -> bool:
    return any(name == b"sec-websocket-key" for name, _ in scope["headers"])


def list_methods(routes: Iterable[BaseRoute], scope: Scope) -> set[str]:
    """Return the methods of a path; empty for an unknown path."""
    return {
        method
        for route in routes
        if route.matches(scope)[0] is not Match.NONE
        for method in getattr(route, "methods", None) or ()
    }


def _similar_paths(path: str) -> Iterator[str]:
    bare_path = path.rstrip("/")
    while bare_path.startswith(f"{PREFIX}{PREFIX}/"):
        bare_path = bare_path.removeprefix(PREFIX)
    yield bare_path
    if not bare_path.startswith(f"{PREFIX}/"):
        yield PREFIX + bare_path
