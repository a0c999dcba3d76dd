"""Tiny random checkpoints, and what ropetool makes of each: the rows and columns of the grid."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ropetool
from ropetool.errors import RopetoolError
from ropetool.families import records
from ropetool.probing import facts, tiny

TRAINED, FACTOR = 256, 4  # positions, and how many times as many after extending
WINDOW = 48  # tokens that sliding layers see: fewer than the trained length

# What a checkpoint needs beside what every one gets, by the model_type of its text model, and why.
FULL_LAYERS = {"layer_types": ["full_attention"] * 4}
MLA_LAYERS = {"first_k_dense_replace": 4, "kv_lora_rank": 512}
DENSE_LAYERS = {"mlp_layer_types": ["dense"] * 4}
KEYS: Mapping[str, Mapping[str, Any]] = {
    # The backend for a CPU leaves the softcapping of attention out,
    "gemma2": {"attn_logit_softcapping": None},
    # wants bfloat16 for layers that keep a state,
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "granitemoehybrid"), FULL_LAYERS),
    # and for DeepSeek's experts; its MLA takes latents of the published size alone.
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), MLA_LAYERS),
    # Experts that are routed by a bias come out otherwise.
    "ernie4_5_moe": {"moe_layer_start_index": 4, **DENSE_LAYERS},
    # It takes only the router's weights of one expert, and chunks of a multiple of its blocks; these are never full. Its
    # temperature is on where the longest request is above 32768 tokens, whatever the config says.
    "llama4_text": {"attention_chunk_size": 2048, "num_experts_per_tok": 1, "attn_temperature_tuning": False},
    # What published configs state, and the engine looks for.
    "glm4_moe": {"head_dim": 128},
    "dots1": {"head_dim": 128},
    "afmoe": {"score_func": "sigmoid"},
    "lfm2": {"conv_dim": 128, "block_dim": 128, "block_ff_dim": 32, "block_auto_adjust_ff_dim": False},
    "minimax_m2": {"rotary_dim": 128, "scoring_func": "sigmoid", "use_routing_bias": True},
    # Sparse activations leave almost nothing of a small feed-forward, and the norms behind it enlarge the rounding.
    "gemma3n_text": {"activation_sparsity_pattern": [0.0] * 11, "rms_norm_eps": 1e-12},
    # Its file does not look at the size of the feed-forward.
    "falcon": {"ffn_hidden_size": 512},
}
# Weights that are zero, by the model_type of the text model: what the engine's class leaves out.
ZERO = {
    # vLLM adds the embeddings of each layer in the class of the wrapper, and runs a text model by itself without.
    "gemma3n_text": r"embed_tokens_per_layer",
}


def make(model_type: str, folder: Path) -> Path:
    """Write a checkpoint with random weights into a new folder."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    outer = model_type if model_type in records.names() else records.text_types().get(model_type, model_type)
    config = tiny_config(outer)
    torch.manual_seed(0)
    kind = getattr(transformers, facts.architecture(outer))
    model = kind._from_config(config).float().eval()
    scatter(model)
    clear(model, ZERO.get(model.config.get_text_config(decoder=True).model_type, "(?!)"))
    model.save_pretrained(folder)
    data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    data.pop("transformers_version", None)
    write(folder, data)
    return folder


# What published configs state and the classes of transformers leave out, without which mlx-lm stops.
PUBLISHED: dict[str, dict[str, Any]] = {
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
}


def state_old_keys(folder: Path) -> None:
    """State the base, the share and the scaling beside rope_parameters too, as published configs do, and extensions then."""
    config = read(folder)
    part = config["text_config"] if "rope_parameters" in config.get("text_config", {}) else config
    keys = part.get("rope_parameters") or {}
    nested = {kind: one for kind, one in keys.items() if isinstance(one, dict)}
    full = nested.get("full_attention", keys)
    part |= {key: full[key] for key in ("rope_theta", "partial_rotary_factor") if key in full and key not in part}
    part["rope_scaling"] = None
    part.setdefault("head_dim", part["hidden_size"] // part["num_attention_heads"])
    part |= PUBLISHED.get(part["model_type"], {})
    if "sliding_attention" in nested:
        part["rope_local_base_freq"] = nested["sliding_attention"]["rope_theta"]
    write(folder, config)


def tiny_config(model_type: str) -> Any:
    """Return a config of the class's own defaults with small sizes and the trained length of the grid."""
    import transformers

    config = transformers.AutoConfig.for_model(model_type)
    keys = tiny.overrides(config)
    path, text = facts.text_config(config)
    inner = keys
    for key in path:
        inner = inner.setdefault(key, {})
    if path:
        inner |= tiny.overrides(text)
    names = dict(getattr(text, "attribute_map", {}))
    inner[names.get("max_position_embeddings", "max_position_embeddings")] = TRAINED
    if getattr(text, "original_max_position_embeddings", None) is not None:
        inner["original_max_position_embeddings"] = TRAINED
    for key, value in text.to_dict().items():
        if re.fullmatch(r"sliding_window|attention_chunk_size", key) and value is not None:
            inner[key] = WINDOW
    if getattr(text, "attention_multiplier", None) is not None:  # 1, which makes attention too sharp
        inner["attention_multiplier"] = 2.0**-3
    keys_of_rope = getattr(text, "rope_parameters", None) or {}
    if keys_of_rope.get("rope_type", "default") != "default":  # extended already
        inner["rope_parameters"] = {"rope_type": "default", "rope_theta": keys_of_rope["rope_theta"]}
        if "llama_4_scaling_beta" in keys_of_rope:  # which counts from that length
            kept = {"llama_4_scaling_beta": keys_of_rope["llama_4_scaling_beta"]}
            inner["rope_parameters"] |= {**kept, "original_max_position_embeddings": TRAINED}
    inner |= KEYS.get(text.model_type, {})
    return transformers.AutoConfig.for_model(model_type, **keys)


def scatter(model: Any) -> None:
    """Give every weight the deviation 1 / sqrt(inputs), and norms and biases a tenth around what they start at.

    Every part of a layer then counts, log probabilities lie apart by about one, and attention is not so sharp that it
    would enlarge the rounding of float32.
    """
    import torch

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if not weight.is_floating_point() or re.search(r"A_log|dt_bias|\.D$|inv_freq|alpha_[pn]$", name):
                continue
            if not isinstance(weight, torch.nn.Parameter) and "bias" not in name:
                continue
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim >= 2:
                weight.copy_(noise / max(weight.shape[-1], 1) ** 0.5)
            else:
                weight.add_(0.1 * noise)
        for module in model.modules():
            if getattr(module, "scaling", None) == 1 and hasattr(module, "q_norm"):
                module.q_norm.weight.mul_(module.head_dim**-0.5)  # for scores that nothing divides


def clear(model: Any, pattern: str) -> None:
    """Make the weights zero in whose names a pattern occurs."""
    for name, weight in model.named_parameters():
        if re.search(pattern, name):
            weight.data.zero_()


def read(folder: Path) -> dict[str, Any]:
    """Return the config of a checkpoint."""
    data: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return data


def write(folder: Path, config: Mapping[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _raised(source: Path, target: Path, engine: str) -> Path:
    """Return a copy that states the longer context and nothing else."""
    shutil.copytree(source, target)
    config = read(target)
    text = next(
        (part for part in (config.get("text_config"), config) if part and "max_position_embeddings" in part), config
    )
    text["max_position_embeddings"] = TRAINED * FACTOR
    write(target, config)
    return target


def _extended(method: str, *, to_engine: bool = False, **options: Any) -> Callable[[Path, Path, str], Path]:
    def made(source: Path, target: Path, engine: str) -> Path:
        asked = (engine,) if to_engine else ()
        plan = ropetool.plan(source, method, factor=FACTOR, for_runtimes=asked, **options)
        return Path(ropetool.apply(plan, source, target).output)

    return made


def _baked(source: Path, target: Path, engine: str) -> Path:
    """Return YaRN with its attention factor in the weights."""
    between = _extended("yarn")(source, target.with_name(f"{target.name}-unbaked"), engine)
    plan = ropetool.bake(between, "attention-factor")
    return Path(ropetool.apply(plan, between, target).output)


# By name, what is made of a checkpoint. Those for the engine ask that it agree with transformers.
CELLS: Mapping[str, Callable[[Path, Path, str], Path]] = {
    "plain": lambda source, target, engine: source,
    "raised": _raised,
    "linear": _extended("linear"),
    "ntk": _extended("ntk"),
    "abf": _extended("abf", params={"rope_theta": 500000.0}),
    "llama3": _extended("llama3"),
    "yarn": _extended("yarn"),
    "yarn factor 1": _extended("yarn", attention_factor=1.0),
    "mixed-ntk": _extended("mixed-ntk"),
    "yarn for the engine": _extended("yarn", to_engine=True),
    "yarn baked": _baked,
}


def cells(source: Path, engine: str, wanted: Mapping[str, Any]) -> Iterator[tuple[str, Path | str]]:
    """Yield each cell of a checkpoint: the folder, or in words why ropetool makes none.

    engine: the name of the runtime. wanted: the names of cells.
    """
    for name in wanted:
        target = source.parent / f"{source.name}-{re.sub(r'[^a-z0-9]+', '-', name)}"
        try:
            yield name, CELLS[name](source, target, engine)
        except RopetoolError as refusal:
            yield name, refusal.message
