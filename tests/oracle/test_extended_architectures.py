"""GGUF files of architectures that no family is named after, extended and run by llama.cpp.

References: transformers on the checkpoint that a file was exported from, with rope keys written by hand; where there is
no export, a forward pass in float64 that rotates by llama.cpp's formulas on the written keys (gguf_headers.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import configs
import gguf_headers as headers
import models
import numpy as np
import pytest
from gguf import GGUFValueType
from gguf_files import HIDDEN, INNER, TRAINED, VOCABULARY, Tiny
from gguf_logits import llama_kept_bytes, llama_row_logits, numpy_logits

import ropetool
from ropetool.errors import InvalidRope, LossyExport
from ropetool.rope.tables import LayerRope, Regime
from ropetool.runtimes import inspection
from ropetool.runtimes.llama_cpp import architectures as archs

pytest.importorskip("llama_cpp")

TOLERANCE = 2e-4  # of the largest logit, float32 against float32
EXPORTED = {
    "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "gpt_oss": "gpt-oss", "deepseek_v3": "deepseek2",
    "ministral3": "mistral3", "qwen2_moe": "qwen2moe", "cohere": "command-r",
}  # fmt: skip
LONG = ("gemma3_text", "deepseek_v3")  # run up to four times the trained length
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": configs.TRAINED}
KEYS = {"linear": {"rope_type": "linear", "factor": 4.0}, "yarn": YARN}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a random checkpoint of each family, with its plain export beside it."""
    made = {}
    for number, family in enumerate(EXPORTED):
        made[family] = models.write(tmp_path_factory.mktemp("models") / f"model-{number}", family)
        models.export(made[family], made[family].with_suffix(".gguf"), outtype="f32")
    return made


def by_hand(source: Path, family: str, method: str, target: Path) -> Path:
    """Copy a checkpoint and write the scaled rope keys into its config."""
    from transformers import AutoConfig

    loaded = AutoConfig.from_pretrained(source).rope_parameters
    keys = dict(KEYS[method])
    if family == "deepseek_v3":
        keys |= {"mscale": 1.0, "mscale_all_dim": 1.0} if method == "yarn" else {}
    nested = "full_attention" in loaded
    scaled = {**(loaded["full_attention"] if nested else loaded), **keys}
    rope = {**loaded, "full_attention": scaled} if nested else scaled
    return models.copied(source, target, rope_parameters=rope, max_position_embeddings=4 * configs.TRAINED)


@pytest.mark.parametrize("method", KEYS)
@pytest.mark.parametrize("family", EXPORTED)
def test_an_extended_file_computes_what_transformers_does(
    family: str, method: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    source = sources[family]
    file = source.with_suffix(".gguf")
    assert inspection.inspect(file).model_type == EXPORTED[family]
    output = ropetool.apply(ropetool.plan(file, method, factor=4), file, tmp_path / "out.gguf").output
    length = configs.LENGTH if family in LONG else models.SHORT
    wanted = models.torch_logits(by_hand(source, family, method, tmp_path / "hf"), length)
    assert models.apart(wanted, models.llama_logits(output, length)) < TOLERANCE
    # What an extension that is ignored gives:
    assert models.apart(wanted, models.llama_logits(file, length)) > 20 * TOLERANCE


@pytest.mark.parametrize("family", EXPORTED)
def test_the_cache_is_as_large_as_llama_cpp_keeps_it(family: str, sources: dict[str, Path], tmp_path: Path) -> None:
    """A note of 12 bytes stands beside each token, in each of the caches of full and of sliding layers."""
    file = sources[family].with_suffix(".gguf")
    if family == "deepseek_v3":  # in that of the fixture the latent is as wide as the decoupled key
        source = models.write(tmp_path / "model", family, {"kv_lora_rank": 48})
        models.export(source, file := tmp_path / "wide.gguf", outtype="f32")
    found = inspection.inspect(file)
    per_token = (llama_kept_bytes(file, range(1, 33)) - llama_kept_bytes(file, range(1, 17))) / 16
    assert per_token == 2 * found.cache_bytes(1) + 12 * len(found.kv_bytes)


# --- without an export: one layer, in float64

SECTIONS = (GGUFValueType.ARRAY, [11, 11, 10, 0])
EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_shared_count": 1, "leading_dense_block_count": 1,
           "expert_feed_forward_length": 16}  # fmt: skip
STATE = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 64,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 2,
    "ssm.group_count": 1,
}


def numbers(found: dict[str, int]) -> dict[str, Any]:
    return {key: (GGUFValueType.UINT32, number) for key, number in found.items()}


def still_layer() -> dict[str, np.ndarray]:
    """Return a layer that keeps a state and adds nothing: what leads out of it is 0."""
    rng = np.random.default_rng(2)
    shapes = {
        "attn_qkv.weight": (128, HIDDEN), "attn_gate.weight": (64, HIDDEN), "ssm_conv1d.weight": (128, 4), "ssm_dt.bias": (2,),
        "ssm_a": (2,), "ssm_beta.weight": (2, HIDDEN), "ssm_alpha.weight": (2, HIDDEN), "ssm_norm.weight": (32,),
        "attn_norm.weight": (HIDDEN,), "post_attention_norm.weight": (HIDDEN,), "ffn_gate.weight": (INNER, HIDDEN),
        "ffn_up.weight": (INNER, HIDDEN),
    }  # fmt: skip
    drawn = {name: rng.normal(-0.5, 0.1, shape) for name, shape in shapes.items()}
    zeros = {"ssm_out.weight": np.zeros((HIDDEN, 64)), "ffn_down.weight": np.zeros((HIDDEN, INNER))}
    return {f"blk.0.{name}": tensor.astype(np.float32) for name, tensor in {**drawn, **zeros}.items()}


IN_FRONT = {"qwen35": still_layer()}  # which llama.cpp does not load without such a layer
MODELS = {
    "qwen3vl": {"rope.dimension_sections": SECTIONS},
    "qwen35": {"rope.dimension_sections": (GGUFValueType.ARRAY, [6, 5, 5, 0]), archs.DIMENSION_COUNT: 32,
**numbers({**STATE, "full_attention_interval": 2})},
    "glm4moe": {archs.DIMENSION_COUNT: 32, **numbers(EXPERTS)},
}  # fmt: skip
ROW = [int(token) for token in np.random.default_rng(6).integers(0, VOCABULARY, 2048)]
ONE_LAYER_CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear", {}), "ntk": ("ntk", {}), "yarn": ("yarn", {}), "yarn, factor 1.3": ("yarn", {"attention_factor": 1.3}),
}  # fmt: skip


def reference(arch: str, path: Path) -> np.ndarray:
    found = headers.rotation(path)
    regime = Regime(found.inv_freq, found.attention_factor)
    entry = LayerRope("none", None, 64, 0, "half", (0,))  # only the layout is looked at
    return numpy_logits(arch, entry, regime, ROW)


@pytest.mark.parametrize("cell", ONE_LAYER_CELLS)
@pytest.mark.parametrize("arch", MODELS)
def test_an_extended_layer_follows_the_formulas(arch: str, cell: str, tmp_path: Path) -> None:
    stated = {archs.CONTEXT_LENGTH: TRAINED, archs.FREQ_BASE: 10000.0, archs.DIMENSION_COUNT: 64, **MODELS[arch]}
    source = Tiny(arch, stated, in_front=IN_FRONT.get(arch, {})).write(tmp_path / "m.gguf")
    method, options = ONE_LAYER_CELLS[cell]
    output = ropetool.apply(ropetool.plan(source, method, factor=4, **options), source, tmp_path / "out.gguf").output
    before, after = (llama_row_logits(path, ROW) for path in (source, output))
    assert models.apart(reference(arch, output), after) < TOLERANCE
    assert models.apart(reference(arch, source), before) < TOLERANCE
    assert models.apart(before, after) > 20 * TOLERANCE


def test_a_leaking_factor_is_refused_where_llama_cpp_would_leak_it(tmp_path: Path) -> None:
    """gemma3's sliding layers take the factor of the full ones: by keys alone it cannot be kept from them."""
    sliding = {archs.SLIDING_WINDOW: 4096, archs.SLIDING_WINDOW_PATTERN: [True], archs.CONTEXT_LENGTH: TRAINED}
    plain, leaking = (
        Tiny("gemma3", {**sliding, **more}).write(tmp_path / f"{len(more)}.gguf")
        for more in ({}, {archs.ATTN_FACTOR: 1.3})
    )
    logits = [llama_row_logits(path, ROW[:256]) for path in (plain, leaking)]
    assert models.apart(*logits) > 20 * TOLERANCE

    file = headers.write(tmp_path / "header.gguf", "gemma3")
    with pytest.raises(LossyExport, match="sliding layers share the factor"):
        ropetool.plan(file, "yarn", factor=4, attention_factor=1.3)


@pytest.mark.parametrize("layers", [8, 32, 40])
def test_baichuan_rotates_with_32_layers_alone(layers: int, tmp_path: Path) -> None:
    """llama.cpp takes 40 layers for the model with ALiBi, and gives those of any other number no positions at all."""
    row = ROW[:48]
    near, far = (
        Tiny("baichuan", {archs.FREQ_BASE: theta}, layers=layers).write(tmp_path / f"{theta:g}.gguf")
        for theta in (1e4, 1e6)
    )
    apart = models.apart(llama_row_logits(near, row), llama_row_logits(far, row))
    entry = next(iter(inspection.inspect(near).rope.entries.values()))  # type: ignore[union-attr]
    if layers == 32:
        assert (apart > 20 * TOLERANCE, entry.rope_type) == (True, "default")
        output = ropetool.apply(ropetool.plan(near, "linear", factor=4), near, tmp_path / "out.gguf").output
        assert models.apart(llama_row_logits(near, row), llama_row_logits(output, row)) > 20 * TOLERANCE
        return
    assert (apart, entry.rope_type, entry.layers) == (0, "none", tuple(range(layers)))
    assert "this baichuan file has no rotary positions" in inspection.inspect(near).notes[0]
    with pytest.raises(InvalidRope, match="none of its layers rotates"):
        ropetool.plan(near, "linear", factor=4)
