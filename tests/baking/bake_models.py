"""Tiny random checkpoints of every family that can be baked, and what the real transformers computes from them.

float64 throughout: the casts to float32 inside transformers are replaced, so that a true identity shows about 1e-13.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from configs import LENGTH, SMALL
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from ropetool.checkpoint.hf import HfCheckpoint, edits_of_file
from ropetool.files.hf import apply_edits, read_header
from ropetool.weights import bakes
from ropetool.weights.bakes import Bake
from ropetool.weights.hf_bakeable import HfBakeable
from ropetool.weights.weight_files import weight_files
from ropetool.weights.writing import Baked, write_weights

BEYOND = 640  # tokens: LENGTH costs ten times as much, and scripts/bake_grid/grid.py runs every family there
VOCABULARY = SMALL["vocab_size"]
EAGER = {"gemma2", "gpt_oss"}  # no sdpa for soft caps and sinks


def v4(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config in the v4 style: rope_theta beside rope_scaling."""
    data = {key: value for key, value in config.items() if key != "rope_parameters"}
    keys = dict(config["rope_parameters"])
    local = {}
    if "full_attention" in keys:
        local = {"rope_local_base_freq": keys["sliding_attention"]["rope_theta"]}
        keys = dict(keys["full_attention"])
    return {**data, "rope_theta": keys.pop("rope_theta"), **local, "rope_scaling": keys}


def write(directory: Path, config: Mapping[str, Any], seed: int = 0, shards: int = 1) -> Path:
    """Write a random checkpoint in float64, with the config as given."""
    made = AutoConfig.for_model(**json.loads(json.dumps(config)))
    with default_dtype(torch.float64):
        model = _class_of(made)._from_config(made, attn_implementation="eager")
    _randomize(model.double(), seed)
    size = sum(p.numel() for p in model.parameters()) * 8
    model.save_pretrained(directory, max_shard_size=f"{math.ceil(size / shards / 1000) + 100}KB")
    stated = {"architectures": made.architectures or [type(model).__name__], "dtype": "float64", **config}
    (directory / "config.json").write_text(json.dumps(stated, indent=2) + "\n")
    return directory


def _class_of(config: Any) -> Any:
    """Return the model class; transformers maps mistral4 to its multimodal one alone."""
    if config.model_type == "mistral4":
        return importlib.import_module("transformers.models.mistral4.modeling_mistral4").Mistral4ForCausalLM
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def _randomize(model: Any, seed: int) -> None:
    """Draw weights by which every logit depends on every position."""
    generator = torch.Generator().manual_seed(seed)
    added_one = "gemma" in type(model).__name__.lower()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(0.3 * drawn if added_one else 1 + 0.3 * drawn)
            elif name.endswith("bias") or "sinks" in name:
                parameter.copy_(0.5 * drawn)
            elif "embed" in name:
                parameter.copy_(drawn)
            else:
                parameter.copy_(drawn * max(0.12, 1.6 / math.sqrt(parameter.shape[-1])))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def everything_in_float64() -> Iterator[None]:
    """Let what transformers casts to float32 become float64: norms, rotary angles, softmax."""
    float32, short, method = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = lambda self, *_, **__: self.double()  # type: ignore[assignment, method-assign]
    try:
        with default_dtype(torch.float64):
            yield
    finally:
        torch.float32, torch.float = float32, short
        torch.Tensor.float = method  # type: ignore[method-assign]


def tokens(length: int = LENGTH, seed: int = 5) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


def load(directory: Path, dtype: torch.dtype = torch.float64, attention: str = "sdpa") -> Any:
    config = AutoConfig.from_pretrained(directory)
    attention = "eager" if config.model_type in EAGER else attention
    return (
        _class_of(config)
        .from_pretrained(directory, dtype=dtype, attn_implementation=attention, experts_implementation="eager")
        .eval()
    )


def logits(
    directory: Path, length: int = BEYOND, *, exact: bool = True, change: Callable[[Any], None] | None = None
) -> np.ndarray[Any, Any]:
    """Return the logits of fixed tokens in float64, or in float32 as transformers has it; `change` edits the model."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    everywhere = everything_in_float64() if exact else contextlib.nullcontext()  # also tables, computed with the model
    with torch.no_grad(), everywhere:
        model = load(directory, torch.float64 if exact else torch.float32)
        if change is not None:
            change(model)
        found: np.ndarray[Any, Any] = model(tokens(length), use_cache=False).logits[0].double().numpy()
    return found


@contextlib.contextmanager
def rotated_interleaved(model_type: str) -> Iterator[None]:
    """Let a half-layout family of transformers rotate neighbouring channels: an oracle for the other order."""
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    before = module.apply_rotary_pos_emb

    def neighbours(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: Any, **__: Any) -> Any:
        half = cos.shape[-1] // 2
        cos, sin = (t[..., :half].repeat_interleave(2, -1).unsqueeze(1) for t in (cos, sin))

        def turned(x: torch.Tensor) -> torch.Tensor:
            return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)

        return q * cos + turned(q) * sin, k * cos + turned(k) * sin

    module.apply_rotary_pos_emb = neighbours
    try:
        yield
    finally:
        module.apply_rotary_pos_emb = before


def opened(directory: Path) -> HfBakeable:
    return HfBakeable.of(HfCheckpoint.open(directory))


def reordered(model: HfBakeable, to: str) -> Bake:
    """Return the bake to another order of channels, also where no key says which it is: for runtimes that rotate in it."""
    if model.targets.family.interleave_key:
        return bakes.layout(model, to)
    return Bake(model.placed(bakes.reordered(model.targets, to)))


def carry_out(bake: Bake, source: Path, target: Path, **options: Any) -> Baked:
    """Write the baked checkpoint: the touched shards by ropetool, everything else copied."""
    checkpoint = HfCheckpoint.open(source)
    files = weight_files(checkpoint)
    target.mkdir()
    baked = write_weights(bake.tensors, files, [target / file.path.name for file in files], **options)
    for file in source.iterdir():
        if not (target / file.name).exists():
            shutil.copy(file, target / file.name)
    text = apply_edits(checkpoint.text, edits_of_file(bake.edits, "config.json"), "config.json")
    (target / "config.json").write_text(text)
    return baked


def stored(directory: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return the type, shape and bytes of every tensor of a checkpoint."""
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        for name, info in read_header(path).tensors.items():
            found[name] = (info.dtype, info.shape, data[info.begin : info.end])
    return found
