"""YAML files that people write, read within limits of size, depth and expanded aliases.

PyYAML has no limits: a few hundred bytes of aliases stand for gigabytes, an alias may contain
itself, and values that do not fit their tag raise whatever exception occurs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 2 << 20
MAX_NODES = 1 << 18
"""Most scalars, lists and mappings, each alias counted with everything that it stands for."""
MAX_DEPTH = 50
TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
WRONG_VALUES = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""Exceptions of PyYAML for scalars that do not fit their tag, such as 2027-02-30."""


class InvalidYaml(ValueError):
    """The text is no YAML, or exceeds a limit. ``str`` is one line without an excerpt."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with a limit on brackets, which PyYAML scans in quadratic time."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        if self.flow_level >= MAX_DEPTH:
            raise InvalidYaml(TOO_DEEP)
        super().fetch_flow_collection_start(TokenClass)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except InvalidYaml:
            raise
        except WRONG_VALUES:
            place = _locate(node.start_mark)
            # Without the value, which may be a secret.
            raise InvalidYaml(f"{place}: the value does not fit its type") from None


def read_yaml(path: Path) -> Any:
    """Read a YAML file. Raises InvalidYaml and OSError."""
    return parse_yaml(read_text(path))


def read_text(path: Path) -> str:
    """Read a file of at most ``MAX_BYTES``. Raises InvalidYaml and OSError."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)  # a device or a pipe may have no end
    if len(content) > MAX_BYTES:
        raise InvalidYaml(f"it has more than {MAX_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidYaml(str(error)) from None


def parse_yaml(text: str) -> Any:
    """Parse a YAML document; None if it is empty. Raises InvalidYaml."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise InvalidYaml(_describe(error)) from None
    except yaml.YAMLError as error:
        raise InvalidYaml(str(error)) from None
    except RecursionError:
        raise InvalidYaml(TOO_DEEP) from None


def _describe(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    problem = error.problem or "it cannot be parsed"
    return problem if mark is None else f"{_locate(mark)}: {problem}"


def _locate(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _check_size(root: yaml.Node) -> None:
    """Raise InvalidYaml if the document is too deep or too large once its aliases are expanded."""
    num_nodes, stack = 0, [(root, 1)]
    while stack:
        node, depth = stack.pop()
        num_nodes += 1
        if depth > MAX_DEPTH:
            raise InvalidYaml(TOO_DEEP)
        if num_nodes > MAX_NODES:
            raise InvalidYaml(f"it has more than {MAX_NODES} values, aliases included")
        if isinstance(node, yaml.MappingNode):
            stack += [(child, depth + 1) for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            stack += [(child, depth + 1) for child in node.value]
