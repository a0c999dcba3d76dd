"""tests/asks.md: each command there works on a small model of the type that it names."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import configs
import gguf_headers
import pytest
from models import write_config
from running import run
from test_docs import complaint

PAGE = Path(__file__).with_name("asks.md")
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d+ \|", line)
]  # fmt: skip
GGUF = {
    "Qwen2.5-7B": "qwen2", "Qwen3-8B": "qwen3", "Qwen3-30B-A3B": "qwen3moe", "Qwen3.6-27B": "qwen35", "gemma-4": "gemma4",
    "Qwen3.8-Flash-Next": "qwen4exp", "gemma-3": "gemma3", "Mistral-Large": "llama", "Qwen3-Coder-Next": "qwen3next",
    "Ling": "bailingmoe2", "Kimi-K2.5": "deepseek2", "Laguna": "laguna", "Muse-Glimmer": "muse-glimmer", "Qwen1.5": "qwen2",
}  # fmt: skip
OWN = {
    "Qwen2.5-7B": "qwen2", "Qwen3-8B": "qwen3", "Qwen3-30B-A3B": "qwen3_moe", "Meta-Llama-3-8B": "llama", "Llama-2-7b": "llama",
    "Qwen3-8B-draft": "qwen3", "gemma-2-2b": "gemma2", "DeepSeek-V3": "deepseek_v3", "Phi-3-mini-128k": "phi3",
}  # fmt: skip
TRAINED = {"Meta-Llama-3-8B": 8192, "gemma-2-2b": 8192}  # positions, where a row names a factor by its lengths
INSIDE = {  # the class that the published config names, and the text model inside
    "Qwen3.5-9B": ("qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
    "Qwen3.8-27B": ("qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
    "Qwen3-VL-2B": ("qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3_vl_text"),
    "Ministral-3": ("mistral3", "Mistral3ForConditionalGeneration", "ministral3"),
    "gemma-4": ("gemma4", "Gemma4ForConditionalGeneration", "gemma4_text"),
    "Qwen3.8-Flash-Next": ("qwen4_exp", "Qwen4ExpForConditionalGeneration", "qwen4_exp_text"),
}  # fmt: skip
SECTIONS = {"qwen3_5": [6, 5, 5], "qwen3_vl": [24, 20, 20]}  # of heads of 128, a quarter of which rotates in the first
SIZES = {
    "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2, "num_hidden_layers": 8, "head_dim": 128,
    "max_position_embeddings": 32768,
}  # fmt: skip


def commands(row: list[str]) -> list[list[str]]:
    return [shlex.split(found)[1:] for found in re.findall(r"`(ropetool [^`]+)`", row[-1])]


def stand_in(name: str, folder: Path) -> Path:
    """Write a model of the kind that a name of the page stands for."""
    stem = name.removesuffix(".gguf")
    if name != stem:
        return gguf_headers.write(folder / name, GGUF[stem])
    return write_config(folder / name, _config(stem))


def _config(name: str) -> dict[str, Any]:
    if name in OWN:
        return {**configs.config(OWN[name], "v4"), "max_position_embeddings": TRAINED.get(name, 512)}
    if name == "marin":
        return configs.config("llama", "v5")
    if name == "LFM2-1.2B":
        return {**SIZES, "model_type": "lfm2", "rope_theta": 1e6}
    outer, architecture, inner = INSIDE[name]
    rope = {"rope_type": "default", "rope_theta": 1e7}
    if outer in ("qwen3_5", "qwen3_vl"):
        rope |= {"mrope_section": SECTIONS[outer], "mrope_interleaved": True}
    text = {**SIZES, "model_type": inner, **({} if outer == "gemma4" else {"rope_parameters": rope})}
    return {"model_type": outer, "architectures": [architecture], "text_config": text}


def test_every_thread_is_answered_once() -> None:
    assert [row[0] for row in ROWS] == [str(number) for number in range(1, 55)]
    assert Counter(row[3] for row in ROWS).keys() == {"yes", "partly", "no"}
    assert all(commands(row) or row[4].startswith("as ") for row in ROWS if row[3] == "yes")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_command_does_it(row: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in commands(row):
        assert complaint(arguments) == ""
        if arguments[0] not in ("extend", "inspect", "gguf"):
            continue
        (tmp_path / "template.jinja").write_text("{{ messages }}")
        for name in (
            arguments[2 if arguments[0] == "gguf" else 1],
            *(after for option, after in pairwise(arguments) if option == "--companion"),
        ):
            if not (tmp_path / name).exists():
                stand_in(name, tmp_path)
        more = ["--dry-run"] if arguments[0] == "extend" and "--dry-run" not in arguments else []
        done = run(*arguments, *more)
        assert done.code == 0, done.err
        if "vLLM" in row[4]:  # the command line that serves it is what was asked for
            assert "--hf-overrides" in done.out
