"""Code that reads what a client wrote, such as a schema or an image, is listed with its limits."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .tree import Module, Tree

LIBRARIES = {
    "PIL", "jinja2", "jsonschema", "jsonschema_rs", "lark", "llguidance", "re2", "regex",
    "xgrammar",
}  # fmt: skip
"""Packages that read schemas, patterns, grammars, templates and images."""
READERS = {
    "features/capture/patterns.py": "an operator's patterns, in linear time by RE2, on a thread",
    "features/audit/tags.py": "child process",
    "engine/vllm_backend/grammar_trial.py": "child process",
    "engine/remote/images.py": "draws an image, and reads none",
    "engine/vllm_backend/images.py": "wraps pixels, and reads none",
    "server/apis/shared/constraints.py": "on the request's path: meta-schemas, within check_bounds",
    "text/grammars/enforcement.py": "on the request's path: listed values, linear patterns",
    "text/grammars/lark_grammar.py": "on the request's path, up to MAX_DEFINITION characters",
    "text/media/decoder.py": "child process",
    "text/parsing/tools.py": "Effort.measure before a check, and linear patterns",
    "text/rendering/template.py": "child process, or the watchdog for an operator's template",
    "text/rendering/template_cost.py": "on the request's path: one pass over a parsed template",
}
CHILDREN = {
    "features/audit/grammars.py": "features/audit/tags.py",
    "engine/vllm_backend/grammar_trial.py": "",
    "text/media/decoder.py": "",
    "text/rendering/sandbox.py": "",
}
"""Programs of child processes, and the readers that nothing else may import."""
LIMITS = (
    "setrlimit(resource.RLIMIT_AS",
    "setitimer(signal.ITIMER_PROF",
    '__name__ == "__main__"',
)
VALIDATORS = ("Draft4Validator", "Draft7Validator", "Draft202012Validator")
FROM_JSONSCHEMA_RS = {
    *VALIDATORS, "ReferencingError", "RegexOptions", "ValidationError", "ValidationErrorKind",
}  # fmt: skip


def check_readers(tree: Tree) -> Iterator[str]:
    for module in tree.package:
        reads = bool({name.partition(".")[0] for name in module.imports} & LIBRARIES)
        if reads != (module.path in READERS):
            yield f"{module.path}: READERS lists those that import one of {sorted(LIBRARIES)}"


def check_validators(tree: Tree) -> Iterator[str]:
    """jsonschema fetches URLs by default, and jsonschema-rs URLs and files."""
    allowed = {"jsonschema_rs", *(f"jsonschema_rs.{name}" for name in FROM_JSONSCHEMA_RS)}
    for module in tree.package:
        for name in sorted(module.imports - allowed):
            if name.startswith("jsonschema"):
                yield f"{module.path}: imports {name}, which may follow references"
        yield from _find_open_validators(module)


def _find_open_validators(module: Module) -> Iterator[str]:
    for call in module.select(ast.Call):
        if (
            isinstance(call.func, ast.Name)
            and call.func.id in VALIDATORS
            and not isinstance(call.args[0], ast.Dict)
            and "retriever" not in {keyword.arg for keyword in call.keywords}
        ):
            yield f"{module.path}:{call.lineno}: a schema from elsewhere needs a retriever"


def check_children(tree: Tree) -> Iterator[str]:
    """A child limits its time and memory, and alone imports its reader."""
    for program, reader in CHILDREN.items():
        for child in tree.select(program):
            for limit in LIMITS:
                if limit not in child.source:
                    yield f"{program}: has no {limit}"
        if program == "text/rendering/sandbox.py":  # starts the child, too
            continue
        private = {module.name for module in tree.select(program, reader or program)}
        for module in tree.package:
            if module.path != program and private & module.imports:
                yield f"{module.path}: imports {private & module.imports} of a child process"


RULES = (check_readers, check_validators, check_children)
