"""The same extension in a Hugging Face checkpoint and in a GGUF file: transformers and llama.cpp give the same logits.

Three ways lead to one meaning: extend the checkpoint (transformers), extend it and export (llama.cpp), export it
and extend the GGUF file (llama.cpp).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import configs
import models
import numpy as np
import pytest

import ropetool
from ropetool.errors import LossyExport
from ropetool.runtimes import inspection

pytest.importorskip("llama_cpp")

TOLERANCE = 2e-4  # of the largest logit, float32 against float32 at positions up to 4 times the trained length
PAIRS = 16
LISTS = {"long_factor": [1.0 + 0.2 * i for i in range(PAIRS)]}
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear", {}),
    "ntk": ("ntk", {}),
    "abf": ("abf", {"params": {"rope_theta": 1e6}}),
    "ntk-by-parts": ("ntk-by-parts", {}),
    "yarn": ("yarn", {}),
    "yarn-factor-1": ("yarn", {"attention_factor": 1.0}),
    "yarn-factor-1.7": ("yarn", {"attention_factor": 1.7}),
    "yarn-beta-8": ("yarn", {"params": {"beta_fast": 8}}),
    "yarn-no-truncate": ("yarn", {"params": {"truncate": False}}),
    "yarn-turns": ("yarn", {"params": {"ramp": "turns", "beta_fast": 12}}),
    "mixed-ntk": ("mixed-ntk", {}),
    "dynamic-frozen": ("dynamic", {"params": {"freeze": 2048}}),
    "llama3": ("llama3", {}),
    "longrope": ("longrope", {"params": LISTS}),
    "attention": ("attention", {}),
}
# What an architecture cannot hold: it has no rope_freqs, and llama.cpp reads neither betas nor truncate for it
# (llama.cpp src/llama-model.cpp: rope_freqs are created for llama and a few others; betas are read by grok and mistral3).
TABLES_ONLY = {"yarn-beta-8", "yarn-no-truncate", "yarn-turns", "mixed-ntk", "llama3", "longrope"}
LOSSY = {(arch, cell) for arch in ("qwen2", "qwen3") for cell in TABLES_ONLY}
FAMILIES = ("llama", "qwen2", "qwen3")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a random float32 checkpoint of each family, with the demo's tokenizer, and its export beside it."""
    import torch

    def draw(name: str, weight: torch.Tensor) -> None:
        if "norm" not in name:
            weight.normal_(0.0, 2.0 if "embed" in name else 0.12)

    demo = Path(ropetool.__file__).parent / "demo" / "model"
    made = {}
    for family in FAMILIES:
        source = tmp_path_factory.mktemp(family) / "model"
        data = {**configs.config(family, "v4"), "vocab_size": 2048, "bos_token_id": 0, "eos_token_id": 1}
        models.random_model(source, data, 11, draw)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(demo / name, source / name)
        models.export(source, source.with_name("model.gguf"), outtype="f32")
        made[family] = source
    return made


IDS = [0, *(int(i) for i in np.random.default_rng(3).integers(2, 2048, 2047))]
PLACES = [5, 300, 511, 512, 700, 1023, 1500, 2046, 2047]
SHORT = 720  # tokens beyond the trained length; llama is run up to four times it


def length_of(family: str) -> int:
    return len(IDS) if family == "llama" else SHORT


def places(length: int) -> list[int]:
    return [place for place in PLACES if place < length]


def torch_logits(path: Path, length: int) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([IDS[:length]])).logits[0, places(length)].numpy().astype(np.float64)


def llama_logits(path: Path, length: int) -> np.ndarray:
    from ropetool.verification.runners.llama_runner import LlamaRunner

    runner = LlamaRunner(path)
    try:
        rows = np.concatenate([piece.copy() for _, piece in runner.logits(IDS[:length])])
        return rows[places(length)].astype(np.float64)
    finally:
        runner.close()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("family", FAMILIES)
def test_both_formats_compute_the_same(family: str, cell: str, sources: dict[str, Path], tmp_path: Path) -> None:
    method, options = CELLS[cell]
    source = sources[family]
    gguf = source.with_name("model.gguf")
    if (family, cell) in LOSSY:
        with pytest.raises(LossyExport, match=r"llama\.cpp"):
            ropetool.plan(gguf, method, factor=4, **options)
        return
    extended, direct, exported = tmp_path / "hf", tmp_path / "direct.gguf", tmp_path / "exported.gguf"
    ropetool.apply(ropetool.plan(source, method, factor=4, **options), source, extended)
    ropetool.apply(ropetool.plan(gguf, method, factor=4, **options), gguf, direct)
    models.export(extended, exported, outtype="f32", allow_unverified=True)
    tables = [inspection.inspect(path).rope for path in (direct, exported)]
    assert tables[0].disagreement(tables[1]) == ""
    assert tables[0].max_position_embeddings == tables[1].max_position_embeddings
    wanted = torch_logits(extended, length_of(family))
    assert models.apart(wanted, llama_logits(direct, length_of(family))) < TOLERANCE
    if family == "llama":
        assert models.apart(wanted, llama_logits(exported, length_of(family))) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_an_extension_that_is_ignored_would_be_seen(family: str, sources: dict[str, Path], tmp_path: Path) -> None:
    """Planted: the unextended GGUF, and one whose attention factor was dropped, are far outside the tolerance."""
    source = sources[family]
    gguf = source.with_name("model.gguf")
    ropetool.apply(ropetool.plan(source, "yarn", factor=4, attention_factor=1.7), source, tmp_path / "hf")
    ropetool.apply(ropetool.plan(gguf, "yarn", factor=4), gguf, tmp_path / "dropped.gguf")
    wanted = torch_logits(tmp_path / "hf", length_of(family))
    assert models.apart(wanted, llama_logits(gguf, length_of(family))) > 20 * TOLERANCE
    assert models.apart(wanted, llama_logits(tmp_path / "dropped.gguf", length_of(family))) > 20 * TOLERANCE


def test_the_current_reading_of_a_llama3_file(sources: dict[str, Path], tmp_path: Path) -> None:
    """A llama3 table is a frequency vector in GGUF; building on it means the same in both formats."""
    source = sources["llama"]
    gguf = source.with_name("model.gguf")
    for path, first in ((source, tmp_path / "hf1"), (gguf, tmp_path / "g1.gguf")):
        ropetool.apply(ropetool.plan(path, "llama3", factor=2), path, first)
    for path, second in ((tmp_path / "hf1", tmp_path / "hf2"), (tmp_path / "g1.gguf", tmp_path / "g2.gguf")):
        ropetool.apply(ropetool.plan(path, "yarn", factor=2, reading="current"), path, second)
    assert models.apart(torch_logits(tmp_path / "hf2", SHORT), llama_logits(tmp_path / "g2.gguf", SHORT)) < TOLERANCE
