"""Small checkpoints on disk and the command line in-process, for the tests of files and commands."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ropetool.cli import main
from ropetool.errors import RopetoolError

TOKENIZER_CONFIG = {"model_max_length": 512, "tokenizer_class": "PreTrainedTokenizerFast"}


def write_config(directory: Path, config: Mapping[str, Any] | str) -> Path:
    """Write a directory that holds config.json alone."""
    directory.mkdir(parents=True)
    text = config if isinstance(config, str) else json.dumps(config, indent=2) + "\n"
    (directory / "config.json").write_bytes(text.encode())
    return directory


def write_model(directory: Path, config: Mapping[str, Any] | str) -> Path:
    """Write a checkpoint with two shards, a tokenizer, a README and a folder of its own."""
    write_config(directory, config)
    shards = {"model-00001-of-00002.safetensors": "a.weight", "model-00002-of-00002.safetensors": "b.weight"}
    for name, tensor in shards.items():
        (directory / name).write_bytes(safetensors({tensor: bytes(range(64))}))
    weight_map = {tensor: name for name, tensor in shards.items()}
    others = {
        "model.safetensors.index.json": json.dumps({"metadata": {"total_size": 128}, "weight_map": weight_map}),
        "tokenizer_config.json": json.dumps(TOKENIZER_CONFIG, indent=2),
        "tokenizer.json": "{}",
        "README.md": "# A model\n",
    }
    for name, text in others.items():
        (directory / name).write_text(text)
    (directory / "assets").mkdir()
    (directory / "assets" / "license.txt").write_text("free\n")
    return directory


def safetensors(tensors: Mapping[str, bytes]) -> bytes:
    """Return a file of U8 tensors, put together by hand after the format's description."""
    entries, data = {}, b""
    for name, content in tensors.items():
        entries[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + data


@dataclass(frozen=True)
class Done:
    """What a command left behind: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


_MEASURED = (
    "Measured cost: SmolLM2 135M at 4 times has 1.08 times the perplexity at 2,048 tokens and 1.16 times at 32,768"
)
# The notes on what an extension by yarn costs, at 4 and at 8 times the trained length.
COST_AT_4 = f"4 times the trained length. {_MEASURED}. `ropetool verify` measures this model"
COST_AT_8 = (
    f"8 times the trained length. {_MEASURED} and our demo model at 8 times has 1.15 times the perplexity at 256 tokens and at "
    "2,048. `ropetool verify` measures this model"
)


def run(*arguments: str | Path) -> Done:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as done:
            code = done.code
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def refusal(kind: type[RopetoolError], words: str) -> Iterator[pytest.ExceptionInfo[RopetoolError]]:
    """Expect an error of this kind whose sentence, with the names of options, contains these words (a pattern)."""
    with pytest.raises(kind) as caught:
        yield caught
    assert re.search(words, caught.value.sentence), caught.value.sentence


def snapshot(directory: Path) -> dict[str, tuple[bytes | None, int]]:
    """Return the content and the modification time of everything in a directory."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = os.lstat(path)
        found[str(path.relative_to(directory))] = (path.read_bytes() if path.is_file() else None, status.st_mtime_ns)
    return found


def config_of(directory: Path) -> dict[str, Any]:
    """Return the parsed config.json of a checkpoint."""
    found: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return found


def refused(root: Path, error: str, try_: str, *arguments: str | Path, code: int = 1) -> None:
    """Assert that the command prints exactly this, ends with the code, and changes nothing below `root`.

    `{m}` in a text stands for the path of the model below `root`.
    """
    before = snapshot(root)
    done = run(*arguments)
    after = snapshot(root)
    lines = [f"Error: {error}", *([f"Try: {try_}"] if try_ else [])]
    model = str(root / "model")
    assert done.err.splitlines() == [line.replace("{m}", model) for line in lines]
    assert (done.code, done.out) == (code, "")
    assert after == before
