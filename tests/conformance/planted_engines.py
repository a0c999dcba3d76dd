"""Engines for the conformance kit: transformers with the bug of a public thread, and other honest ways to compute the same.

Nothing here uses the mistakes of the kit. A named bug therefore shows more than that the same code ran twice.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
from transformers import StaticCache

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "conformance_kit" / "shipped" / "drivers")]
answering = importlib.import_module("answering")
DRIVER = importlib.import_module("run_transformers")

Job = dict[str, Any]
Answers = list[dict[str, Any]]
Change = Callable[[Any, pytest.MonkeyPatch, Job], None]  # of a loaded model
Engine = Callable[[Job, pytest.MonkeyPatch], Answers]


def modeling(model: Any) -> Any:
    return sys.modules[type(model).__module__]


def driver(change: Change | None = None, dtype: str = "float32", attention: str = "eager") -> Engine:
    """Return the transformers driver of the kit as an engine, with a change of each loaded model."""

    def engine(job: Job, patch: pytest.MonkeyPatch) -> Answers:
        load = DRIVER._load

        def changed(path: str, torch_dtype: Any, attn: str) -> Any:
            model = load(path, torch_dtype, attn)
            if change:
                change(model, patch, job)
            return model

        patch.setattr(DRIVER, "_load", changed)
        given: Answers = DRIVER.answer(job, SimpleNamespace(dtype=dtype, attention=attention))
        return given

    return engine


# --- rotations


def neighbouring(q: Any, k: Any, cos: Any, sin: Any, *_: Any, unsqueeze_dim: int = 1, **__: Any) -> tuple[Any, Any]:
    """Rotate the channels (2i, 2i + 1)."""
    pairs = cos.shape[-1] // 2
    cos, sin = (table[..., :pairs].unsqueeze(unsqueeze_dim) for table in (cos, sin))

    def rotated(x: Any) -> Any:
        even, odd = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
        both = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)
        return torch.cat((both, x[..., 2 * pairs :]), -1)

    return rotated(q), rotated(k)


def halves(q: Any, k: Any, cos: Any, sin: Any, *_: Any, unsqueeze_dim: int = 1, **__: Any) -> tuple[Any, Any]:
    """Rotate the channels (i, i + half)."""
    pairs = cos.shape[-1] // 2
    cos, sin = (table[..., :pairs].unsqueeze(unsqueeze_dim) for table in (cos, sin))

    def rotated(x: Any) -> Any:
        one, other = x[..., :pairs], x[..., pairs : 2 * pairs]
        return torch.cat((one * cos - other * sin, other * cos + one * sin, x[..., 2 * pairs :]), -1)

    return rotated(q), rotated(k)


def as_complex(q: Any, k: Any, cos: Any, sin: Any, **_: Any) -> tuple[Any, Any]:
    """Rotate the channels (2i, 2i + 1) as complex numbers."""
    pairs = cos.shape[-1] // 2
    turns = torch.complex(cos[..., :pairs].float(), sin[..., :pairs].float()).unsqueeze(1)
    return tuple(  # type: ignore[return-value]
        torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * turns).flatten(-2).to(x.dtype)
        for x in (q, k)
    )


def next_query(theta: float, channels: int) -> Change:
    """Rotate queries by the table of the next position."""

    def change(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
        rotate = modeling(model).apply_rotary_pos_emb

        def wrong(q: Any, k: Any, cos: Any, sin: Any, *more: Any) -> tuple[Any, Any]:
            further = angles(1, cos.shape[1], theta, channels).repeat(1, 2)[None]
            return rotate(q, k, further.cos().float(), further.sin().float(), *more)[0], rotate(q, k, cos, sin, *more)[
                1
            ]

        patch.setattr(modeling(model), "apply_rotary_pos_emb", wrong)

    return change


def angles(first: int, count: int, theta: float, channels: int) -> Any:
    return torch.outer(torch.arange(first, first + count, dtype=torch.float64), plain(theta, channels))


def last_in_halves(x: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    """Rotate the last channels of DeepSeek V4 in halves."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    start = x.shape[-1] - 2 * cos.shape[-1]
    one, other = x[..., start:].chunk(2, -1)
    return torch.cat((x[..., :start], one * cos - other * sin, other * cos + one * sin), -1)


def halves_of_complex(xq: Any, xk: Any, freqs_cis: Any) -> tuple[Any, Any]:
    """Rotate in halves by the complex table of DeepSeek V2."""
    table = torch.cat((freqs_cis, freqs_cis), -1)
    return halves(xq, xk, table.real, table.imag)


def alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rotation of one argument from a rotation of two."""
    return lambda x, cos, sin, unsqueeze_dim=1: function(x, x, cos, sin, unsqueeze_dim=unsqueeze_dim)[0]


def partial(theta: float, width: int, channels: int) -> Change:
    """Rotate only the first channels of heads of a width, in halves, by a table of their number."""

    def change(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
        rotate = modeling(model).apply_rotary_pos_emb

        def wrong(x: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
            if x.shape[-1] == width:
                own = angles(0, cos.shape[1], theta, channels).repeat(1, 2)[None]
                return alone(halves)(x, own.cos().float(), own.sin().float(), unsqueeze_dim)
            return rotate(x, cos, sin, unsqueeze_dim)

        patch.setattr(modeling(model), "apply_rotary_pos_emb", wrong)

    return change


def rotating(function: Callable[..., Any], name: str = "apply_rotary_pos_emb") -> Change:
    return lambda model, patch, job: patch.setattr(modeling(model), name, function)


def keys_not_written_back(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
    rotate = modeling(model).apply_rotary_pos_emb
    patch.setattr(modeling(model), "apply_rotary_pos_emb", lambda q, k, *more: (rotate(q, k, *more)[0], k))


# --- weights


def interleave(weight: Any, heads: int) -> Any:
    """Return rows in the order of GGUF files: channels i and i + half of a head become neighbours."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def part(weight: Any, heads: int) -> Any:
    """Return rows in the order of Hugging Face checkpoints, from that of GGUF files."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def reorder(model: Any, order: Callable[[Any, int], Any]) -> None:
    counts = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    for layer in model.model.layers:
        for name, heads in counts.items():
            weight = getattr(layer.self_attn, name).weight
            weight.data = order(weight.data, heads).contiguous()


def read_as_gguf(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
    reorder(model, part)


def interleaved_by(function: Callable[..., Any]) -> Change:
    """Return an honest change: rows in the order of GGUF files, and a rotation of neighbours."""

    def change(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
        reorder(model, interleave)
        patch.setattr(modeling(model), "apply_rotary_pos_emb", function)

    return change


GGUF_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
GGUF_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def gguf_file(job: Job) -> Any:
    path = Path(job["path"])
    return gguf.GGUFReader(path.parents[1] / "gguf" / f"{path.name}.gguf")


def from_gguf(model: Any, job: Job) -> None:
    """Take all weights of a Llama from the kit's GGUF file, as they are there."""
    state = model.state_dict()
    for tensor in gguf_file(job).tensors:
        values = torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        kind, number, rest = (*tensor.name.removesuffix(".weight").split("."), "", "")[:3]
        name = f"model.layers.{number}.{GGUF_NAMES[rest]}" if kind == "blk" else GGUF_OUTER[kind]
        state[f"{name}.weight"].copy_(values.reshape(state[f"{name}.weight"].shape))


def gguf_engine(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
    """Compute as llama.cpp does: the file's rows, and a rotation of neighbours."""
    from_gguf(model, job)
    patch.setattr(modeling(model), "apply_rotary_pos_emb", neighbouring)


def repacked(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
    """The same from a file whose converter left the rows of queries and keys as they were."""
    gguf_engine(model, patch, job)
    reorder(model, part)


# --- tables


def plain(theta: float, channels: int) -> Any:
    return theta ** -(torch.arange(0, channels, 2, dtype=torch.float64) / channels)


def yarn(theta: float, channels: int, factor: float = 4.0, trained: int = 512) -> Any:
    """Return the frequencies of YaRN with betas 32 and 1."""
    own = plain(theta, channels)
    edges = [channels * math.log(trained / (beta * 2 * math.pi)) / (2 * math.log(theta)) for beta in (32, 1)]
    low, high = max(math.floor(edges[0]), 0), min(math.ceil(edges[1]), channels - 1)
    share = ((torch.arange(channels // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return own * (1 - share) + own / factor * share


def unscaled(theta: float, channels: int) -> Change:
    def change(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
        rotary = model.model.rotary_emb
        rotary.inv_freq = plain(theta, channels).float()
        rotary.attention_scaling = 1.0

    return change


def groups(tables: Mapping[str, Any]) -> Change:
    """Return a change of the tables of layer types in every rotary module. tables: by the prefix of the buffer."""

    def change(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
        for module in model.modules():
            for prefix, table in tables.items():
                if hasattr(module, f"{prefix}_inv_freq"):
                    setattr(module, f"{prefix}_inv_freq", table.float())

    return change


def rows_of_table(count: int, row: Callable[[Any, int], Any]) -> Change:
    """Return a change: cos and sin come from a table of so many rows. row: of a position."""

    def change(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
        rotary = model.model.rotary_emb
        angles = torch.outer(torch.arange(count, dtype=torch.float64), rotary.inv_freq.double()).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()

        def forward(x: Any, position_ids: Any) -> tuple[Any, Any]:
            rows = row(position_ids, count)
            return cos[rows].to(x.dtype), sin[rows].to(x.dtype)

        rotary.forward = forward

    return change


def windows_by(theta: float, channels: int) -> Change:
    """Return a change: windowed layers rotate by a table without scaling."""

    def change(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
        for layer, layer_type in zip(model.model.layers, model.config.layer_types, strict=True):
            if layer_type == "sliding_attention":
                layer.self_attn.forward = unscaled_attention(layer.self_attn.forward)

    def unscaled_attention(forward: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(hidden_states: Any, **named: Any) -> Any:
            own = angles(0, hidden_states.shape[1], theta, channels)[None]
            tables = own.cos().float(), own.sin().float()
            return forward(hidden_states=hidden_states, **{**named, "position_embeddings": tables})

        return wrong

    return change


def blocks_not_rotated(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
    """Leave the compressed keys of DeepSeek V4 as they are. Its indexer keeps all of them, whatever it computes."""

    def forward(x: Any, position_ids: Any, layer_type: str) -> tuple[Any, Any]:
        shape = (*position_ids.shape, model.config.qk_rope_head_dim // 2)
        return torch.ones(shape), torch.zeros(shape)

    for layer in model.model.layers:
        if layer.self_attn.compressor is not None:
            layer.self_attn.compressor.rotary_emb.forward = forward


# --- layers and positions


def every_layer_rotates(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
    for layer in model.model.layers:
        layer.self_attn.use_rope = 1


def score_not_multiplied(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling = layer.self_attn.qk_head_dim**-0.5


def score_and_pairs(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
    score_not_multiplied(model, patch, job)
    patch.setattr(modeling(model), "apply_rotary_pos_emb_interleave", halves)


def later_turns(wrong: Callable[[Any], Any]) -> Change:
    """Return a change of the positions of all tokens that follow a kept cache. wrong: of the right positions."""

    def change(model: Any, patch: pytest.MonkeyPatch, job: Job) -> None:
        forward = model.forward

        def changed(ids: Any, position_ids: Any, past_key_values: Any = None, **named: Any) -> Any:
            places = wrong(position_ids) if past_key_values is not None else position_ids
            return forward(ids, position_ids=places, past_key_values=past_key_values, **named)

        model.forward = changed

    return change


# --- other ways to compute the same


def experts(implementation: str) -> Change:
    return lambda model, patch, job: model.set_experts_implementation(implementation)


def in_pieces(size: int, attention: str = "eager", static: bool = False) -> Engine:
    """Return an engine that computes each prompt in pieces on a cache."""

    def engine(job: Job, patch: pytest.MonkeyPatch) -> Answers:
        model = DRIVER._load(job["path"], torch.float32, attention)
        given = []
        for ids in job["prompts"]:
            cache = StaticCache(config=model.config, max_cache_len=job["context"]) if static else None
            parts = []
            for start in range(0, len(ids), size):
                piece = torch.tensor([ids[start : start + size]])
                places = torch.arange(start, start + piece.shape[1])[None]
                with torch.no_grad():
                    out = model(piece, position_ids=places, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                parts.append(torch.log_softmax(out.logits[0].double(), -1))
            given.append(answering.answered(answering.Row(0, 0, 0, ids), torch.cat(parts).tolist()))
        return given

    return engine


def in_one_batch(left: bool, attention: str = "eager") -> Engine:
    """Return an engine that pads all prompts to one length, on the left or on the right."""

    def engine(job: Job, patch: pytest.MonkeyPatch) -> Answers:
        model = DRIVER._load(job["path"], torch.float32, attention)
        width = max(map(len, job["prompts"]))
        counts = [width - len(ids) for ids in job["prompts"]]
        padded, masks = [], []
        for ids, count in zip(job["prompts"], counts, strict=True):
            padding, real = [0] * count, [1] * len(ids)
            padded.append(padding + ids if left else ids + padding)
            masks.append(padding + real if left else real + padding)
        mask = torch.tensor(masks)
        with torch.no_grad():
            places = (mask.cumsum(1) - 1).clamp(min=0)
            logits = model(torch.tensor(padded), attention_mask=mask, position_ids=places, use_cache=False).logits
        given = []
        for ids, count, row in zip(job["prompts"], counts, logits.double(), strict=True):
            own = row[count:] if left else row[: len(ids)]
            given.append(answering.answered(answering.Row(0, 0, 0, ids), torch.log_softmax(own, -1).tolist()))
        return given

    return engine
