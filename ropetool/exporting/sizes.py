"""The shape of a model: its sizes from config.json, and every tensor that they ask for.

Knows transformers' classes and names; what a GGUF file makes of them is for tensors.py and metadata.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ropetool import names
from ropetool.errors import ConfigError, LossyExport, UnsupportedDtype
from ropetool.formats.hf.jsontext import shown
from ropetool.runtimes.llama_cpp_archs import MAX_LAYERS
from ropetool.spec import is_number

# Bounds of our own, several times beyond any model: a hostile count would cost memory before it is found out.
MAX_COUNT, MAX_EXPERTS = 2**20, 2**10
ACTIVATION = "silu"  # the only one that llama.cpp computes for these architectures

# Keys of config.json that only an export reads.
INTERMEDIATE_SIZE = "intermediate_size"
VOCAB_SIZE = "vocab_size"
TIE_WORD_EMBEDDINGS = "tie_word_embeddings"
RMS_NORM_EPS = "rms_norm_eps"
HIDDEN_ACT = "hidden_act"
NUM_LOCAL_EXPERTS = "num_local_experts"
NUM_EXPERTS_PER_TOK = "num_experts_per_tok"
QUANTIZATION_CONFIG = "quantization_config"

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Kind:
    """What the class of a family does, and assumes where the config is silent.

    kv_heads None: as many as heads. biases: the keys that switch on those of the projections of attention and of the
    feed-forward; always_biased: q, k and v have them whatever the config says. experts: how many there are, how many
    serve a token. qk_norm: queries and keys are normalised by head.
    """

    kv_heads: int | None = None
    rms_eps: float = 1e-6
    attention_bias_key: str = ""
    mlp_bias_key: str = ""
    always_biased: bool = False
    experts: tuple[int, int] | None = None
    qk_norm: bool = False


# Source: transformers 5.23.0, models/*/configuration_*.py and modeling_*.py.
KINDS = {
    "llama": Kind(attention_bias_key="attention_bias", mlp_bias_key="mlp_bias"),
    "mistral": Kind(kv_heads=8),
    "mixtral": Kind(kv_heads=8, rms_eps=1e-5, experts=(8, 2)),
    "qwen2": Kind(kv_heads=32, always_biased=True),
    "qwen3": Kind(kv_heads=32, attention_bias_key="attention_bias", qk_norm=True),
}


@dataclass(frozen=True)
class Sizes:
    """The sizes of one model; experts and experts_used are 0 for a dense one."""

    arch: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    rms_eps: float
    tied: bool
    experts: int
    experts_used: int
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool


@dataclass(frozen=True)
class Wanted:
    """A tensor of the model: the names that make it up, one after the other, and the shape of each.

    `mapped` is the name under which converters know it. rotating: its rows are the channels of heads that rotate.
    """

    sources: tuple[str, ...]
    mapped: str
    shape: tuple[int, ...]
    rotating: bool = False

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the whole: one more dimension in front where several tensors make it up."""
        return self.shape if len(self.sources) == 1 else (len(self.sources), *self.shape)


def kind_of(model_type: str, where: str) -> Kind:
    """Return what is known of the family.

    Raises: LossyExport for a family that cannot be exported.
    """
    kind = KINDS.get(model_type)
    if kind is None:
        raise LossyExport(
            f"{model_type} models cannot be exported yet; these can: {', '.join(KINDS)}",
            where=where, try_="convert_hf_to_gguf.py of llama.cpp, then ropetool inspect on its file",
        )  # fmt: skip
    return kind


def sizes(config: Mapping[str, Any], kind: Kind, arch: str, head_dim: int, where: str) -> Sizes:
    """Return the sizes that the config states, with the class's defaults where it is silent; `arch` is llama.cpp's name.

    Raises: ConfigError for a size that is missing or no count; LossyExport for what llama.cpp would not compute;
    UnsupportedDtype for quantised weights.
    """
    _check_computable(config, where)
    heads = _count(config, names.NUM_ATTENTION_HEADS, where)
    experts, used = kind.experts or (0, 0)
    biased = config.get(kind.attention_bias_key, False) is True
    found = Sizes(
        arch, _count(config, names.NUM_HIDDEN_LAYERS, where, most=MAX_LAYERS), _count(config, names.HIDDEN_SIZE, where),
        _count(config, INTERMEDIATE_SIZE, where), heads,
        _count(config, names.NUM_KEY_VALUE_HEADS, where, kind.kv_heads or heads), head_dim,
        _count(config, VOCAB_SIZE, where), _epsilon(config, kind, where),
        tied=config.get(TIE_WORD_EMBEDDINGS, False) is True,
        experts=_count(config, NUM_LOCAL_EXPERTS, where, experts, MAX_EXPERTS) if experts else 0,
        experts_used=_count(config, NUM_EXPERTS_PER_TOK, where, used) if used else 0,
        qk_norm=kind.qk_norm, qkv_bias=kind.always_biased or biased, output_bias=biased,
        mlp_bias=config.get(kind.mlp_bias_key, False) is True,
    )  # fmt: skip
    _check_architecture(found, where)
    return found


def tensors(s: Sizes) -> Iterator[Wanted]:
    """Yield every tensor that a model of these sizes has, from the embedding to the head."""
    yield _one(EMBEDDING, s.vocabulary, s.hidden)
    for layer in range(s.layers):
        prefix = f"model.layers.{layer}"
        yield _one(f"{prefix}.input_layernorm.weight", s.hidden)
        yield from _attention(s, f"{prefix}.self_attn")
        yield _one(f"{prefix}.post_attention_layernorm.weight", s.hidden)
        yield from _experts(s, layer) if s.experts else _feed_forward(s, f"{prefix}.mlp")
    yield _one("model.norm.weight", s.hidden)
    if not s.tied:
        yield _one(HEAD, s.vocabulary, s.hidden)


def _one(name: str, *shape: int, rotating: bool = False) -> Wanted:
    return Wanted((name,), name, shape, rotating)


def _attention(s: Sizes, prefix: str) -> Iterator[Wanted]:
    projections = (
        ("q_proj", s.heads * s.head_dim, s.hidden, s.qkv_bias, True),
        ("k_proj", s.kv_heads * s.head_dim, s.hidden, s.qkv_bias, True),
        ("v_proj", s.kv_heads * s.head_dim, s.hidden, s.qkv_bias, False),
        ("o_proj", s.hidden, s.heads * s.head_dim, s.output_bias, False),
    )
    for name, rows, columns, biased, rotating in projections:
        yield _one(f"{prefix}.{name}.weight", rows, columns, rotating=rotating)
        if biased:
            yield _one(f"{prefix}.{name}.bias", rows, rotating=rotating)
    if s.qk_norm:
        yield _one(f"{prefix}.q_norm.weight", s.head_dim)
        yield _one(f"{prefix}.k_norm.weight", s.head_dim)


def _feed_forward(s: Sizes, prefix: str) -> Iterator[Wanted]:
    wide, narrow = (s.intermediate, s.hidden), (s.hidden, s.intermediate)
    for name, shape in (("gate_proj", wide), ("up_proj", wide), ("down_proj", narrow)):
        yield _one(f"{prefix}.{name}.weight", *shape)
        if s.mlp_bias:
            yield _one(f"{prefix}.{name}.bias", shape[0])


def _experts(s: Sizes, layer: int) -> Iterator[Wanted]:
    prefix = f"model.layers.{layer}.block_sparse_moe"
    yield _one(f"{prefix}.gate.weight", s.experts, s.hidden)
    wide, narrow = (s.intermediate, s.hidden), (s.hidden, s.intermediate)
    for name, shape in (("w1", wide), ("w2", narrow), ("w3", wide)):
        sources = tuple(f"{prefix}.experts.{expert}.{name}.weight" for expert in range(s.experts))
        yield Wanted(sources, f"layers.{layer}.feed_forward.experts.{name}.weight", shape)


# --- reading and refusing


def _check_computable(config: Mapping[str, Any], where: str) -> None:
    if config.get(QUANTIZATION_CONFIG) is not None:
        raise UnsupportedDtype(
            f"has a {QUANTIZATION_CONFIG}; export reads weights in bf16, f16, f32 and f64",
            where=where, try_="export the checkpoint that was quantised",
        )  # fmt: skip
    activation = config.get(HIDDEN_ACT, ACTIVATION)
    if activation != ACTIVATION:
        raise LossyExport(
            f"hidden_act is {shown(activation)}; llama.cpp computes {ACTIVATION} for this family", where=where
        )


def _check_architecture(s: Sizes, where: str) -> None:
    """Refuse what transformers computes and llama.cpp has no place for."""
    if s.arch == "qwen2" and s.head_dim * s.heads != s.hidden:
        raise LossyExport(
            f"head_dim is {s.head_dim}; llama.cpp reckons with hidden_size / num_attention_heads, "
            f"{s.hidden} / {s.heads}, for qwen2",
            where=where,
        )
    if s.arch == "qwen3" and s.output_bias:
        raise LossyExport("attention_bias is true; llama.cpp has no bias behind qwen3's attention", where=where)
    if s.heads % s.kv_heads:
        raise ConfigError(
            f"num_attention_heads {s.heads} is no multiple of num_key_value_heads {s.kv_heads}", where=where
        )


def _count(config: Mapping[str, Any], key: str, where: str, default: int | None = None, most: int = MAX_COUNT) -> int:
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise ConfigError("is missing; export needs it", where=f"{where}: {key}")
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(f"{shown(value)} is not a whole number from 1 to {most}", where=f"{where}: {key}")
    return value


def _epsilon(config: Mapping[str, Any], kind: Kind, where: str) -> float:
    value = config.get(RMS_NORM_EPS, kind.rms_eps)
    if not is_number(value) or value <= 0:
        raise ConfigError(f"{shown(value)} is not a number above 0", where=f"{where}: {RMS_NORM_EPS}")
    return float(value)
