"""Code that reads what a client wrote, such as a schema or an image, is listed with its limits."""

from __future__ import annotations

import ast

import pytest

from tests.test_layers import ROOT, imports, sources

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
    "engine/vllm_backend/images.py": "after text/media/decoder.py has decoded the same bytes",
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
VALIDATORS = ("Draft4Validator", "Draft7Validator", "Draft202012Validator")
FROM_JSONSCHEMA_RS = {
    *VALIDATORS, "ReferencingError", "RegexOptions", "ValidationError", "ValidationErrorKind",
}  # fmt: skip


def list_open_validators(path: str) -> list[str]:
    """Return the lines that make a validator of a schema from elsewhere without a retriever."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        f"{path}:{call.lineno}"
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id in VALIDATORS
        and not isinstance(call.args[0], ast.Dict)
        and "retriever" not in {keyword.arg for keyword in call.keywords}
    ]


def name_module(path: str) -> str:
    return "eaglegate." + path.removesuffix(".py").replace("/", ".")


def test_every_reader_is_listed_with_its_limit() -> None:
    readers = {
        path.relative_to(ROOT).as_posix()
        for path in sources()
        if {name.partition(".")[0] for name in imports(path)} & LIBRARIES
    }
    assert readers == READERS.keys()


def test_no_validator_follows_a_reference_out_of_its_document() -> None:
    """jsonschema fetches URLs by default, and jsonschema-rs URLs and files."""
    names = set[str]().union(*map(imports, sources()))
    assert "jsonschema" not in names
    used = {name.removeprefix("jsonschema_rs.") for name in names if "jsonschema_rs." in name}
    assert used == FROM_JSONSCHEMA_RS
    assert not [line for path in READERS for line in list_open_validators(path)]


@pytest.mark.parametrize("program", CHILDREN)
def test_a_child_limits_its_time_and_memory(program: str) -> None:
    code = (ROOT / program).read_text(encoding="utf-8")
    assert "setrlimit(resource.RLIMIT_AS" in code
    assert "setitimer(signal.ITIMER_PROF" in code
    assert '__name__ == "__main__"' in code


def test_readers_of_a_child_are_imported_by_its_program_only() -> None:
    for program, reader in CHILDREN.items():
        if program == "text/rendering/sandbox.py":  # starts the child, too
            continue
        importers = {
            path.relative_to(ROOT).as_posix()
            for path in sources()
            if {name_module(reader), name_module(program)} & imports(path)
        }
        assert importers <= {program}
