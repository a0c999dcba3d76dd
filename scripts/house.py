#!/usr/bin/env python3
"""Measure what the code costs a reader: its size, its widest functions, and the files that one command runs through.

    scripts/house.py                  of this checkout
    scripts/house.py --tree FOLDER    of another checkout, by the same rules
    scripts/house.py --write          the same, into docs/architecture.md

A move is a call from a function of one file into a function of another. It is counted under sys.setprofile, while extend, bake,
export and verify run on the embedded checkpoint.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, BLOCK = "docs/architecture.md", "house"
GENERATED = ("cli.md",)  # pages that scripts/docs.py writes whole
COMMANDS = {
    "inspect": ("inspect", "{model}"),
    "advise": ("advise", "{model}", "--target-length", "4096"),
    "extend": ("extend", "{model}", "--method", "yarn", "--factor", "8", "-o", "{out}/x"),
    "bake": ("bake", "{out}/x", "attention-factor", "-o", "{out}/baked"),
    "export": ("export", "{model}", "--outtype", "f16", "--no-check", "-o", "{out}/model.gguf"),
    "verify": ("verify", "{out}/x", "--baseline", "{model}"),
}  # fmt: skip
# One example of each kind of addition, by the names that modules know it under.
ADDITIONS = {
    "a measure (many-shot)": r"many.?shot",
    "a runtime (mlx-vlm)": r"mlx.?vlm",
    "a llama.cpp reading (yarn_log_multiplier)": r"log_multiplier",
}
PROBE = """
import collections, json, os, sys
tree, arguments, record = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
sys.path.insert(0, tree)
package = os.path.join(tree, "ropetool") + os.sep
files, moves, opens = set(), 0, 0
def profile(frame, event, argument):
    global moves
    if event != "call" or not frame.f_code.co_filename.startswith(package):
        return
    here = frame.f_code.co_filename
    files.add(here)
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(package):
        caller = caller.f_back
    moves += caller is not None and caller.f_code.co_filename != here
def audit(event, arguments):
    global opens
    opens += event == "open" and os.path.basename(str(arguments[0])) == "config.json"
sys.addaudithook(audit)
from ropetool.cli import main
sys.setprofile(profile)
try:
    main(arguments)
except SystemExit as ended:
    code = ended.code
sys.setprofile(None)
loaded = sum(name.partition(".")[0] == "ropetool" for name in sys.modules)
json.dump({"code": code, "files": len(files), "moves": moves, "opens": opens, "loaded": loaded}, open(record, "w"))
"""


class Tree:
    """The Python files of a checkout, and what is counted in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.texts = {path: path.read_text(encoding="utf-8") for path in sorted((root / "ropetool").rglob("*.py"))}

    @cached_property
    def nodes(self) -> Sequence[tuple[Path, ast.AST]]:
        """Every node of every module of the package."""
        return [(path, node) for path, text in self.texts.items() for node in ast.walk(ast.parse(text))]

    def lines(self, *folders: str) -> int:
        """Return how many lines of Python lie below folders of the checkout."""
        files = {file for folder in folders for file in (self.root / folder).rglob("*") if _is_python(file)}
        return sum(file.read_text(encoding="utf-8").count("\n") for file in files)

    def words(self) -> int:
        """Return how many words the pages have outside of generated blocks."""
        pages = [page for page in (self.root / "docs").glob("*.md") if page.name not in GENERATED]
        written = (
            re.sub(r"<!-- (\S+) -->.*?<!-- /\1 -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
            for page in pages
        )
        return sum(len(text.split()) for text in written)

    def classes_of_two_meanings(self) -> int:
        """Return how many names of classes, private ones apart, stand in two modules or more."""
        names = Counter(
            node.name for _, node in self.nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )
        return sum(count > 1 for count in names.values())

    def assignments(self, name: str) -> int:
        """Return how often a name of a variable is assigned."""
        return sum(
            isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for _, node in self.nodes
        )

    def modules_naming(self, pattern: str) -> int:
        """Return how many modules of the package name something, comments and docstrings included."""
        return sum(bool(re.search(pattern, text, re.IGNORECASE)) for text in self.texts.values())

    def run(self, command: Sequence[str], folder: Path) -> Mapping[str, Any]:
        """Return what a command ran through. Raises: SystemExit if it did not end as it should."""
        record = folder / "record.json"
        record.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", PROBE, str(self.root), json.dumps(command), str(record)], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"}, cwd=folder, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if not record.exists():
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        counted: Mapping[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        return counted


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


def _is_python(file: Path) -> bool:
    if file.suffix:
        return file.suffix == ".py"
    return file.is_file() and file.read_bytes()[:20].startswith((b"#!/usr/bin/env python",))


def figures(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield each figure with its name."""
    product, laboratory, verification = (
        tree.lines("ropetool"),
        tree.lines("ropetool/lab"),
        tree.lines("ropetool/verification"),
    )
    functions = [size for text in tree.texts.values() for _, size in sizes(text, "")]
    yield "product: lines of Python (core, laboratory)", f"{product:,} ({product - laboratory:,}, {laboratory:,})"
    yield "of these in verification", f"{verification:,}"
    yield "Python in product, tests and scripts together", f"{tree.lines('ropetool', 'tests', 'scripts'):,}"
    yield "words of docs outside generated blocks", f"{tree.words():,}"
    yield (
        "longest parameter list, longest function",
        f"{max(count for count, _ in functions)}, {max(lines for _, lines in functions)} lines",
    )
    yield "class names with two meanings", f"{tree.classes_of_two_meanings():,}"
    yield "assignments to `found`", f"{tree.assignments('found'):,}"
    for name, pattern in ADDITIONS.items():
        yield f"modules that name {name}", f"{tree.modules_naming(pattern):,}"
    with tempfile.TemporaryDirectory(prefix="house-") as name:
        values = {"model": str(tree.root / "ropetool" / "demo" / "model"), "out": name}
        for command, words in COMMANDS.items():
            counted = tree.run([word.format(**values) for word in words], Path(name))
            yield (
                f"`{command}`: modules loaded, files entered, moves, opens of a config.json",
                (f"{counted['loaded']}, {counted['files']}, {counted['moves']:,}, {counted['opens']}"),
            )


def main() -> None:
    """Measure, print, and write the table where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to measure")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}")
    options = parser.parse_args()
    rows = ["| figure | now |", "| --- | --- |"]
    for name, figure in figures(Tree(options.tree.resolve())):
        rows.append(f"| {name} | {figure} |")
        print(f"{name:80}{figure}", flush=True)
    if options.write:
        from docs import filled

        (ROOT / PAGE).write_text(filled(PAGE, {BLOCK: "\n".join(rows)}), encoding="utf-8")


if __name__ == "__main__":
    main()
