"""The layers: which package may import which, and which packages of others may be loaded when.

The table is data; a new package of ropetool has to be placed in it.
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
from ropetool.registry import ADDITIONS, addition

PACKAGE = Path(ropetool.__file__).parent

# A package imports those above it in this list, which begins with what imports nothing; `demo` and `texts` are data.
LAYERS = (
    ("errors", "escaping", "names", "machine", "registry", "charts", "sections"),
    ("rope",),
    ("files", "probing", "servers"),
    ("families",),
    ("checkpoint",),
    ("packed",),
    ("runtimes",),
    ("weights",),
    ("plans",),
    ("gguf_model",),
    ("comparison",),
    ("verification", "identify"),
    ("choosing",),
    ("gguf_export", "gguf_import", "costs", "doctor"),
    ("report",),
    ("cli", "__main__"),
    ("lab",),
)
# Other people's packages: at module level by package, inside functions by the module that may.
AT_MODULE_LEVEL = {
    "rope": {"numpy"}, "files": {"numpy"}, "checkpoint": {"numpy"}, "runtimes": {"numpy"}, "weights": {"numpy"},
    "plans": {"numpy"}, "packed": {"numpy"}, "comparison": {"numpy"}, "verification": {"numpy"}, "identify": {"numpy"},
    "choosing": {"numpy"}, "gguf_model": {"numpy"}, "gguf_export": {"numpy"}, "gguf_import": {"numpy"},
    "doctor": {"numpy"}, "servers": {"requests"}, "report": {"numpy", "rich"}, "cli": {"click"}, "__main__": {"click"},
    "lab": {"numpy", "click"},
}  # fmt: skip
INSIDE_FUNCTIONS = {
    "files.gguf": {"gguf"},
    "files.hub": {"huggingface_hub"},
    "report.drawing": {"matplotlib"},
    "report.page": {"jinja2"},
    "verification": {"torch", "transformers", "accelerate", "tokenizers", "safetensors", "llama_cpp"},
    "gguf_export": {"torch", "tokenizers"},
    "gguf_model": {"gguf"},
    "packed": {"compressed_tensors", "torch", "transformers"},
    "comparison": {"gguf"},
    "plans.model_index": {"yaml"},
    "escaping": {"pandas"},
    "probing": {"torch", "transformers"},
    "cli": {"numpy", "rich"},
    "lab": {"torch"},
}
FOR_TYPES = {"typing_extensions"}  # for annotations: it is not a dependency
# A command is imported to show its help, so at module level it knows layer 0 and its own package alone.
CLI_MAY_IMPORT = {"escaping", "errors", "registry", "cli"}
ROOT_ATTRIBUTES = {"__version__"}  # all else at the root is the public API, which is the top of everything
HEAVY = {
    "numpy",
    "torch",
    "transformers",
    "gguf",
    "llama_cpp",
    "rich",
    "matplotlib",
    "huggingface_hub",
    "safetensors",
    "requests",
}

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
    is_command = importer == "cli" or (importer == "lab" and module.endswith(".command"))
    if is_command and at_module_level and imported not in CLI_MAY_IMPORT:
        return "a command imports it in its body"
    if importer == imported or PLACES[imported][0] < PLACES[importer][0]:
        return ""
    if PLACES[imported][0] == PLACES[importer][0] and PLACES[imported] < PLACES[importer]:
        return ""
    return "it stands above, or right of, the importer"


def _outer_complaint(module: str, package: str, at_module_level: bool) -> str:
    top = module.partition(".")[0]
    allowed = AT_MODULE_LEVEL.get(top, set())
    if package in allowed or (package in FOR_TYPES and not at_module_level):
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
        ("names", "from ropetool.rope.tables import Array", "it stands above"),
        ("rope.tables", "def f():\n    from ropetool.families import rows", "it stands above"),
        ("rope.arithmetic", "if TYPE_CHECKING:\n    from ropetool.families import Family", "it stands above"),
        ("rope.methods.yarn", "import torch", "not a package of this layer"),
        ("rope.methods.yarn", "def f():\n    import torch", "not a package of this layer"),
        ("rope.methods.yarn", "from . import base", "a relative import"),
        ("families", "import numpy as np", "not a package of this layer"),
        ("files.hf", "def f():\n    import gguf", "not a package of this layer"),
        ("files.gguf.header", "import gguf", "load it inside a function"),
        ("runtimes.inspection", "from ropetool.plans import search", "it stands above"),
        ("comparison", "from ropetool import verification", "right of, the importer"),
        ("report.drawing", "import matplotlib.pyplot as plt", "load it inside a function"),
        ("report.verified", "def f():\n    import matplotlib", "not a package of this layer"),
        ("verification.gate", "from torch import nn", "load it inside a function"),
        ("verification.gate", "from ropetool.cli import main", "it stands above"),
        ("verification.gate", "from ropetool import inspect", "no such module"),
        ("verification.run", "def f():\n    from ropetool.lab.lm_eval_logs import has_logs", "it stands above"),
        ("cli.options", "def f():\n    from ropetool.lab.tuning.spaces import SPACES", "it stands above"),
        ("lab.tuning.command", "from ropetool.plans.plan import Plan", "in its body"),
        ("cli.extend", "from ropetool.plans.search import make_plan", "in its body"),
        ("cli.extend", "import numpy", "load it inside a function"),
        ("__init__", "from ropetool.rope import tables", "on first use"),
        ("__init__", "import numpy", "not a package of this layer"),
    ],
)
def test_a_planted_import_is_seen(module: str, source: str, reason: str) -> None:
    (complaint,) = complaints(module, source)
    assert reason in complaint


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rope.methods.yarn", "import numpy as np\nfrom ropetool.rope import tables"),
        ("files.gguf.header", "def f():\n    import gguf"),
        ("verification.gate", "def f():\n    import torch"),
        ("verification.gate", "import numpy\nfrom ropetool import __version__\nfrom ropetool.plans import search"),
        (
            "cli.extend",
            "import click\nfrom ropetool.errors import RopetoolError\ndef f():\n    import ropetool.plans.search",
        ),
    ],
)
def test_an_allowed_import_is_not_blamed(module: str, source: str) -> None:
    assert complaints(module, source) == []


def circle(sources: dict[str, str]) -> list[str]:
    """Return modules that import each other in a circle, wherever in them the imports stand; none is an empty list."""
    graph = {
        module: {target for item in _modules_imported(source) for target in _known(item, sources)} - {module}
        for module, source in sources.items()
    }
    while graph:
        wanted = set().union(*graph.values())
        inner = {module: targets & graph.keys() for module, targets in graph.items() if targets & graph.keys()}
        inner = {module: targets for module, targets in inner.items() if module in wanted}
        if len(inner) == len(graph):
            break
        graph = inner
    return sorted(graph)


def _modules_imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _known(target: str, sources: dict[str, str]) -> set[str]:
    """Return the module of ours that an import names: itself, or the one that holds the name."""
    name = target.removeprefix("ropetool.")
    return {name} & sources.keys() or {name.rpartition(".")[0]} & sources.keys()


def test_no_modules_import_each_other() -> None:
    # The root fetches its functions on first use, from modules that may ask it for the version.
    assert (
        circle({module: p.read_text(encoding="utf-8") for module, p in MODULES.items() if module != "__init__"}) == []
    )


def test_a_planted_circle_is_seen() -> None:
    planted = {
        "rope.a": "from ropetool.rope import b",
        "rope.b": "def f():\n    from ropetool.rope.c import g",
        "rope.c": "import ropetool.rope.a",
        "rope.d": "from ropetool.rope.a import h",
    }
    assert circle(planted) == ["rope.a", "rope.b", "rope.c"]
    assert circle({**planted, "rope.c": ""}) == []


def loaded_by(code: str) -> set[str]:
    """Return the heavy packages that a fresh interpreter holds after running the code."""
    report = f"import sys\nprint(*sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("name", ADDITIONS)
def test_every_addition_of_the_laboratory_exists(name: str) -> None:
    assert ADDITIONS[name].startswith("ropetool.lab.")
    assert addition(name) is not None


def test_importing_ropetool_loads_nothing_heavy() -> None:
    assert loaded_by("import ropetool") == set()


def test_the_mathematics_needs_numpy_alone() -> None:
    code = "from ropetool import families\nfrom ropetool.rope import arithmetic, methods\nassert methods.get('yarn')"
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
