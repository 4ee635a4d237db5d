"""Errors for paths without a route: they name the path's methods, or the path that was meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from eaglegate.server.errors import MethodNotAllowed, NotFound

PREFIX = "/v1"
"""Clients whose base URL lacks it, or has it twice, ask for paths that do not exist."""


def method_error(routes: Sequence[BaseRoute], scope: Scope) -> MethodNotAllowed:
    """The path has other methods: those of all its routes."""
    methods = _list_methods(routes, scope)
    methods |= {"HEAD"} if "GET" in methods else set()
    listed = sorted(methods)
    where = f"{scope['method']} {scope['path']}"
    error = MethodNotAllowed(f"{where} is not allowed; use {' or '.join(listed)}.")
    error.allowed = ", ".join(listed)
    return error


def path_error(routes: Sequence[BaseRoute], scope: Scope) -> NotFound:
    """There is no such path; one that differs by its prefix or a slash is named."""
    where = f"There is no {scope['method']} {scope['path']}."
    for path in _similar_paths(scope["path"]):
        if scope["method"] in _list_methods(routes, {**scope, "path": path}):
            hint = f" Did you mean {path}? It depends on the base URL that a client is given."
            return NotFound(where + hint)
    return NotFound(where)


def _list_methods(routes: Iterable[BaseRoute], scope: Scope) -> set[str]:
    return {
        method
        for route in routes
        if route.matches(scope)[0] is not Match.NONE
        for method in getattr(route, "methods", None) or ()
    }


def _similar_paths(path: str) -> Iterator[str]:
    plain = path.rstrip("/")
    while plain.startswith(f"{PREFIX}{PREFIX}/"):
        plain = plain.removeprefix(PREFIX)
    yield plain
    if not plain.startswith(f"{PREFIX}/"):
        yield PREFIX + plain
