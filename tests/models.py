"""Tiny Hugging Face checkpoints: any files, random weights without torch, and models of every exported family.

Weights and configs of families are random and seeded; `copied` and `with_tensors` change a checkpoint.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import tokenizer_making
from configs import EXPORTED, LENGTH, ROWS, WRAPPERS, as_published, wrapped

from ropetool.checkpoint.opening import Checkpoint
from ropetool.comparison import exported
from ropetool.gguf_export import Exported, export_checkpoint
from ropetool.verification.readback.weights import compare_weights

# --- files

DTYPES = {
    "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I8": "i1", "U8": "u1", "F8_E4M3": "u1", "I32": "<i4",
    "I64": "<i8",
}  # fmt: skip
Tensors = dict[str, tuple[str, np.ndarray]]  # with the types of safetensors, BF16 and F8_E4M3 as their bits


def save(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")


def write_config(directory: Path, config: Mapping[str, Any] | str) -> Path:
    """Write a directory that holds config.json alone."""
    directory.mkdir(parents=True)
    text = config if isinstance(config, str) else json.dumps(config, indent=2) + "\n"
    (directory / "config.json").write_bytes(text.encode())
    return directory


def config_of(directory: Path) -> dict[str, Any]:
    """Return the parsed config.json of a checkpoint."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


SILENT = object()  # the value of a key that a config is to lack


def set_config(directory: Path, /, **keys: Any) -> Path:
    """Set these keys of a checkpoint's config."""
    path = directory / "config.json"
    config = {**config_of(directory), **keys}
    path.unlink()  # it may be a link to another checkpoint's
    save(path, {key: value for key, value in config.items() if value is not SILENT})
    return directory


def copied(source: Path, target: Path, /, **keys: Any) -> Path:
    """Copy a checkpoint, with these keys of its config set."""
    shutil.copytree(source, target)
    return set_config(target, **keys) if keys else target


def set_tensors(directory: Path, change: Callable[[dict[str, Any]], Any], name: str = "model.safetensors") -> Path:
    """Write a file of weights again, with the tensors that `change` leaves in the mapping, or a mapping that it returns."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / name)
    result = change(tensors)
    changed = result if isinstance(result, dict) else tensors
    (directory / name).unlink()
    save_file({key: one.contiguous() for key, one in changed.items()}, directory / name, {"format": "pt"})
    return directory


def safetensors(tensors: Mapping[str, bytes | tuple[str, np.ndarray]], **metadata: str) -> bytes:
    """Return a file of tensors, assembled by hand after the format's description; bytes are a U8 tensor."""
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, tensor in tensors.items():
        dtype, values = ("U8", np.frombuffer(tensor, np.uint8)) if isinstance(tensor, bytes) else tensor
        raw = values.tobytes()
        offsets = [len(data), len(data) + len(raw)]
        entries[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    head = json.dumps(entries).encode()
    return struct.pack("<Q", len(head)) + head + data


def write_safetensors(path: Path, tensors: Tensors) -> None:
    path.write_bytes(safetensors(tensors))


def write_shards(directory: Path, tensors: Tensors, places: Mapping[str, str]) -> None:
    """Write tensors into the files of their places, with an index."""
    for file in sorted(set(places.values())):
        write_safetensors(directory / file, {name: tensors[name] for name in tensors if places[name] == file})
    save(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": dict(places)})


def read_safetensors(path: Path) -> Tensors:
    """Return the tensors of a file with their types."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8:start])
    entries.pop("__metadata__", None)
    tensors = {}
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        values = np.frombuffer(raw[start + begin : start + end], DTYPES[entry["dtype"]])
        tensors[name] = (entry["dtype"], values.reshape(entry["shape"]))
    return tensors


TOKENIZER_CONFIG = {"model_max_length": 512, "tokenizer_class": "PreTrainedTokenizerFast"}


def write_model(directory: Path, config: Mapping[str, Any] | str) -> Path:
    """Write a checkpoint with two shards, a tokenizer, a README and another folder."""
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


# --- without torch

SIZES: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": ROWS, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 257,
}  # fmt: skip
BY_HAND: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "head_dim": 8, **SIZES},
    "mistral": {"model_type": "mistral", "sliding_window": None, **SIZES},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2, **SIZES},
    "qwen2": {"model_type": "qwen2", **SIZES},
    "qwen3": {"model_type": "qwen3", "head_dim": 8, **SIZES},
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a checkpoint, as transformers saves them."""
    hidden, wide, rows = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    family = config["model_type"]
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (rows, hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = (rows, hidden)
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        tensors |= {p + "input_layernorm.weight": (hidden,), p + "post_attention_layernorm.weight": (hidden,)}
        for name, size in (("q", queries), ("k", keys), ("v", keys)):
            tensors[f"{p}self_attn.{name}_proj.weight"] = (size, hidden)
            if family == "qwen2" or config.get("attention_bias"):
                tensors[f"{p}self_attn.{name}_proj.bias"] = (size,)
        tensors[p + "self_attn.o_proj.weight"] = (hidden, queries)
        if config.get("attention_bias"):
            tensors[p + "self_attn.o_proj.bias"] = (hidden,)
        if family == "qwen3":
            tensors |= {p + "self_attn.q_norm.weight": (head,), p + "self_attn.k_norm.weight": (head,)}
        if family == "mixtral":
            tensors[p + "block_sparse_moe.gate.weight"] = (config["num_local_experts"], hidden)
            for expert in range(config["num_local_experts"]):
                e = f"{p}block_sparse_moe.experts.{expert}."
                tensors |= {
                    e + "w1.weight": (wide, hidden),
                    e + "w2.weight": (hidden, wide),
                    e + "w3.weight": (wide, hidden),
                }
            continue
        for name, shape in (("gate", (wide, hidden)), ("up", (wide, hidden)), ("down", (hidden, wide))):
            tensors[f"{p}mlp.{name}_proj.weight"] = shape
            if config.get("mlp_bias"):
                tensors[f"{p}mlp.{name}_proj.bias"] = shape[:1]
    return tensors


def weights(config: dict[str, Any], dtype: str = "F32", seed: int = 0) -> dict[str, tuple[str, np.ndarray]]:
    """Return random tensors with their types, BF16 as the bits of float32 numbers cut off."""
    rng = np.random.default_rng(seed)
    return {name: (dtype, stored(rng.standard_normal(shape), dtype)) for name, shape in shapes(config).items()}


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    return values.astype(DTYPES[dtype])


def checkpoint(path: Path, family: str = "llama", dtype: str = "F32", **changes: Any) -> Path:
    """Write a checkpoint; the changes go into its config, None removes a key."""
    config = {**BY_HAND[family], **changes}
    config = {key: value for key, value in config.items() if value is not None or key == "sliding_window"}
    path.mkdir(parents=True)
    save(path / "config.json", config)
    write_safetensors(path / "model.safetensors", weights(config, dtype))
    tokenizer_making.write(path)
    return path


# --- by transformers


def random_model(
    path: Path, config: Mapping[str, Any], seed: int, draw: Callable[[str, Any], Any], dtype: Any = None
) -> Any:
    """Write config.json as given and the weights of its class; return the model.

    draw: changes the weights of one parameter, by its name. dtype: of all weights, None for that of the class.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    write_config(path, config)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path)).to(dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            draw(name, weight)
    model.save_pretrained(path / "saved")
    (path / "saved" / "model.safetensors").rename(path / "model.safetensors")
    shutil.rmtree(path / "saved")
    return model


# --- of every exported family, by transformers: float32 on both sides

SHORT = 720  # tokens beyond the trained length, at a tenth of the cost
Drawn = Callable[[str, Any, str, Any], Any]
SCALED = ("mistral4",)  # whose class computes no table without a scaling
MULTIPLIED = ("gemma", "gemma2", "gemma3_text", "gemma3")  # embeddings, by the root of the hidden size
ADDED_ONE = (*MULTIPLIED, "nemotron", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
# llama.cpp takes gelu from a table of float16 numbers: with full weights that alone would be 1e-3 of the largest logit.
TABLED = ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4_text", "starcoder2", "gpt_neox", "phi", "falcon")
TOKENS = [256, *(int(token) for token in np.random.default_rng(3).integers(0, 256, LENGTH - 1))]
PLACES = (5, 300, 511, 512, 700, 1023, 1500, 2046, 2047)


def write(
    path: Path,
    family: str,
    changes: Mapping[str, Any] | None = None,
    seed: int = 7,
    wrapper: str | None = None,
    drawn: Drawn | None = None,
) -> Path:
    """Write a random checkpoint by which every logit depends on every position, with a tokenizer.

    changes: to its config, which is silent where they are SILENT. wrapper: the type of the config around it; None: that
    of the families which have no class alone. drawn: returns the numbers of a tensor; None: those of `_drawn`.
    """
    if changes or drawn:
        return _write(path, family, changes or {}, seed, wrapper, drawn or _drawn)
    return Path(shutil.copytree(_unchanged(family, seed, wrapper), path, dirs_exist_ok=True))


@cache
def _unchanged(family: str, seed: int, wrapper: str | None) -> Path:
    """Write the checkpoint of a family once: its class takes longer than a copy."""
    return _write(Path(_folder().name, f"{family} {seed} {wrapper}"), family, {}, seed, wrapper, _drawn)


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


def _write(path: Path, family: str, changes: Mapping[str, Any], seed: int, wrapper: str | None, drawn: Drawn) -> Path:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig

    config = {"model_type": family, **EXPORTED[family], **changes}
    config = {key: value for key, value in config.items() if value is not SILENT}
    wrapper = WRAPPERS.get(family, "") if wrapper is None else wrapper
    if wrapper:
        config = wrapped(config, wrapper)
    settings = AutoConfig.for_model(**json.loads(json.dumps(config)))
    model = auto_class(settings).from_config(settings, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            tied = config["tie_word_embeddings"] and name.startswith("lm_head")
            if weight.is_floating_point() and "rotary" not in name and not tied:
                weight.copy_(drawn(name, weight, family, generator))
    model.save_pretrained(path)
    if wrapper:
        config["architectures"] = [type(model).__name__]
        stored = load_file(path / "model.safetensors")
        save_file(as_published(stored, wrapper), path / "model.safetensors", metadata={"format": "pt"})
    save(path / "config.json", config)
    tokenizer_making.write(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    return path


def _drawn(name: str, weight: Any, family: str, generator: Any) -> Any:
    import torch

    drawn = torch.randn(weight.shape, generator=generator)
    if name.endswith("layer_scalar"):
        return 1 + 0.2 * drawn
    if "norm" in name and name.endswith("weight"):
        return 0.2 * drawn if family in ADDED_ONE else 1 + 0.2 * drawn
    if weight.ndim == 1:
        return 0.3 * drawn
    if "embed" in name:  # attention alone would make much of the last bits of float32 angles
        return (0.5 if family in (*MULTIPLIED, "gemma4_text") else 2.0) * drawn
    if family in TABLED and any(part in name for part in ("mlp", "per_layer", "experts")):
        return 0.02 * drawn
    return max(0.12, 1.4 / math.sqrt(weight.shape[-1])) * drawn


def auto_class(config: Any) -> Any:
    """Return the auto class that has a model with a head for a config."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    images = type(config) in AutoModelForImageTextToText._model_mapping
    return AutoModelForImageTextToText if images else AutoModelForCausalLM


def torch_logits(path: Path, length: int = LENGTH) -> np.ndarray:
    import torch
    from transformers import AutoConfig

    auto = auto_class(AutoConfig.from_pretrained(path))
    model = auto.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS[:length]]), use_cache=False).logits[0]
    rows: np.ndarray = logits[[place for place in PLACES if place < length]].double().numpy()
    return rows


def llama_logits(path: Path, length: int = LENGTH) -> np.ndarray:
    from ropetool.verification.runners.llama_runner import LlamaRunner

    with closing(LlamaRunner(path)) as runner:
        rows = [piece.copy() for _, piece in runner.logits(TOKENS[:length])]
    return np.concatenate(rows)[[place for place in PLACES if place < length]].astype(np.float64)


def apart(expected: np.ndarray, logits: np.ndarray) -> float:
    """Return the largest difference, as a share of the largest logit."""
    return float(np.abs(expected - logits).max() / np.abs(expected).max())


# --- exports


def export(source: Path, output: Path | None = None, **options: Any) -> Exported:
    """Export without the comparison that ends an export: random numbers are no model, and tests look for themselves."""
    return export_checkpoint(source, output, check=False, **options)


def apart_by_themselves(target: Checkpoint, source: Checkpoint) -> tuple[str, ...]:
    """Return which tensors of a file are not a directory's where nobody knows what an export makes of them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exported, "as_exported", lambda tensors, *_: tensors)
        return compare_weights(target, source, None).differences
