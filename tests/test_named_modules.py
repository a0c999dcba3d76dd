"""Modules that docstrings, docs/architecture.md and paths in scripts name: each of them exists."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ropetool

PACKAGE = Path(ropetool.__file__).parent
ROOT = Path(__file__).parents[1]
# Files of other projects that docstrings name without their folder: transformers, vLLM, llama.cpp and published patches.
OF_OTHERS = {
    "chameleon.py", "chunkllama_attn_replace.py", "convert_hf_to_gguf.py", "core_model_loading.py",
    "leaky_rerope_patch.py", "logprobs.py", "modeling_rope_utils.py", "rerope_patch.py", "sampling_params.py",
}  # fmt: skip
PACKAGES = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
FILE = re.compile(r"(?<![\w/.-])[\w/-]+\.py\b")
DOTTED = re.compile(
    r"\b(?:ropetool\.)?((?:" + "|".join(sorted(PACKAGES - {"rope"})) + r")(?:\.\w+)+)"
)  # rope.* are GGUF keys


@cache
def repository() -> frozenset[str]:
    """Return the paths of the repository's Python files, below its root."""
    folders = (PACKAGE, ROOT / "scripts", ROOT / "tests")
    return frozenset("/" + path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*.py"))


def is_file(name: str) -> bool:
    return any(path.endswith(f"/{name}") for path in repository())


def is_ours(name: str) -> bool:
    """Whether a file name means one of this repository: a bare name that is not another project's, or a folder of ours."""
    folder, _, file = name.rpartition("/")
    return folder.split("/")[0] in {"ropetool", "scripts", "tests", *PACKAGES} if folder else file not in OF_OTHERS


def is_name(dotted: str) -> bool:
    """Whether packages, modules and then attributes lead to a dotted name."""
    value = ropetool
    path = "ropetool"
    for part in dotted.split("."):
        path += f".{part}"
        try:
            value = importlib.import_module(path)
        except ModuleNotFoundError:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
    return True


def missing(text: str) -> list[str]:
    """Return the modules that a text names and that do not exist."""
    files = [name for name in FILE.findall(text) if is_ours(name) and not is_file(name)]
    dotted = [name for name in DOTTED.findall(text) if not name.endswith((".py", ".json", ".md")) and not is_name(name)]
    return files + dotted


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize("package", ["", *sorted(PACKAGES)])
def test_docstrings_name_modules_that_exist(package: str) -> None:
    paths = (PACKAGE / package).rglob("*.py") if package else PACKAGE.glob("*.py")
    wrong = {str(path.relative_to(ROOT)): missing("\n".join(docstrings(path))) for path in paths}
    assert {path: names for path, names in wrong.items() if names} == {}


def joined(node: ast.expr) -> str | None:
    """Return the path that `ROOT / "a" / "b.py"` means, or None for another expression."""
    if isinstance(node, ast.Name) and node.id == "ROOT":
        return ""
    if not isinstance(node, ast.BinOp) or not isinstance(node.right, ast.Constant):
        return None
    folder = joined(node.left)
    return None if folder is None else f"{folder}/{node.right.value}"


def paths_of_modules(source: str) -> list[str]:
    """Return the Python files that a source names below ROOT."""
    paths = [joined(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.BinOp)]
    return [path for path in paths if path and path.endswith(".py")]


def test_scripts_and_tests_name_files_that_exist() -> None:
    files = [*ROOT.glob("scripts/**/*.py"), *ROOT.glob("tests/**/*.py")]
    named = {path for file in files for path in paths_of_modules(file.read_text(encoding="utf-8"))}
    assert "/scripts/engines/engine_mlx_logits.py" in named
    assert named - repository() == set()


def test_architecture_names_modules_that_exist() -> None:
    assert missing((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")) == []


def test_a_module_that_does_not_exist_is_seen() -> None:
    assert missing("see encodings_gguf.py, and `tokenizer.py`") == ["encodings_gguf.py", "tokenizer.py"]
    assert missing("by plans.searching, families.of_config and rope/gone.py") == ["rope/gone.py", "plans.searching"]
    assert missing("modeling_rope_utils.py, rope/tables.py, `checkpoint.opening`") == []
