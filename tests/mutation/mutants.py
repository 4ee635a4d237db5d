"""Small faults in a module's source, one at a time, as syntax trees.

Made: swapped comparisons, operators and booleans; other numbers; conditions that always or never
hold; statements that call, raise, assign in place or delete and are left out; returns of nothing;
statements of a ``finally`` that run only where nothing was raised. Left alone: docstrings, messages
and other text, annotations, imports, ``assert``.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.Mod: ast.Mult,
}
OUT_OF_FINALLY = "out of finally"
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}

Step = tuple[str, int | None]
"""A field of a node, and the place in its list."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change at one place. ``name`` stays the same while the code around it moves."""

    name: str
    line: int
    source: str
    path: tuple[Step, ...]
    change: str
    function: tuple[str, int] | None
    """Qualified name and first line of the outermost function whose body it is in."""
    lines: range
    """The lines of the statement it is in; of a compound statement, of its head."""

    def tree(self) -> ast.Module:
        """The module with the change made."""
        tree = ast.parse(self.source)
        parent = _at(tree, self.path[:-1])
        name, index = self.path[-1]
        if self.change == OUT_OF_FINALLY:
            assert isinstance(parent, ast.Try)
            assert index is not None
            _move_out_of_finally(parent, index)
            return ast.fix_missing_locations(tree)
        new = _changed(_at(tree, self.path), self.change)
        if index is None:
            setattr(parent, name, new)
        else:
            getattr(parent, name)[index] = new
        return ast.fix_missing_locations(tree)


def mutants_of(source: str) -> Iterator[Mutant]:
    tree = ast.parse(source)
    seen: dict[str, int] = {}
    for place, path in _walk(tree, ()):
        for change in _changes_at(place, path):
            after = _describe_change(place, change)
            name = f"{_scope(tree, path)}: {_described(place)} -> {after}"
            seen[name] = seen.get(name, 0) + 1
            if seen[name] > 1:
                name += f" #{seen[name]}"
            function, lines = _function(tree, path), _statement_lines(tree, path)
            yield Mutant(name, place.lineno, source, path, change, function, lines)


def _walk(
    node: ast.AST, path: tuple[Step, ...]
) -> Iterator[tuple[ast.stmt | ast.expr, tuple[Step, ...]]]:
    """Every statement and expression that may be changed, with its path from the root."""
    for name, value in ast.iter_fields(node):
        skipped = (
            ("bases", "keywords") if isinstance(node, ast.ClassDef) else ("annotation", "returns")
        )
        if name in (*skipped, "decorator_list"):
            continue
        children = value if isinstance(value, list) else [value]
        for at, child in enumerate(children):
            if not isinstance(child, ast.AST) or _is_docstring(child):
                continue
            if isinstance(child, (ast.Import, ast.ImportFrom, ast.Assert, ast.JoinedStr)):
                continue
            here = (*path, (name, at if isinstance(value, list) else None))
            if isinstance(child, (ast.stmt, ast.expr)):
                yield child, here
            yield from _walk(child, here)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes_at(node: ast.stmt | ast.expr, path: tuple[Step, ...]) -> Iterator[str]:
    yield from _changes(node)
    if path[-1][0] == "finalbody" and not isinstance(node, ast.Pass):
        yield OUT_OF_FINALLY


def _move_out_of_finally(node: ast.Try, index: int) -> None:
    """Behind what is tried, which it no longer follows when that raises, returns or is left."""
    moved = node.finalbody.pop(index)
    node.finalbody = node.finalbody or [ast.Pass()]
    (node.orelse or node.body).append(moved)


def _describe_change(node: ast.stmt | ast.expr, change: str) -> str:
    if change == OUT_OF_FINALLY:
        return f"({OUT_OF_FINALLY})"
    return _described(_changed(copy.deepcopy(node), change))


def _changes(node: ast.stmt | ast.expr) -> Iterator[str]:
    """The names of the changes that ``_changed`` can make of a node."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield "comparison"
        case ast.BinOp(op=op) if type(op) in OPERATORS and not _is_type(node):
            yield "operator"
        case ast.BoolOp():
            yield "junction"
        case ast.UnaryOp(op=ast.Not()):
            yield "negation"
        case ast.Constant(value=bool()):
            yield "truth"
        case ast.Constant(value=int() | float()):
            yield "number"
        case ast.Name(id=name) if name in NAMES:
            yield "name"
        case ast.If() | ast.While() | ast.IfExp():
            yield "always"
            yield "never"
        case ast.AugAssign():
            yield "left out"
            if type(node.op) in OPERATORS:
                yield "operator"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Delete():
            yield "left out"
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield "nothing"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_type(node: ast.BinOp) -> bool:
    """``int | None`` outside an annotation."""
    return isinstance(node.op, ast.BitOr) and _is_none(node.right)


def _changed(node: ast.AST, change: str) -> ast.AST:
    match node, change:
        case ast.Compare(ops=[op]), _:
            node.ops = [COMPARISONS[type(op)]()]
        case ((ast.BinOp() | ast.AugAssign()), "operator"):
            node.op = OPERATORS[type(node.op)]()
        case ast.BoolOp(), _:
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp(), _:
            return node.operand
        case ast.Constant(), "truth":
            node.value = not node.value
        case ast.Constant(), _:
            node.value = node.value + 1  # type: ignore[operator]
        case ast.Name(), _:
            node.id = NAMES[node.id]
        case ((ast.If() | ast.While() | ast.IfExp()), _):
            node.test = ast.Constant(change == "always")
        case ast.Return(), _:
            node.value = ast.Constant(None)
        case _, "left out":
            return ast.Pass()
    return node


def _at(tree: ast.AST, path: tuple[Step, ...]) -> ast.AST:
    node: ast.AST = tree
    for name, index in path:
        value = getattr(node, name)
        node = value if index is None else value[index]
    return node


def _scope(tree: ast.Module, path: tuple[Step, ...]) -> str:
    """The dotted name of the class and function around a node."""
    names = []
    for end in range(1, len(path)):
        node = _at(tree, path[:end])
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.append(node.name)
    return ".".join(names) or "(module)"


def _function(tree: ast.Module, path: tuple[Step, ...]) -> tuple[str, int] | None:
    names = []
    for end in range(1, len(path)):
        node = _at(tree, path[:end])
        if isinstance(node, ast.ClassDef):
            names.append(node.name)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if path[end][0] != "body":
                return None
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return ".".join([*names, node.name]), first
    return None


def _statement_lines(tree: ast.Module, path: tuple[Step, ...]) -> range:
    nodes = (_at(tree, path[:end]) for end in range(len(path), 0, -1))
    node = next(node for node in nodes if isinstance(node, ast.stmt))
    body = getattr(node, "body", None)
    last = body[0].lineno - 1 if body else node.end_lineno
    return range(node.lineno, max(node.lineno, last or 0) + 1)


def _described(node: ast.AST) -> str:
    """The first line of the node's source, cut where it is long."""
    if isinstance(node, ast.Pass):
        return "(left out)"
    line = ast.unparse(ast.fix_missing_locations(node)).strip().splitlines()[0]
    return line if len(line) <= 70 else line[:67] + "..."
