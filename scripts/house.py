"""Print what the structure of the code costs a reader: figures to hold one layout of the house against another.

    python scripts/house.py                       of this tree
    python scripts/house.py --tree FOLDER         of another checkout, by the same rules

Static: classes that stand for a checkpoint or a stored tensor, places that ask which format a file has, comparisons of
two readings, circles among the imports, lines. Moving: extend, export, verify and bake run on the embedded checkpoint
under sys.setprofile; a move is a call from a function of one file into a function of another.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

CHECKPOINTS = {
    "Checkpoint", "GgufHeader", "HfView", "GgufView", "HfHost", "GgufHost", "View", "Host", "Opened", "Origin", "Prepared",
    "Inspection", "Side", "Directory", "HfCheckpoint", "GgufCheckpoint", "Format", "HfFormat", "GgufFormat",
    "FoldTargets", "Bakeable", "HfBakeable", "GgufBakeable",
}  # fmt: skip
TENSORS = {
    "Tensor", "TensorInfo", "StoredTensor", "Stored", "TensorEntry", "Piece", "GgufTensor", "HfTensor", "TensorHeader", "Compared",
}  # fmt: skip
COMPARISONS = {
    "disagreement", "differences", "disagreements", "_as_planned", "agrees", "table_parity", "compare_tables",
}  # fmt: skip
COMMANDS = {
    "extend": ["extend", "{model}", "--method", "yarn", "--factor", "8", "-o", "{out}/x"],
    "bake": ["bake", "{out}/x", "attention-factor", "-o", "{out}/baked"],
    "export": ["export", "{model}", "--outtype", "f16", "--no-check", "-o", "{out}/model.gguf"],
    "verify": [
        "verify",
        "{out}/x",
        "--baseline",
        "{model}",
        "--suite",
        "quick",
        "--lengths",
        "256,512",
        "--grade",
        "research",
    ],
}
PROBE = """
import builtins, collections, io, json, os, sys
tree, arguments, record = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
sys.path.insert(0, tree)
package = os.path.join(tree, "ropetool") + os.sep
files, moves, calls, opens = set(), 0, collections.Counter(), collections.Counter()
def profile(frame, event, argument):
    global moves
    if event != "call" or not frame.f_code.co_filename.startswith(package):
        return
    here, code = frame.f_code.co_filename, frame.f_code
    files.add(here)
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(package):
        caller = caller.f_back
    if caller is not None and caller.f_code.co_filename != here:
        moves += 1
    if code.co_name in ("decode", "read", "is_gguf") and "runtimes" in here or code.co_name == "is_gguf":
        calls[os.path.basename(here)[:-3] + "." + code.co_name] += 1
def audit(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)) and str(arguments[0]).endswith("config.json"):
        name = str(arguments[0])
        folder = os.path.basename(os.path.dirname(name))
        if not name.endswith("tokenizer_config.json"):
            opens["output" if ".ropetool-" in name else folder] += 1
sys.addaudithook(audit)
from ropetool.cli import main
sys.setprofile(profile)
try:
    main(arguments)
except SystemExit as ended:
    code = ended.code
sys.setprofile(None)
json.dump({"code": code, "files": len(files), "moves": moves, "opens": dict(opens), "calls": dict(calls)}, open(record, "w"))
"""


def modules(tree: Path) -> dict[str, Path]:
    package = tree / "ropetool"
    return {
        ".".join(path.relative_to(tree).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(package.rglob("*.py"))
    }


def definitions(
    parsed: dict[str, ast.Module], kind: type[ast.ClassDef] | type[ast.FunctionDef], wanted: set[str]
) -> list[str]:
    """Return module.Name of every class or function whose name is one of those wanted."""
    return [
        f"{name.removeprefix('ropetool.')}.{node.name}"
        for name, tree in parsed.items()
        for node in ast.walk(tree)
        if isinstance(node, kind) and node.name in wanted
    ]


def format_questions(parsed: dict[str, ast.Module]) -> Counter[str]:
    """Return how often each module asks whether a path is a GGUF file or a directory."""
    found: Counter[str] = Counter()
    for name, tree in parsed.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2].lstrip("_") == "is_gguf":
                found[name.removeprefix("ropetool.")] += 1
    return found


def import_graph(parsed: dict[str, ast.Module], names: set[str]) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = defaultdict(set)
    for name, tree in parsed.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
                graph[name] |= {target if target in names else node.module for target in targets} & names - {name}
            elif isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names} & names - {name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that import each other (Tarjan's strongly connected components of two and more)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in graph.get(node, ()):
            if target not in order:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], order[target])
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in list(graph):
        if node not in order:
            visit(node)
    return found


def run(tree: Path, command: list[str], folder: Path) -> dict[str, object]:
    record = folder / "record.json"
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tree), json.dumps(command), str(record)],
        env=environment, capture_output=True, text=True, cwd=folder, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if not record.exists():
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    result: dict[str, object] = json.loads(record.read_text())
    record.unlink()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", type=Path, default=Path(__file__).parent.parent)
    tree = parser.parse_args().tree.resolve()
    found = modules(tree)
    parsed = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in found.items()}
    sizes = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in found.items()}
    graph = import_graph(parsed, set(found) - {"ropetool"})  # the root fetches its functions when they are asked for
    asked = format_questions(parsed)
    rings = circles(graph)
    rows = [
        ("modules, lines", f"{len(sizes)}, {sum(sizes.values())}"),
        ("modules at the root of the package", str(sum(name.count(".") == 1 for name in found))),
        (
            "classes for a checkpoint",
            f"{len(names := definitions(parsed, ast.ClassDef, CHECKPOINTS))}: {', '.join(names)}",
        ),
        (
            "classes for a stored tensor",
            f"{len(names := definitions(parsed, ast.ClassDef, TENSORS))}: {', '.join(names)}",
        ),
        (
            "comparisons of two readings",
            f"{len(names := definitions(parsed, ast.FunctionDef, COMPARISONS))}: {', '.join(names)}",
        ),
        ("calls of is_gguf", f"{sum(asked.values())} in {len(asked)} modules"),
        ("import circles", "; ".join(" <-> ".join(ring) for ring in rings) or "none"),
    ]
    for title, text in rows:
        print(f"{title:36}{text}")
    print(f"\n{'command':10}{'files':>7}{'moves':>8}  opens of the config of each folder; calls")
    with tempfile.TemporaryDirectory(prefix="house-") as name:
        folder = Path(name)
        values = {"model": str(tree / "ropetool" / "demo" / "model"), "out": str(folder)}
        for command, words in COMMANDS.items():
            result = run(tree, [word.format(**values) for word in words], folder)
            opens = ", ".join(f"{file} {count}" for file, count in sorted(dict(result["opens"]).items()))
            calls = ", ".join(f"{call} {count}" for call, count in Counter(result["calls"]).most_common(6))
            print(f"{command:10}{result['files']:7}{result['moves']:8}  {opens}; {calls}")


if __name__ == "__main__":
    main()
