"""Functions have at most eight parameters and 80 lines below their docstrings. tests/function_sizes.json lists exceptions."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import ropetool

PACKAGE = Path(ropetool.__file__).parent
MOST_PARAMETERS, MOST_LINES = 8, 80
# By function: its parameters and its lines. Lower a figure with its cause; nothing is added.
KNOWN: dict[str, list[int]] = json.loads(Path(__file__).with_name("function_sizes.json").read_text(encoding="utf-8"))


def sizes(source: str, name: str) -> Iterator[tuple[str, list[int]]]:
    """Yield the name of each function of a module with the number of its parameters, without self and cls, and its lines."""

    def within(node: ast.AST, path: str) -> Iterator[tuple[str, list[int]]]:
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                place = f"{path}.{inner.name}"
                if not isinstance(inner, ast.ClassDef):
                    yield place, [_parameters(inner), _lines(inner)]
                yield from within(inner, place)
            else:
                yield from within(inner, path)

    yield from within(ast.parse(source), name)


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first, described = function.body[0], ast.get_docstring(function) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if described else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    named = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in named if name not in ("self", "cls")])


def too_large() -> dict[str, list[int]]:
    """Return the functions of the package that are above a bound."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        found |= {
            place: size
            for place, size in sizes(path.read_text(encoding="utf-8"), name)
            if size[0] > MOST_PARAMETERS or size[1] > MOST_LINES
        }
    return found


def test_no_function_is_larger_than_it_was() -> None:
    """A function that shrank needs its smaller figures in the file, so that it stays small."""
    assert too_large() == KNOWN


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ("def f(a, /, b, *more, c=1, **options): return a", [3, 1]),
        ("class A:\n    def f(self, a):\n        return a\n", [1, 2]),
        ("async def f(\n    a,\n):\n    return a\n", [1, 4]),
        ("if True:\n    def f(): pass\n", [0, 1]),
        ('def f():\n    """Return.\n\n    Nothing.\n    """\n    return\n', [0, 2]),
    ],
)
def test_what_is_counted(source: str, size: list[int]) -> None:
    assert [found for _, found in sizes(source, "m")] == [size]
