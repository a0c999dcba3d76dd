"""The stock converter, run by the tests that compare exports with its files.

ROPETOOL_LLAMA_CPP names a folder of llama.cpp's sources with convert_hf_to_gguf.py; ROPETOOL_REAL_FILES one with
tokenizers of published models, the only ones that the converter takes as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from forks import run_python
from settled import Comparison

from ropetool.files.gguf import read_header

CONVERTER = Path(os.environ.get("ROPETOOL_LLAMA_CPP", "nowhere"), "convert_hf_to_gguf.py")
TOKENIZER = Path(os.environ.get("ROPETOOL_REAL_FILES", "nowhere"), "tokenizers", "gpt-2")
needs_converter = pytest.mark.skipif(not CONVERTER.is_file(), reason="ROPETOOL_LLAMA_CPP names no converter")
needs_tokenizer_too = pytest.mark.skipif(
    not (CONVERTER.is_file() and TOKENIZER.is_dir()),
    reason="ROPETOOL_LLAMA_CPP and ROPETOOL_REAL_FILES name no converter",
)

# A process that has loaded torch has a gguf package loaded too, and the converter has one of its own.
FRESH = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "gguf"]:
    del sys.modules[name]
"""
# One process for all calls.
EACH = """
import json, runpy, sys
converter, calls = sys.argv[1:]
sys.path.insert(0, converter.rpartition("/")[0])
for call in json.loads(calls):
    sys.argv = [converter, *call]
    runpy.run_path(converter, run_name="__main__")
"""


def convert(folder: Path, calls: Sequence[Sequence[object]]) -> None:
    """Run the converter with each of these lists of arguments."""
    run(folder, EACH, CONVERTER, json.dumps([[str(argument) for argument in call] for call in calls]))


def run(folder: Path, program: str, *arguments: object, python: str = sys.executable) -> None:
    """Run a program with these arguments, in an environment as the converter's own but for a package that it imports."""
    modules = folder / "modules"
    modules.mkdir(exist_ok=True)
    (modules / "sentencepiece.py").write_text("SentencePieceProcessor = None\n")  # imported, and not used here
    given, more = [str(argument) for argument in arguments], {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    if python == sys.executable:
        done = run_python(f"{FRESH}sys.path.insert(0, {str(modules)!r})\n{program}", *given, environment=more)
        assert done.code == 0, done.err[-3000:]
        return
    ended = subprocess.run(
        [python, "-c", program, *given], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(modules), **more},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]


def compared(name: str, source: Path, *ours: Path) -> Comparison:
    """Return the comparison of files that we make of a source with the converter's. test_stock_families.py asks in every run."""
    parts = {f"ours {number}": path for number, path in enumerate(ours)}
    inputs = {"source": source, "converter": _code(), **parts}
    return Comparison(f"stock: {name}", inputs, "gguf", "numpy", "torch", "transformers")


@cache
def _code() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(CONVERTER.parent.rglob("*.py")))


def copy_tokenizer(source: Path) -> None:
    """Put the published tokenizer into a checkpoint."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / name, source / name)


def tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return type, shape and bytes of each tensor; the gguf package takes seconds to read a published vocabulary."""
    header, raw = read_header(path), path.read_bytes()
    start = header.data_start
    return {t.name: (t.type_name, t.shape, raw[start + t.offset : start + t.end]) for t in header.tensors}
