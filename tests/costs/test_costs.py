"""What a length costs: parameters, bytes and FLOPs against torch's counters, transformers' caches and the files themselves."""

from __future__ import annotations

import json
import os
from math import prod
from pathlib import Path
from typing import Any

import configs
import models
import mxfp4_models
import numpy as np
import pytest
import torch
import transformers
from running import run
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode
from verifying import shrink_suites

import ropetool
from ropetool.costs import weights
from ropetool.costs.lines import Cost, CostLine, cost_of
from ropetool.costs.weights import Weights
from ropetool.gguf_export import export_checkpoint
from ropetool.report.costing import cost_parts
from ropetool.report.terminal import terminal_text
from ropetool.runtimes import inspection
from ropetool.runtimes.inspection import Inspection
from ropetool.runtimes.kv_cache import KvCache
from ropetool.verification import suites
from ropetool.verification.checkpoints import verify_checkpoint

DEMO = Path(inspection.__file__).parents[1] / "demo" / "model"
TOKENS = 48  # fewer than any window of the tiny models
DENSE = ("llama", "gemma2", "gemma3_text", "cohere2", "falcon", "gpt_neox", "phi3", "minicpm3", "youtu")
SPARSE = ("deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", "granitemoe", "mixtral", "qwen2_moe", "qwen3_moe")
REAL = os.environ.get("ROPETOOL_REAL_FILES")


def model_of(family: str, **changes: Any) -> Any:
    """Return a random model of transformers; experts one by one, for torch counts no grouped products."""
    config = transformers.AutoConfig.for_model(family, **{**configs.EXPORTED[family], **changes})
    config._experts_implementation = "eager"
    return models.auto_class(config).from_config(config, attn_implementation="eager").eval()


def saved(model: Any, path: Path) -> tuple[Inspection, Weights]:
    model.save_pretrained(path)
    found, checkpoint = inspection.inspect_opened(path)
    return found, weights.of(checkpoint, found.rope)


def ran(model: Any, tokens: int = TOKENS) -> tuple[int, Any]:
    """Return the FLOPs of a pass by torch's counter, with logits for the last token, and the cache that it leaves."""
    ids = torch.randint(3, 10, (1, tokens))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        cache = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
    return counter.get_total_flops(), cache


def nbytes(cache: Any) -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers if layer.keys is not None)


def by_name(cost: Cost) -> dict[tuple[str, str], CostLine]:
    found = {(line.name, line.unit): line for line in cost.lines}
    assert len(found) == len(cost.lines)
    return found


@pytest.mark.parametrize("family", [*DENSE, *SPARSE])
def test_a_pass_of_transformers(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    found, held = saved(model, tmp_path)
    flops, cache = ran(model)
    not_trained = sum(buffer.numel() for name, buffer in model.named_buffers() if name.endswith("correction_bias"))
    assert held.numbers == sum(one.numel() for one in model.parameters()) + not_trained
    assert held.products is not None
    assert bool(held.products.experts) == (family in SPARSE)
    # The masked pairs are computed too, and counted.
    pairs = sum(2 * kind.queries * (kind.pair or 0) * TOKENS**2 for kind in found.kv_bytes.values())
    assert flops == 2 * held.products.in_layers * TOKENS + 2 * held.products.head + pairs
    assert found.cache_bytes(TOKENS) == nbytes(cache)


def test_the_bytes_of_the_files(tmp_path: Path) -> None:
    _, held = saved(model_of("qwen3_moe"), tmp_path)
    file = tmp_path / "model.safetensors"
    header = int.from_bytes(file.read_bytes()[:8], "little")
    assert held.nbytes == file.stat().st_size - 8 - header
    assert held.by_type == {"F32": held.nbytes}
    assert held.tensors == len(load_file(file))


def test_a_gguf_file_costs_what_its_directory_does(tmp_path: Path) -> None:
    path = models.write(tmp_path / "model", "qwen3_moe")
    export_checkpoint(path, tmp_path / "m.gguf", outtype="f32", check=False)
    costs = []
    for source in (path, tmp_path / "m.gguf"):
        found, checkpoint = inspection.inspect_opened(source)
        costs.append((found, weights.of(checkpoint, found.rope)))
    (directory, ours), (file, theirs) = costs
    assert ours.products == theirs.products
    assert (ours.numbers, ours.nbytes) == (theirs.numbers, theirs.nbytes)
    full, cache = directory.kv_bytes["full_attention"], file.kv_bytes["full_attention"]
    assert full.flops_at(700) == cache.flops_at(700)
    assert full.bytes_in("f16", 700) == cache.bytes_at(700)


# --- caches and pairs


def test_a_window_ends_the_cache(tmp_path: Path) -> None:
    model = model_of("gemma3_text", sliding_window=32)
    found, _ = saved(model, tmp_path)
    _, cache = ran(model, 100)
    sliding = found.kv_bytes["sliding_attention"]
    # transformers keeps one fewer: the token at hand is the window's last.
    assert found.cache_bytes(100) == nbytes(cache) + sliding.per_token
    assert sliding.tokens_at(100) == 32


def test_layers_that_share_keys_keep_none(tmp_path: Path) -> None:
    config = {**configs.EXPORT_SIZES, "num_hidden_layers": 6, "num_kv_shared_layers": 2, "head_dim": 32}
    more = {
        "laurel_rank": 8,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 64,
        "altup_num_inputs": 2,
    }
    kinds = [*(["sliding_attention"] * 2), "full_attention", *(["sliding_attention"] * 2), "full_attention"]
    made = transformers.Gemma3nTextConfig(**config, **more, layer_types=kinds, activation_sparsity_pattern=[0.0] * 6)
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager").eval()
    found, held = saved(model, tmp_path)
    _, cache = ran(model)
    assert found.cache_bytes(TOKENS) == nbytes(cache)
    assert sum(kind.layers for kind in found.kv_bytes.values()) == 6
    assert held.products is None
    assert "no tensor table" in held.why


@pytest.mark.parametrize(("window", "chunked"), [(None, False), (7, False), (7, True), (30, False), (30, True)])
def test_the_pairs_of_a_mask(window: int | None, chunked: bool) -> None:
    kind = KvCache(3, 6, 8, 8, 2, window, chunked, (16,), 12, 16)
    for length in (1, 6, 7, 8, 20, 21, 30):
        mask = np.tril(np.ones((length, length), dtype=bool))
        if window is not None and chunked:
            at = np.arange(length) // window
            mask &= at[:, None] == at[None, :]
        elif window is not None:
            mask &= ~np.tril(np.ones((length, length), dtype=bool), -window)
        assert kind.pairs_at(length) == mask.sum()
        assert kind.flops_at(length) == 2 * 12 * 16 * mask.sum()


def test_the_types_of_a_cache() -> None:
    kind = KvCache(2, 4, 64, 32, 4, None, False, (128, 64), 8, 96)
    assert kind.bytes_at(10) == 4 * 96 * 4 * 10
    assert kind.bytes_in("f16", 10) == 4 * 96 * 2 * 10
    assert kind.bytes_in("q8_0", 10) == 4 * 96 * 34 // 32 * 10
    assert KvCache(1, 1, 24, 24, 4, rows=(24,)).bytes_in("q8_0", 10) is None


# --- quantised, without weights, not known


def test_the_numbers_of_mxfp4_experts(tmp_path: Path) -> None:
    plain = models.write(tmp_path / "plain", "gpt_oss")
    packed = mxfp4_models.write(tmp_path / "packed")
    (found, ours), (_, checkpoint) = (inspection.inspect_opened(path) for path in (plain, packed))
    wanted, held = weights.of(ours, found.rope), weights.of(checkpoint, found.rope)
    assert (held.numbers, held.products) == (wanted.numbers, wanted.products)
    assert held.by_type["U8"] == wanted.products.experts * 17 // 32 if wanted.products else False
    assert held.nbytes == sum(values.nbytes for _, values in mxfp4_models.read(packed).values())


def test_scales_of_fp8_are_no_parameters(tmp_path: Path) -> None:
    path = models.checkpoint(tmp_path / "m")
    _, plain = weights_at(path)
    tensors = {name: (kind, np.array(values)) for name, (kind, values) in mxfp4_models.read(path).items()}
    name = "model.layers.0.mlp.up_proj.weight"
    shape = tensors[name][1].shape
    models.write_safetensors(
        path / "model.safetensors", {**tensors, f"{name}_scale_inv": ("F32", np.ones((1, 1), np.float32))}
    )
    config = json.loads((path / "config.json").read_text())
    models.save(path / "config.json", {**config, "quantization_config": {"quant_method": "fp8"}})
    _, held = weights_at(path)
    assert prod(shape) > 1
    assert (held.numbers, held.nbytes) == (plain.numbers, (plain.nbytes or 0) + 4)


def test_what_another_program_packed_has_bytes_alone(tmp_path: Path) -> None:
    path = models.checkpoint(tmp_path / "m", quantization_config={"quant_method": "gptq", "bits": 4})
    cost = by_name(costs_at(path, 256))
    assert cost["parameters", "numbers"].value is None
    assert cost["parameters", "numbers"].how == "its quantization_config packs several numbers into one"
    assert cost["weights", "bytes"].value == (path / "model.safetensors").stat().st_size - 8 - header_of(path)
    assert cost["prefill", "FLOPs"].value is None


def header_of(path: Path) -> int:
    return int.from_bytes((path / "model.safetensors").read_bytes()[:8], "little")


def weights_at(path: Path) -> tuple[Inspection, Weights]:
    found, checkpoint = inspection.inspect_opened(path)
    return found, weights.of(checkpoint, found.rope)


def costs_at(path: Path, length: int) -> Cost:
    found, checkpoint = inspection.inspect_opened(path)
    return cost_of(found, checkpoint, length)


def test_a_config_alone_has_the_parameters_of_its_class(tmp_path: Path) -> None:
    for family in ("qwen3_moe", "gpt_oss"):  # whose file has a tensor that another one divides
        model = model_of(family)
        model.save_pretrained(tmp_path / family)
        _, held = weights_at(tmp_path / family)
        (tmp_path / family / "model.safetensors").unlink()
        alone = weights_at(tmp_path / family)[1]
        assert (alone.numbers, alone.products) == (held.numbers, held.products)
        assert "the weights are missing" in alone.sizes_from


def test_what_no_table_says_is_not_known(tmp_path: Path) -> None:
    tmp_path.joinpath("config.json").write_text(json.dumps(configs.config("deepseek_v32", "v5")))
    cost = by_name(costs_at(tmp_path, 256))
    why = "the weights are missing, and ropetool has no tensor table of deepseek_v32"
    assert {key: line.how for key, line in cost.items() if line.value is None} == {
        ("parameters", "numbers"): why, ("active parameters", "numbers"): why, ("weights", "bytes"): why,
        ("prefill", "FLOPs"): why, **{key: line.how for key, line in cost.items() if key[0].startswith("verify")},
    }  # fmt: skip
    assert cost["KV cache in f16", "bytes"].value


@pytest.mark.skipif(not REAL, reason="ROPETOOL_REAL_FILES names no folder of real files")
@pytest.mark.parametrize(
    ("name", "parameters", "active", "cache"),
    [
        # 671B and 37B active of arXiv 2412.19437, which counts neither embedding nor draft layers; 70.272 KB a token of
        # arXiv 2505.09343
        ("deepseek-ai__DeepSeek-V3", 671e9, 37e9, 70272),
        # 20.9B, 3.6B active without the embedding, of arXiv 2508.10925
        ("openai__gpt-oss-20b", 20.9e9, 3.6e9, 49152),
        # 30.5B and 3.3B of its model card, 29.9B without embeddings; Llama's and Mixtral's are 8.03B and 46.7B
        ("Qwen__Qwen3-30B-A3B-Instruct-2507", 30.5e9, 3.2e9, 98304),
        ("meta-llama__Llama-3.1-8B-Instruct", 8.03e9, 7.5e9, 131072), ("mistralai__Mixtral-8x7B-v0.1", 46.7e9, 12.8e9, 131072),
        # 109B of its card with the image part, of which there are 0.9B; 17B active. The head stands for itself, which nothing says
        ("meta-llama__Llama-4-Scout-17B-16E", 107.77e9, 17.17e9, 196608),
    ],
)  # fmt: skip
def test_published_figures(name: str, parameters: float, active: float, cache: int, tmp_path: Path) -> None:
    config = (Path(str(REAL)) / "configs" / f"{name}.json").read_text()
    (tmp_path / "config.json").write_text(config)
    found, held = weights_at(tmp_path)
    assert held.numbers == pytest.approx(parameters, rel=2e-3)
    assert held.products is not None
    # Publishers count the embedding or leave it out, and round.
    less, more = held.products.active - held.products.looked_up, held.products.active
    assert less * 0.98 <= active <= more * 1.02
    assert sum(kind.per_token for kind in found.kv_bytes.values()) == cache


@pytest.mark.skipif(not REAL, reason="ROPETOOL_REAL_FILES names no folder of real files")
def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    config = (Path(str(REAL)) / "configs" / "deepseek-ai__DeepSeek-V3.json").read_text()
    (tmp_path / "config.json").write_text(config)
    shown = Path(__file__).parents[2].joinpath("docs/measurements.md").read_text(encoding="utf-8")
    assert f"```text\n{terminal_text(cost_parts(costs_at(tmp_path, 163840)))}```" in shown


# --- verify


@pytest.fixture
def small_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_suites(monkeypatch)


class Stop(Exception):
    """Ends a verification that has told how much it will compute."""


def test_the_tokens_of_verify_are_those_that_it_computes(tmp_path: Path, small_suites: None) -> None:
    ropetool.apply(ropetool.plan(DEMO, "yarn", factor=2), DEMO, tmp_path / "X")
    totals = []

    def told(stage: str, done: int, total: int) -> None:
        if total:
            totals.append(total)
            raise Stop

    with pytest.raises(Stop):
        verify_checkpoint(tmp_path / "X", suite="quick", progress=told)
    for source in (DEMO, tmp_path / "X"):
        assert by_name(costs_at(source, 512))["verify --suite quick", "tokens"].value == totals[0]
    assert set(suites.SUITES) >= {"quick", "full"}


def test_the_lines_are_what_they_say(small_suites: None) -> None:
    cost = by_name(costs_at(DEMO, 1024))
    assert cost["parameters", "numbers"].value == sum(
        one.numel() for one in load_file(DEMO / "model.safetensors").values()
    )
    whole = 0
    for name in ("prefill, matrices", "prefill, head", "prefill, full attention"):
        line = cost[name, "FLOPs"]
        product = [int(word) for word in line.how.partition(" pairs")[0].split() if word.isdigit()]
        product = [number for number in product if name != "prefill, full attention" or number != 4]  # "in 4 layers"
        assert prod(product) == line.value
        whole += line.value
    assert cost["prefill in all", "FLOPs"].value == whole
    verify = cost["verify --suite quick", "tokens"]
    rows = [part.split(" x ") for part in verify.how.partition(": ")[2].split(" + ")]
    assert sum(int(count) * int(length) for count, length in rows) == verify.value


# --- the command


def test_the_command(small_suites: None) -> None:
    done = run("inspect", DEMO, "--target-length", "512", "--cost")
    assert (done.code, done.err) == (0, "")
    text = done.out.partition("\ncost of one sequence of 512 tokens\n")[2]
    assert "  parameters" in text
    assert "verify --suite full" in text
    found = run("inspect", DEMO, "--target-length", "512", "--cost", "--json").json["cost"]
    assert found["length"] == 512
    assert all(set(line) == {"name", "value", "unit", "how"} for line in found["lines"])
    assert "cost" not in run("inspect", DEMO, "--json").json


def test_a_model_without_a_known_context_needs_a_length(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nothing-known"}))
    done = run("inspect", tmp_path, "--cost")
    assert done.code == 1
    assert done.err.splitlines() == [
        "Error: --cost: the context length cannot be decoded, so the cost needs a length", "Try: --target-length N",
    ]  # fmt: skip
