"""The meaning of a Python file: its code without comments, docstrings, imports and the names of local variables.

None of these changes a measured figure. For the fingerprints of measured results.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path


def meant(path: Path, leaving: Collection[str] = ()) -> bytes:
    """Return the bytes that identify the meaning of a file. A file of another language means all of its bytes.

    leaving: functions and methods that do not count, by name or `Class.name`.
    """
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [inner for inner in body if not _says_nothing(inner) and not _names(node, inner) & {*leaving}]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    for function in _outermost_functions(tree):
        _number_locals(function)
    return ast.dump(tree).encode()


def _names(within: ast.AST, node: ast.stmt) -> set[str]:
    name = getattr(node, "name", "")
    return {name, f"{getattr(within, 'name', '')}.{name}"}


def _says_nothing(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return is_text or isinstance(node, (ast.Import, ast.ImportFrom))


def _outermost_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the functions and methods that are not inside another one."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield inner
        else:
            yield from _outermost_functions(inner)


def _number_locals(function: ast.AST) -> None:
    """Replace the names of a function's local variables by numbers, in the order of their first use.

    Parameters keep their names, because callers may use them. So does everything in a function with a class in it.
    """
    nodes = [*ast.walk(function)]
    if any(isinstance(node, ast.ClassDef) for node in nodes):
        return
    kept = {node.arg for node in nodes if isinstance(node, ast.arg)}
    kept |= {name for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    variables = [node for node in nodes if isinstance(node, ast.Name)]
    assigned = {node.id for node in variables if isinstance(node.ctx, ast.Store)} - kept
    numbers: dict[str, str] = {}
    for node in variables:
        if node.id in assigned:
            node.id = numbers.setdefault(node.id, f"local {len(numbers)}")
