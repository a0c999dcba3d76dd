"""Every family that is exported: transformers and llama.cpp give the same logits, or the export says why it cannot.

Positions beyond the trained length, float32 on both sides; a few families up to four times that length. Each family is
tried unextended and under YaRN. ROPETOOL_ALL_FAMILIES=1 tries all of them under everything, up to four times.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import models
import numpy as np
import pytest
from configs import EXPORTED, FACTOR, LENGTH, TRAINED
from models import SHORT

import ropetool
from ropetool import comparison, families
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.errors import LossyExport
from ropetool.families import exported
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.gguf_model.shapes.orders import Permutation
from ropetool.runtimes import inspection
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.verification.readback.weights import compare_weights

pytest.importorskip("llama_cpp")

TOLERANCE = 2e-4  # of the largest logit
# Norms behind llama.cpp's table of gelu make what it rounds as large as all else, twice in each layer.
NORMED = {"gemma4_text": 1e-3}
PLAIN = "unextended"
# By name: a method, its options, and which other table it is told from.
CELLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "linear": ("linear", {}, PLAIN),
    "ntk": ("ntk", {}, PLAIN),
    "yarn": ("yarn", {}, PLAIN),
    "yarn, factor 1": ("yarn", {"attention_factor": 1.0}, "yarn"),
    "yarn, beta 8": ("yarn", {"params": {"beta_fast": 8}}, "yarn"),
    "llama3": ("llama3", {}, PLAIN),
    "longrope": ("longrope", {}, PLAIN),
}
# What llama.cpp cannot hold, and where it says so (src/models/ of llama.cpp).
NO_VECTORS = {
    "qwen2": "qwen2.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "qwen3": "qwen3.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "qwen2_moe": "qwen2moe.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "qwen3_moe": "qwen3moe.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "gemma2": "gemma2.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "gemma3_text": "gemma3.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "olmo2": "olmo2.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "olmo3": "olmo2.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "smollm3": "smollm3.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "starcoder2": "starcoder2.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "glm4": "glm4.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "stablelm": "stablelm.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "gpt_neox": "gptneox.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "cohere": "command-r.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "gpt_oss": "openai-moe.cpp: ggml_rope_ext(ctx0, Qcur, inp_pos, nullptr, ...)",
    "deepseek_v2": "deepseek2.cpp: ggml_rope_ext(ctx0, q_pe, inp_pos, nullptr, ...)",
    "deepseek_v3": "deepseek2.cpp: ggml_rope_ext(ctx0, q_pe, inp_pos, nullptr, ...)",
}
TABLES = ("yarn, beta 8", "llama3", "longrope")
LOSSY = {(family, cell): "does not use frequency vectors" for family in NO_VECTORS for cell in TABLES} | {
    # gemma3.cpp: ggml_rope_ext(..., freq_base_l, freq_scale_l, ext_factor, attn_factor, ...): attn_factor is the same
    # for sliding layers, whose own scale is 1.
    ("gemma3_text", "yarn, factor 1"): "sliding_attention: attention factor 0.878249 instead of 1",
    ("gemma3", "yarn, factor 1"): "sliding_attention: attention factor 0.878249 instead of 1",
    # olmo2.cpp: if (is_swa) ggml_rope_ext(..., freq_base, 1.0, 0.0, 1.0, ...): the base is that of the full layers.
    ("olmo3", "ntk"): "sliding_attention: table: .* pairs differ: distances look up to 4x shorter",
    ("mellum", "ntk"): "sliding_attention: table: .* pairs differ: distances look up to 4x shorter",  # mellum.cpp: as olmo2
    # minicpm3.cpp: kq_scale = 1.0f / sqrtf(float(hparams.n_embd_head_k())), where the class follows mscale_all_dim.
    ("minicpm3", "yarn"): "the whole score is multiplied by 1 instead of 1.29648",
    ("minicpm3", "yarn, beta 8"): "the whole score is multiplied by 1 instead of 1.29648",
    # exaone4.cpp creates LLM_TENSOR_ROPE_FREQS alone.
    ("exaone4", "longrope"): "not a short and a long list",
}  # fmt: skip
# Of the others: what libllama's loader and graph take, which tests/oracle holds against it.
for _name in EXPORTED.keys() - NO_VECTORS.keys():
    _arch = archs.get(families.get(_name).gguf_architecture)
    if not _arch.vectors:
        LOSSY |= {(_name, cell): "does not use frequency vectors" for cell in TABLES}
    elif archs.ROPE_FACTORS_LONG not in _arch.loads("longrope"):
        LOSSY |= {(_name, "longrope"): "not a short and a long list"}
# No keys of a gemma4 say these of a proportional table, so there is no such checkpoint.
LOSSY |= {
    ("gemma4_text", cell): "from a table of rope type proportional" for cell in CELLS if cell not in ("linear", "ntk")
}
# For each way that a table is written: keys alone, a vector and lists, kinds of layer.
EVERYWHERE = ("granite", "phi3", "gemma3_text")
PROPORTIONAL = tuple(("gemma4_text", cell) for cell in ("linear", "ntk"))
# And by what differs where positions are large: windows, lists, multipliers.
LONG = (*EVERYWHERE, "llama", "deepseek_v3")
ALL = bool(os.environ.get("ROPETOOL_ALL_FAMILIES"))
GRID = [
    (family, cell)
    for family in EXPORTED
    for cell in (PLAIN, *CELLS)
    if (ALL or family in EVERYWHERE or cell in (PLAIN, "yarn") or (family, cell) in (*LOSSY, *PROPORTIONAL))
    and not (cell == "yarn, factor 1" and families.get(family).norm_after)
]


def length_of(family: str, cell: str = PLAIN) -> int:
    """Return the tokens of a comparison. What other cells write differs from these in numbers, not in how far it reaches."""
    return LENGTH if ALL or (family in LONG and cell in (PLAIN, "yarn", "longrope")) else SHORT


class Checkpoints:
    """The checkpoints of this module, each written once, with transformers' logits of each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._logits: dict[tuple[Path, int], np.ndarray] = {}

    def path(self, family: str, cell: str = PLAIN) -> Path:
        # No family in a file's name: llama.cpp wants certain tokens of what calls itself phi3 (src/llama-vocab.cpp).
        path = self.root / f"model-{list(EXPORTED).index(family)}-{[PLAIN, *CELLS].index(cell)}"
        if not path.exists() and cell == PLAIN:
            models.write(path, family)
        elif not path.exists():
            method, options, _ = CELLS[cell]
            source = self.path(family)
            options = {"params": self._lists(source)} if method == "longrope" else options
            if families.get(family).norm_after and method in ("yarn", "longrope"):
                options = {**options, "attention_factor": 1.0}  # any other vanishes in its norms
            reading = "original" if family in models.SCALED else None
            ropetool.apply(ropetool.plan(source, method, factor=FACTOR, reading=reading, **options), source, path)
        return path

    def logits(self, family: str, cell: str = PLAIN, length: int | None = None) -> np.ndarray:
        """Return transformers' logits of a row. length: its tokens; None: those of the family."""
        key = self.path(family, cell), length or length_of(family)
        if key not in self._logits:
            self._logits[key] = models.torch_logits(*key)
        return self._logits[key]

    def _lists(self, source: Path) -> dict[str, list[float]]:
        rope = inspection.inspect(source).rope
        assert rope is not None
        pairs = range(rope.entries["full_attention"].rotary_dim // 2)
        return {"short_factor": [1 + 0.05 * pair for pair in pairs], "long_factor": [1 + 0.2 * pair for pair in pairs]}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("families"))


def export(source: Path, output: Path) -> Path:
    return models.export(source, output, outtype="f32", allow_unverified=True).output


def test_every_family_is_here() -> None:
    assert EXPORTED.keys() == {*exported()}


@pytest.mark.parametrize(("family", "cell"), GRID, ids=lambda name: name)
def test_llama_cpp_computes_what_transformers_does(
    family: str, cell: str, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    if (family, cell) in LOSSY:
        with pytest.raises(LossyExport, match=LOSSY[family, cell]):
            export(checkpoints.path(family, cell), tmp_path / "x.gguf")
        return
    source, length = checkpoints.path(family, cell), length_of(family, cell)
    wanted = checkpoints.logits(family, cell, length)
    if cell != PLAIN:
        assert models.apart(wanted, checkpoints.logits(family, CELLS[cell][2], length)) > 20 * TOLERANCE
    found = models.llama_logits(export(source, tmp_path / "x.gguf"), length)
    assert models.apart(wanted, found) < NORMED.get(family, TOLERANCE)


@pytest.mark.parametrize("family", EXPORTED)
def test_every_tensor_of_an_export_is_its_source_s(family: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    """Also those that an export shifts, splits, merges or turns; and one number that is not is found in either direction."""
    source, file = checkpoints.path(family), tmp_path / "x.gguf"
    export(source, file)
    target, directory = open_checkpoint(file), open_checkpoint(source)
    assert not compare_weights(target, directory, None).differences
    alone = {name.split()[0] for name in models.apart_by_themselves(target, directory)}
    reader = gguf.GGUFReader(file, "r+")
    changed = next((each for each in reader.tensors if each.name in alone), reader.tensors[-1])
    changed.data.reshape(-1)[-1:] += changed.data.dtype.type(0.25)
    reader.data.flush()
    for first, second in ((source, file), (file, source)):
        found = [each for each in comparison.compare(first, second).tensors if each.differs]
        assert [changed.name in (each.name, each.other) for each in found] == [True]


def with_another_base(path: Path, target: Path) -> Path:
    """Write the file with rotations that are slightly slower."""
    header = read_header(path)
    bases = [key for key in header.values if key.endswith((".rope.freq_base", ".rope.freq_base_swa"))]
    slower = {key: Value.of(ValueType.F32, 1.05 * header.get(key, ValueType.F32)) for key in bases}
    write_patched(header, Patch(set=slower), target)
    return target


@pytest.mark.parametrize("family", EXPORTED)
def test_a_base_that_is_slightly_off_would_be_seen(family: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    changed = with_another_base(export(checkpoints.path(family), tmp_path / "x.gguf"), tmp_path / "y.gguf")
    assert models.apart(checkpoints.logits(family), models.llama_logits(changed, length_of(family))) > 20 * TOLERANCE


TURNED = (  # every order of elements there is
    "llama", "gpt_neox", "gpt_oss", "deepseek_v3", "granitemoeshared", "qwen3_vl_moe_text", "qwen3_5_text", "qwen3_next",
    "llama4_text",
)  # fmt: skip


@pytest.mark.parametrize("family", TURNED)
def test_elements_that_stay_in_place_would_be_seen(
    family: str, checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_place(turn: Permutation, elements: np.ndarray) -> np.ndarray:
        if turn.numbers:
            return elements
        seen = elements.reshape(-1, *turn.shape[1:])
        part: np.ndarray = seen[(slice(None),) * turn.axis + (slice(*turn.part),)].reshape(-1)
        return part

    if family not in ("gpt_neox", "qwen3_next"):  # whose orders are all in what is taken from where
        monkeypatch.setattr(Permutation, "apply", in_place)
    else:
        monkeypatch.setattr(
            Permutation, "apply", lambda turn, elements: elements[: elements.size // turn.unit * turn.taken]
        )
    path = export(checkpoints.path(family), tmp_path / "x.gguf")
    assert models.apart(checkpoints.logits(family), models.llama_logits(path, length_of(family))) > 20 * TOLERANCE


# --- DeepSeek's two multipliers, and everything else that a whole score may be scaled by


def scaled(**more: Any) -> dict[str, Any]:
    return {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": float(FACTOR), "original_max_position_embeddings": TRAINED,
        **more,
    }  # fmt: skip


MULTIPLIERS = {
    "equal": scaled(mscale=0.707, mscale_all_dim=0.707),
    "different": scaled(mscale=1.3, mscale_all_dim=0.6),
    "none": scaled(),
    "all_dim alone": scaled(mscale_all_dim=0.8),
    "stated": scaled(attention_factor=1.5, mscale_all_dim=1.0),
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": float(FACTOR)},
}


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_the_multipliers_of_deepseek(name: str, tmp_path: Path) -> None:
    changes = {"rope_parameters": MULTIPLIERS[name], "max_position_embeddings": FACTOR * TRAINED}
    source = models.write(tmp_path / "model", "deepseek_v3", changes)
    wanted, path = models.torch_logits(source, SHORT), export(source, tmp_path / "x.gguf")
    assert models.apart(wanted, models.llama_logits(path, SHORT)) < TOLERANCE
    keys = [key for key in read_header(path).values if key.endswith(("attn_factor", "yarn_log_multiplier"))]
    assert keys
    write_patched(read_header(path), Patch(remove=frozenset(keys)), tmp_path / "y.gguf")
    assert models.apart(wanted, models.llama_logits(tmp_path / "y.gguf", SHORT)) > 20 * TOLERANCE


# --- other forms of the same families


def _variant(family: str, **changes: Any) -> Callable[[Path], Path]:
    return lambda path: models.write(path, family, changes)


MOST_SLIDE = ["sliding_attention"] * 3 + ["full_attention"]
ASSUMED_V3 = ("n_group", "topk_group", "first_k_dense_replace", "q_lora_rank", "num_nextn_predict_layers")
GROUPS = {"new_decoder_architecture": True, "num_kv_heads": 2}
GEMMA4_EXPERTS = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 48}
VARIANTS: dict[str, Callable[[Path], Path]] = {
    "deepseek without a query latent": _variant("deepseek_v2", q_lora_rank=None),
    "stablelm with norms of each head": _variant("stablelm", qk_layernorm=True),
    "stablelm in parallel": _variant("stablelm", use_parallel_residual=True),
    "gpt_neox one after the other": _variant("gpt_neox", use_parallel_residual=False),
    "olmo2 tied": _variant("olmo2", tie_word_embeddings=True),
    "smollm3 tied": _variant("smollm3", tie_word_embeddings=True),
    "glm4 without biases": _variant("glm4", attention_bias=False),
    "gemma3 with capped logits": _variant("gemma3_text", final_logit_softcapping=300.0),
    "llama with heads that are wider than their share": _variant("llama", head_dim=48),
    "exaone4 whose layers slide": _variant(
        "exaone4", num_hidden_layers=64, sliding_window=64, layer_types=MOST_SLIDE * 16
    ),
    "falcon with groups": _variant("falcon", **GROUPS),
    "falcon with groups and one norm": _variant("falcon", **GROUPS, num_ln_in_parallel_attn=1),
    "falcon with a key a head": _variant("falcon", multi_query=False, tie_word_embeddings=True),
    "hunyuan whose base is stretched": _variant(
        "hunyuan_v1_dense",
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0},
    ),
    "deepseek of which the config says little": _variant(
        "deepseek_v3", **dict.fromkeys(ASSUMED_V3, models.SILENT), num_hidden_layers=4, n_routed_experts=16
    ),
    "deepseek whose norms of latents differ": _variant("deepseek_v3", rms_norm_eps=1e-4),
    "deepseek that uses all groups": _variant("deepseek_v3", n_group=2, topk_group=2),
    "deepseek that ignores groups": _variant("deepseek_v2", n_group=2, topk_group=1, n_routed_experts=8),
    "gpt_neox with a key for others": _variant("gpt_neox", num_key_value_heads=1),
    "gemma4 whose keys are values": _variant(
        "gemma4_text",
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        num_kv_shared_layers=0,
        use_double_wide_mlp=False,
        hidden_size_per_layer_input=0,
    ),
    "gemma4 with experts": _variant("gemma4_text", **GEMMA4_EXPERTS),
    "gemma4 with capped logits": _variant("gemma4_text", final_logit_softcapping=3.0),
    "mixtral with another name": _variant("mixtral", num_local_experts=models.SILENT, num_experts=4),
    "smollm3 with a window that is switched off": _variant("smollm3", use_sliding_window=False, sliding_window=64),
}


def _as_published_kimi_k2(path: Path, **scaling: float) -> Path:
    """Write a deepseek_v3 under the name and with the keys that the repository of Kimi K2 gives it."""
    source = models.write(path, "deepseek_v3", {"n_group": 1, "topk_group": 1})
    config = json.loads((source / "config.json").read_text())
    config |= {
        "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "topk_method": "noaux_tc", "seq_aux": True,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "scoring_func": "sigmoid",
        "rope_theta": 50000.0, "max_position_embeddings": LENGTH,
        "rope_scaling": {
            "type": "yarn", "factor": float(FACTOR), "original_max_position_embeddings": TRAINED, "mscale": 1.0,
            "mscale_all_dim": 1.0, **scaling,
        },
    }  # fmt: skip
    models.save(source / "config.json", config)
    return source


def test_kimi_k2_is_the_class_that_its_code_copies(tmp_path: Path) -> None:
    source = _as_published_kimi_k2(tmp_path / "model")
    found = models.llama_logits(export(source, tmp_path / "x.gguf"), SHORT)
    config = json.loads((source / "config.json").read_text())
    models.save(source / "config.json", {**config, "model_type": "deepseek_v3"})
    assert models.apart(models.torch_logits(source, SHORT), found) < TOLERANCE


def test_kimi_k2s_betas_have_no_place(tmp_path: Path) -> None:
    """Of llama.cpp's architectures grok and mistral3 alone read them (src/models/grok.cpp, mistral3.cpp)."""
    source = _as_published_kimi_k2(tmp_path / "model", beta_fast=1.0, beta_slow=1.0)
    with pytest.raises(
        LossyExport,
        match=r"deepseek2 files cannot store yarn scaling with .*, beta_fast 1\.0, beta_slow 1\.0: yarn keys give a different table",
    ):
        export(source, tmp_path / "x.gguf")


@pytest.mark.parametrize("name", VARIANTS)
def test_other_forms_are_exported_too(name: str, tmp_path: Path) -> None:
    source = VARIANTS[name](tmp_path / "model")
    found = models.llama_logits(export(source, tmp_path / "x.gguf"), SHORT)
    tolerance = NORMED["gemma4_text"] if name.startswith("gemma4") else TOLERANCE
    assert models.apart(models.torch_logits(source, SHORT), found) < tolerance


def test_logits_without_a_cap_say_so(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """llama.cpp caps a gemma4's logits at 30 where its file says nothing (f_final_logit_softcapping)."""
    key = "gemma4.final_logit_softcapping"
    path = export(checkpoints.path("gemma4_text"), tmp_path / "x.gguf")
    assert read_header(path).get(key, ValueType.F32) == 0
    write_patched(read_header(path), Patch(remove=frozenset({key})), tmp_path / "y.gguf")
    capped = models.llama_logits(tmp_path / "y.gguf", SHORT)
    uncapped = models.llama_logits(path, SHORT)
    np.testing.assert_allclose(capped, 30 * np.tanh(uncapped / 30), atol=1e-5)
    assert models.apart(uncapped, capped) > TOLERANCE


# --- embedding and head


def _another_head(stored: dict[str, Any]) -> None:
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"].flip(0)


def _only_a_head(stored: dict[str, Any]) -> None:
    stored["lm_head.weight"] = stored.pop("model.embed_tokens.weight")


@pytest.mark.parametrize("family", ["llama", "qwen2_moe"])  # by whether llama.cpp needs output.weight
@pytest.mark.parametrize("change", [_another_head, _only_a_head])
def test_what_is_tied_is_what_transformers_ties(
    family: str, change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    source = models.set_tensors(models.write(tmp_path / "model", family, {"tie_word_embeddings": True}), change)
    found = models.llama_logits(export(source, tmp_path / "x.gguf"), SHORT)
    assert models.apart(models.torch_logits(source, SHORT), found) < TOLERANCE


def test_a_head_that_llama_cpp_has_no_place_for(tmp_path: Path) -> None:
    source = models.set_tensors(models.write(tmp_path / "model", "cohere"), _another_head)
    with pytest.raises(LossyExport, match=r"lm_head\.weight differs from model\.embed_tokens\.weight; llama\.cpp uses"):
        export(source, tmp_path / "x.gguf")
