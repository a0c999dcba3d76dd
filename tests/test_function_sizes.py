"""Functions have at most eight parameters, and 60 lines besides their docstrings."""

from __future__ import annotations

from pathlib import Path

import pytest
from loading import script

import ropetool

PACKAGE = Path(ropetool.__file__).parent
MOST_PARAMETERS, MOST_LINES = 8, 60
sizes = script("house.py").sizes


def too_large() -> dict[str, list[int]]:
    """Return the functions of the package that are above a limit, with their parameters and lines."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        found |= {
            place: size
            for place, size in sizes(path.read_text(encoding="utf-8"), name)
            if size[0] > MOST_PARAMETERS or size[1] > MOST_LINES
        }
    return found


def test_no_function_is_too_large() -> None:
    assert too_large() == {}


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
