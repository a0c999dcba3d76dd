"""How many modules of ropetool a command loads, in a fresh interpreter: these figures may only shrink."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gguf_files import model
from models import write_config
from running import run

from ropetool.files.gguf import header

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "num_hidden_layers": 2, "vocab_size": 320, "max_position_embeddings": 2048, "rope_theta": 10000.0,
}  # fmt: skip

# By command line: modules of ropetool that may be loaded. DIR is a checkpoint, GGUF a file. Lower a figure with its cause.
LIMITS = {
    "--help": 5,
    "extend --help": 9,
    "verify --help": 7,
    "methods": 29,
    "families llama": 27,
    "runtimes": 64,
    "inspect GGUF": 106,
    "inspect DIR": 100,
    "inspect GGUF --json": 100,
    "advise GGUF --target-length 4096": 111,
    "advise DIR --target-length 4096": 122,
    "extend DIR --target-length 4096 --dry-run": 130,
    "extend DIR --target-length 4096 --method yarn -o OUTPUT": 97,
    "extend GGUF --target-length 1024 --method yarn -o OUTPUT": 131,
    "diff DIR DIR": 113,
    "doctor DIR": 169,
    "gguf list GGUF": 33,
    "gguf get GGUF llama.context_length": 72,
    "gguf set GGUF llama.context_length 1024 -o OUTPUT": 130,
    "restore GGUF": 111,
    "recover GGUF": 33,
}
SLACK = 5  # modules; a figure that is further above what a command loads no longer holds it
COUNTED = """
import sys
from ropetool.cli import main
try:
    main(sys.argv[1:])
finally:
    print(*sorted(name for name in sys.modules if name.split(".")[0] == "ropetool"), sep="\\n", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("sources")
    checkpoint = write_config(folder / "checkpoint", CONFIG)
    return {"DIR": str(checkpoint), "GGUF": str(model(folder / "model.gguf"))}


def modules_loaded(*arguments: str) -> set[str]:
    """Return the modules of ropetool that a fresh interpreter holds after a command."""
    done = subprocess.run([sys.executable, "-c", COUNTED, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1, 3), done.stderr
    return {line for line in done.stderr.split("\n") if line.partition(".")[0] == "ropetool"}


@pytest.mark.parametrize("line", LIMITS)
def test_modules_of_a_command(line: str, sources: dict[str, str], tmp_path: Path) -> None:
    named = {**sources, "OUTPUT": str(tmp_path / ("output.gguf" if "GGUF" in line else "output"))}
    loaded = modules_loaded(*(named.get(word, word) for word in line.split()))
    assert "ropetool.cli" in loaded
    assert len(loaded) <= LIMITS[line], f"{line}: {len(loaded)} modules of at most {LIMITS[line]}: {sorted(loaded)}"
    assert len(loaded) >= LIMITS[line] - SLACK, f"{line} loads {len(loaded)} modules: lower its figure in LIMITS"


def test_inspect_keeps_below_its_budget() -> None:
    assert max(limit for line, limit in LIMITS.items() if line.startswith("inspect")) <= 110


def test_costs_are_loaded_for_inspect_cost_alone(sources: dict[str, str]) -> None:
    assert not any(name.startswith("ropetool.verification") for name in modules_loaded("inspect", sources["GGUF"]))
    assert "ropetool.report.costing" in modules_loaded("inspect", sources["GGUF"], "--cost")


def test_an_extension_of_a_directory_loads_no_other_format(sources: dict[str, str], tmp_path: Path) -> None:
    command = ("extend", sources["DIR"], "--target-length", "4096", "--method", "yarn", "-o", str(tmp_path / "output"))
    loaded = {name.removeprefix("ropetool.") for name in modules_loaded(*command)}
    assert {"runtimes.vllm", "rope.methods.yarn", "runtimes.llama_cpp"} <= loaded
    for package in ("files.gguf", "checkpoint.gguf", "runtimes.llama_cpp.", "files.hub.snapshots"):
        assert not [name for name in loaded if name.startswith(package)]
    assert {name for name in loaded if name.startswith("weights.")} == {"weights.edits"}
    assert {name for name in loaded if name.startswith("rope.methods.")} == {"rope.methods.base", "rope.methods.yarn"}


def test_inspect_parses_the_header_once(sources: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    parse = header._parse
    monkeypatch.setattr(
        header, "_parse", lambda *arguments, **options: (parsed.append(1), parse(*arguments, **options))[1]
    )
    assert run("inspect", sources["GGUF"]).code == 0
    assert len(parsed) == 1
