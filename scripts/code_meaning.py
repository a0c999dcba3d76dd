"""What a Python file means: its code without comments, docstrings and imports, of which none changes a measured figure.

For the fingerprints of measured results.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path


def meant(path: Path, leaving: Collection[str] = ()) -> bytes:
    """Return what a file says, of Python the meaning alone. leaving: functions and methods that do not count, by name or `Class.name`."""
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [inner for inner in body if not _says_nothing(inner) and not _names(node, inner) & {*leaving}]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.dump(tree).encode()


def _names(within: ast.AST, node: ast.stmt) -> set[str]:
    name = getattr(node, "name", "")
    return {name, f"{getattr(within, 'name', '')}.{name}"}


def _says_nothing(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return is_text or isinstance(node, (ast.Import, ast.ImportFrom))
