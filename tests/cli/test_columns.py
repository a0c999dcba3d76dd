"""A terminal of 80 columns: prose is wrapped between words, and only what is copied runs over the edge."""

from __future__ import annotations

import re
from pathlib import Path

import gguf_files
import pytest
from terminals import on_terminal

import ropetool

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
# Lines that stay whole, so that they can be copied: commands, values of keys, and places.
COPIED = re.compile(
    r"""(Try: | *)([\w.]+: )?(ropetool [a-z]+|llama-\w+|vllm serve|python -m) |.*[{"]|(Error: | *|[a-z ]+  )/"""
)
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COMMANDS = [
    "inspect DEMO", "inspect DEMO --target-length 2048", "inspect GGUF", "advise DEMO --target-length 2048",
    "extend DEMO --factor 8 --dry-run", "extend GGUF --factor 2 --dry-run", "diff DEMO DEMO", "doctor DEMO",
    "gguf list GGUF", "methods", "methods yarn", "families qwen2", "runtimes vllm", "extend DEMO --factor 1",
    "gguf set GGUF llama.context_lenght 4096 --in-place", "extend NOWHERE --factor 2",
]  # fmt: skip


@pytest.mark.parametrize("line", COMMANDS)
def test_no_word_is_broken(line: str, tmp_path: Path) -> None:
    gguf_files.model(tmp_path / "m.gguf")
    places = {"DEMO": str(DEMO), "GGUF": "m.gguf", "NOWHERE": "nowhere"}
    shown = on_terminal(*(places.get(word, word) for word in line.split()), columns=80, cwd=tmp_path)
    assert shown.code in (0, 1, 3), shown.written
    lines = [CONTROL.sub("", line).rstrip().rpartition("\r")[2] for line in shown.written.split("\n")]
    assert [line for line in lines if len(line) > 80 and not COPIED.match(line)] == []
