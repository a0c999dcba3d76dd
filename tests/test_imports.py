"""The layers: who may import whom, and which packages may be loaded when.

The table is data; a new top-level module of ropetool has to be placed in it.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ropetool

PACKAGE = Path(ropetool.__file__).parent

# A module imports lower layers and, in its own layer, only what stands left of it.
LAYERS = (
    ("escaping", "errors", "names", "machine"),
    ("spec", "rope", "methods", "relations"),
    ("families", "demo"),
    ("formats", "runtimes"),
    (
        "provenance",
        "identity",
        "listings",
        "baking",
        "encodings_gguf",
        "exported_layers",
        "exported_rope",
        "kv_cache",
        "inspection",
        "encodings",
        "edits_gguf",
        "stamps",
        "hosts",
        "readings",
        "targets",
        "plans",
        "serving",
        "publishing",
        "gguf_outputs",
        "refusing",
        "planning",
        "bake_presumed",
        "bake_plans",
        "applying",
        "certificate",
        "results",
        "diffs",
        "report",
    ),
    ("verification", "exporting", "comparison", "tune"),
    ("cli", "__main__"),
)
# Other people's packages: at module level by layer, inside functions by the module that may.
AT_MODULE_LEVEL = {0: set(), 1: {"numpy"}, 2: set(), 3: {"numpy"}, 4: {"numpy"}, 5: {"numpy"}, 6: {"click"}}
AT_MODULE_LEVEL_OF = {"report": {"rich"}}
INSIDE_FUNCTIONS = {
    "formats.gguf": {"gguf"},
    "formats.hub": {"huggingface_hub"},
    "report": {"matplotlib", "jinja2"},
    "verification": {"torch", "transformers", "accelerate", "tokenizers", "safetensors", "llama_cpp"},
    "exporting": {"torch", "transformers", "tokenizers", "safetensors", "llama_cpp", "gguf"},
    "comparison": {"gguf"},
    "tune": {"torch", "transformers", "safetensors"},
    "cli": {"numpy", "rich"},
}
# A command is imported to show its help, so at module level it knows layer 0 and its own package alone.
CLI_MAY_IMPORT = {"escaping", "errors", "cli"}
ROOT_ATTRIBUTES = {"__version__"}  # all else at the root is the public API, which is the top of everything
HEAVY = {"numpy", "torch", "transformers", "gguf", "llama_cpp", "rich", "matplotlib", "huggingface_hub", "safetensors"}

PLACES = {name: (layer, column) for layer, names in enumerate(LAYERS) for column, name in enumerate(names)}
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@dataclass(frozen=True)
class Import:
    """One imported name: `ropetool.x.y` or a package of others, and whether it is loaded with the module."""

    target: str
    at_module_level: bool
    line: int


def imports(source: str) -> Iterator[Import]:
    """Yield all imports of a module, also those inside functions and for type checkers."""
    tree = ast.parse(source)
    delayed = {id(inner) for node in ast.walk(tree) if _is_delayed(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            # `from ropetool import x` may mean a module; `from other import x` never names a new package
            targets = [f"{module}.{alias.name}" if module == "ropetool" else module for alias in node.names]
        else:
            continue
        for target in targets:
            yield Import(target, id(node) not in delayed, node.lineno)


def _is_delayed(node: ast.AST) -> bool:
    for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    return for_types or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def complaints(module: str, source: str) -> list[str]:
    """Return what the imports of a module break."""
    found = []
    for item in imports(source):
        first, _, rest = item.target.partition(".")
        if not first:
            reason = "a relative import"
        elif first == "ropetool":
            reason = _inner_complaint(module, rest, item.at_module_level)
        elif first in sys.stdlib_module_names:
            continue
        else:
            reason = _outer_complaint(module, first, item.at_module_level)
        if reason:
            found.append(f"{module}:{item.line}: {item.target}: {reason}")
    return found


def _inner_complaint(module: str, target: str, at_module_level: bool) -> str:
    if target in ROOT_ATTRIBUTES:
        return ""
    if target not in MODULES:
        return "no such module"
    importer, imported = module.partition(".")[0], target.partition(".")[0]
    if importer == "__init__":
        return "the root loads its parts on first use" if at_module_level else ""
    if importer == "cli" and at_module_level and imported not in CLI_MAY_IMPORT:
        return "a command imports it in its body"
    if importer == imported or PLACES[imported][0] < PLACES[importer][0]:
        return ""
    if PLACES[imported][0] == PLACES[importer][0] and PLACES[imported] < PLACES[importer]:
        return ""
    return "it stands above, or right of, the importer"


def _outer_complaint(module: str, package: str, at_module_level: bool) -> str:
    top = module.partition(".")[0]
    allowed = AT_MODULE_LEVEL[PLACES[top][0]] if top in PLACES else set()
    allowed = allowed | AT_MODULE_LEVEL_OF.get(top, set())
    if package in allowed:
        return ""
    inside = {
        p for owner, packages in INSIDE_FUNCTIONS.items() if f"{module}.".startswith(f"{owner}.") for p in packages
    }
    if package not in inside:
        return "not a package of this layer"
    return "load it inside a function" if at_module_level else ""


def test_every_module_has_a_layer() -> None:
    assert len(MODULES) > 20
    assert {module.partition(".")[0] for module in MODULES} - {"__init__"} <= set(PLACES)


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_what_its_layer_may(module: str) -> None:
    assert complaints(module, MODULES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("errors", "import numpy", "not a package of this layer"),
        ("names", "from ropetool.spec import Array", "it stands above"),
        ("spec", "from ropetool import rope", "right of, the importer"),
        ("spec", "def f():\n    from ropetool import methods", "right of, the importer"),
        ("rope", "if TYPE_CHECKING:\n    from ropetool.families import Family", "it stands above"),
        ("methods.yarn", "import torch", "not a package of this layer"),
        ("methods.yarn", "def f():\n    import torch", "not a package of this layer"),
        ("methods.yarn", "from . import base", "a relative import"),
        ("families", "import numpy as np", "not a package of this layer"),
        ("formats.hf", "def f():\n    import gguf", "not a package of this layer"),
        ("formats.gguf.header", "import gguf", "load it inside a function"),
        ("inspection", "from ropetool import planning", "right of, the importer"),
        ("report.text", "import matplotlib.pyplot as plt", "load it inside a function"),
        ("verification.loss", "from torch import nn", "load it inside a function"),
        ("verification.loss", "from ropetool.cli import main", "it stands above"),
        ("verification.loss", "from ropetool import inspect", "no such module"),
        ("cli.extend", "from ropetool.planning import make_plan", "in its body"),
        ("cli.extend", "import numpy", "load it inside a function"),
        ("__init__", "from ropetool import spec", "on first use"),
        ("__init__", "import numpy", "not a package of this layer"),
    ],
)
def test_a_planted_import_is_seen(module: str, source: str, reason: str) -> None:
    (complaint,) = complaints(module, source)
    assert reason in complaint


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("methods.yarn", "import numpy as np\nfrom ropetool import rope\nfrom ropetool.methods.base import Source"),
        ("formats.gguf.header", "def f():\n    import gguf"),
        ("verification.loss", "def f():\n    import torch"),
        ("verification.loss", "import numpy\nfrom ropetool import __version__, inspection"),
        (
            "cli.extend",
            "import click\nfrom ropetool.errors import RopetoolError\ndef f():\n    import ropetool.planning",
        ),
    ],
)
def test_an_allowed_import_is_not_blamed(module: str, source: str) -> None:
    assert complaints(module, source) == []


def loaded_by(code: str) -> set[str]:
    """Return the heavy packages that a fresh interpreter holds after running the code."""
    report = f"import sys\nprint(*sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_importing_ropetool_loads_nothing_heavy() -> None:
    assert loaded_by("import ropetool") == set()


def test_the_mathematics_needs_numpy_alone() -> None:
    code = "from ropetool import families, methods, rope, spec\nassert methods.names() and methods.get('yarn')"
    assert loaded_by(code) == {"numpy"}


HELPS = [["--help"], ["extend", "--help"], ["inspect", "--help"], ["verify", "--help"], ["demo", "--help"]]


@pytest.mark.parametrize("arguments", HELPS, ids=" ".join)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import runpy, sys
sys.argv = ["ropetool", *{arguments}]
try:
    runpy.run_module("ropetool", run_name="__main__", alter_sys=True)
except SystemExit as done:
    assert not done.code, done.code
"""
    assert loaded_by(code) == set()


def test_heavy_packages_are_named_as_they_are_imported() -> None:
    # a misspelt name in HEAVY would make the tests above blind
    core = HEAVY - {"torch", "transformers", "llama_cpp", "matplotlib", "huggingface_hub"}
    assert all(importlib.util.find_spec(name) for name in core)
