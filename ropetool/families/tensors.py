"""The tensors of a family under their Hugging Face and GGUF names, and the other facts that its export needs.

A family's JSON lists them row by row, or by the groups defined here. Sizes are names. gguf_model/shapes replaces them
by the numbers of a model.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# ropetool's limit, several times above any model. It stops hostile counts before they cost memory.
MAX_COUNT = 2**20
Order = Literal[
    "", "interleave_pairs", "split_qkv", "columns_first", "even", "odd", "first_half", "second_half", "first_columns",
    "last_columns", "latent_keys", "latent_values", "delta_qkv", "delta_gate", "tiled_tail", "tiled_rows", "tiled_columns",
]  # fmt: skip
Function = Literal["", "minus_exp"]
Head = Literal["optional", "required", "absent"]
Rules = Literal[
    "", "cohere", "gemma2", "gemma3", "gemma4", "ernie4_5_moe", "hy_v3", "llama4", "lfm2", "lfm2_moe", "gated_delta", "latents",
    "deepseek_v2", "deepseek_v3", "minicpm3", "falcon",
]  # fmt: skip
ALWAYS = "always"
DRAFTS = "drafts"  # the number of layers after the last one, which an export leaves out
# Sizes that every model has.
COMMON = (
    "layers", "hidden", "heads", "intermediate", "kv_heads", "vocabulary", "head_dim", "rotary_dim", "queries", "keys",
    "one", "twice",
)  # fmt: skip
# Switches that every model has: whether the head is the embedding, and whether a layer is a leading dense one.
SWITCHES = ("tied", "untied", "dense", "sparse")


def conditions(when: str) -> tuple[tuple[str, bool], ...]:
    """Return the switches in a condition, each with whether it must be on: "a, not b" is ((a, True), (b, False))."""
    parts = (part.strip() for part in when.split(",") if part.strip())
    return tuple((part.removeprefix("not "), not part.startswith("not ")) for part in parts)


@dataclass(frozen=True)
class Row:
    """A tensor: `hf` in the checkpoint, `gguf` in the file, both below their layer, with .weight or .bias.

    A tensor without `gguf` is optional, and transformers ignores it.

    shape: names of the sizes in the checkpoint, such as "queries hidden".
    when: switches that must be on, separated by commas; `not` before one means off. A size defined by the family is on
      above 0.
    order: the permutation of its elements (gguf_model/shapes/orders.py). interleave_pairs is the one for queries and
      keys if llama.cpp pairs other channels.
    offset: a number that llama.cpp expects added to each element.
    many: the size that counts sources named by {x}, which follow each other in the file.
    written: names of the sizes in the file, if they differ.
    function: the function that llama.cpp expects applied to each number. minus_exp is -exp(x) of an A_log.
    """

    hf: str
    gguf: str
    shape: str
    when: str = ""
    order: Order = ""
    offset: float = 0.0
    many: str = ""
    written: str = ""
    function: Function = ""


Rows = tuple[Row, ...]


@dataclass(frozen=True)
class Count:
    """A size in config.json.

    key: the key of the size.
    default: the size if the key is missing; None if the key is required.
    others: other keys of the same size.
    most, least: the largest and the smallest valid size.
    null: the size for a key with null, if it differs from the default; None for the default.
    alike: the key may also be a list with one size per layer. All layers must then have the same size.
    words_key, words: a key of a list with one of two words per layer, which takes precedence over `key`. The size is
      the number of leading layers with the first word. No later layer may have that word.
    formula: the default as a formula of sizes that every model has; empty to use `default`.
    """

    key: str
    default: int | None = None
    others: tuple[str, ...] = ()
    most: int = MAX_COUNT
    least: int = 1
    null: int | None = None
    alike: bool = False
    words_key: str = ""
    words: tuple[str, ...] = ()
    formula: str = ""


@dataclass(frozen=True)
class LayerSwitch:
    """A switch that is on in some layers. It is on in a layer if all conditions that are set here are true.

    kinds: layer types of the config.
    first: the size with the number of leading layers.
    every: the size n of which every n-th layer is on, the last one of each n.
    numbers_key: the config key of a list with layer numbers.
    words_key, words: the config key of a list with one word per layer, and the words for on.
    """

    kinds: tuple[str, ...] = ()
    first: str = ""
    every: str = ""
    numbers_key: str = ""
    words_key: str = ""
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class PerLayer:
    """A GGUF key with one entry per layer.

    when: the condition on switches.
    size: the size for layers where `when` is true. Empty: the entries are booleans, the result of `when`.
    other: the size for other layers; empty for 0.
    where: a condition. If it is false, the key has a single number for all layers.
    """

    when: str
    size: str = ""
    other: str = ""
    where: str = ""


@dataclass(frozen=True)
class ConfigValue:
    """The value of a GGUF key that is not a size. Exactly one of number, entries and switch is set.

    number: the config key of a number.
    entries: the config key of a list; the value is the length of the list. Dots lead into objects.
    switch: a switch; the value is whether it is on.
    default: the value if the config lacks the key.
    nonzero: export refuses 0, because llama.cpp treats 0 as a missing key.
    optional: the GGUF key is left out if the number is missing, null or 0.
    """

    number: str = ""
    entries: str = ""
    default: float = 0.0
    nonzero: bool = False
    optional: bool = False
    switch: str = ""


# --- groups of tensors that many families share


def vector(hf: str, gguf: str, shape: str = "hidden", when: str = "", offset: float = 0.0) -> Rows:
    """Return the weight of a norm."""
    return (Row(f"{hf}.weight", f"{gguf}.weight", shape, when, offset=offset),)


def affine(hf: str, gguf: str, when: str = "", offset: float = 0.0) -> Rows:
    """Return the weight and the bias of a norm. offset: a number that llama.cpp expects added to the weight."""
    return (*vector(hf, gguf, "hidden", when, offset), Row(f"{hf}.bias", f"{gguf}.bias", "hidden", when))


def linear(hf: str, gguf: str, shape: str, bias: str = "", when: str = "", order: Order = "") -> Rows:
    """Return a projection of the shape "rows columns".

    bias: the switch of its bias, `always`, or empty without a bias.
    """
    weight = Row(f"{hf}.weight", f"{gguf}.weight", shape, when, order)
    if not bias:
        return (weight,)
    both = ", ".join(filter(None, (when, "" if bias == ALWAYS else bias)))
    return (weight, Row(f"{hf}.bias", f"{gguf}.bias", shape.split()[0], both, order))


def attention(bias: str = "", output_bias: str = "", when: str = "") -> Rows:
    """Return q_proj, k_proj, v_proj and o_proj of self_attn.

    bias, output_bias: the switches of their biases, as in `linear`.
    """
    return (
        *linear("self_attn.q_proj", "attn_q", "queries hidden", bias, when, "interleave_pairs"),
        *linear("self_attn.k_proj", "attn_k", "keys hidden", bias, when, "interleave_pairs"),
        *linear("self_attn.v_proj", "attn_v", "keys hidden", bias, when),
        *linear("self_attn.o_proj", "attn_output", "hidden queries", output_bias, when),
    )


def head_norms(shape: str = "head_dim", key_shape: str = "", offset: float = 0.0, when: str = "") -> Rows:
    """Return q_norm and k_norm, either for one head or for all query heads and all key heads."""
    return (
        *vector("self_attn.q_norm", "attn_q_norm", shape, when, offset),
        *vector("self_attn.k_norm", "attn_k_norm", key_shape or shape, when, offset),
    )


def norms(offset: float = 0.0) -> Rows:
    """Return the norms before attention and feed-forward."""
    return (
        *vector("input_layernorm", "attn_norm", offset=offset),
        *vector("post_attention_layernorm", "ffn_norm", offset=offset),
    )


def post_norms() -> Rows:
    """Return the norms after attention and feed-forward, for families without norms before them."""
    return (
        *vector("post_attention_layernorm", "post_attention_norm"),
        *vector("post_feedforward_layernorm", "post_ffw_norm"),
    )


def gated(block: str = "mlp", suffix: str = "", inner: str = "intermediate", bias: str = "", when: str = "") -> Rows:
    """Return a feed-forward with a gate: gate_proj, up_proj and down_proj."""
    return (
        *linear(f"{block}.gate_proj", f"ffn_gate{suffix}", f"{inner} hidden", bias, when),
        *linear(f"{block}.up_proj", f"ffn_up{suffix}", f"{inner} hidden", bias, when),
        *linear(f"{block}.down_proj", f"ffn_down{suffix}", f"hidden {inner}", bias, when),
    )


def fused_gate() -> Rows:
    """Return a feed-forward whose gate and up are one matrix, the gate first."""
    return (
        *linear("mlp.gate_up_proj", "ffn_up", "twice hidden"),
        *linear("mlp.down_proj", "ffn_down", "hidden intermediate"),
    )


def experts(
    block: str = "mlp.experts", names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"),
    inner: str = "expert_intermediate", when: str = "",
) -> Rows:  # fmt: skip
    """Return experts with separate matrices. names: the names of gate, up and down."""
    if len(names) != 3:
        raise ValueError("names must be three: gate, up and down")
    shapes = (f"{inner} hidden", f"{inner} hidden", f"hidden {inner}")
    return tuple(
        Row(f"{block}.{{x}}.{theirs}.weight", f"ffn_{ours}_exps.weight", shape, when, many="experts")
        for theirs, ours, shape in zip(names, ("gate", "up", "down"), shapes, strict=True)
    )


def latent_attention() -> Rows:
    """Return the self_attn of MLA.

    Queries may use a latent. Keys and values share one. The sizes have DeepSeek's names.
    """
    return (
        *linear("self_attn.q_proj", "attn_q", "whole_queries hidden", when="not query_latent"),
        *linear("self_attn.q_a_proj", "attn_q_a", "query_latent hidden", when="query_latent"),
        *vector("self_attn.q_a_layernorm", "attn_q_a_norm", "query_latent", "query_latent"),
        *linear("self_attn.q_b_proj", "attn_q_b", "whole_queries query_latent", when="query_latent"),
        *linear("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", "latent_and_key hidden"),
        *vector("self_attn.kv_a_layernorm", "attn_kv_a_norm", "latent"),
        Row(
            "self_attn.kv_b_proj.weight", "attn_k_b.weight", "both_sides latent", order="latent_keys",
            written="heads latent plain",
        ),
        Row(
            "self_attn.kv_b_proj.weight", "attn_v_b.weight", "both_sides latent", order="latent_values",
            written="heads value latent",
        ),
        *linear("self_attn.o_proj", "attn_output", "hidden all_values"),
    )  # fmt: skip


def outer() -> Rows:
    """Return the embedding, the last norm and the head."""
    return (
        Row("model.embed_tokens.weight", "token_embd.weight", "vocabulary hidden"),
        Row("model.norm.weight", "output_norm.weight", "hidden"),
        Row("lm_head.weight", "output.weight", "vocabulary hidden", "untied"),
    )


GROUPS: Mapping[str, Callable[..., Rows]] = {
    group.__name__: group
    for group in (
        norms, post_norms, vector, affine, linear, attention, head_norms, latent_attention, gated, fused_gate, experts, outer,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Export:
    """How the class of a family computes, its defaults, and the names of its tensors.

    Tensors:
    layer: the tensors of a layer, below `prefix`.
    outer: the tensors outside the layers.
    drafting: prefixes of tensor names that only draft tokens.
    held: switches that are on if the checkpoint has this tensor in a layer, because it may be stored in two ways.
    head: whether llama.cpp requires output.weight, uses the embedding if it is absent, or always uses the embedding.
    tied: the default of tie_word_embeddings.
    output_bias: whether llama.cpp has a tensor for the output bias of attention_bias.
    grouped: whether heads may share keys and values.

    Sizes:
    counts: additional sizes, or the class's key for a common one.
    derived: sizes as formulas of others, such as "queries + 2 * keys".
    square: llama.cpp requires heads times head_dim to equal the hidden size.
    equal: other pairs of sizes that llama.cpp treats as equal.
    sections: the default of mrope_section: the number of rotary pairs for time, height and width of an image token.
      Empty if all pairs rotate by the same position.
    assumed: sizes by key that the config inside a wrapper may leave out, because transformers saves only differences
      from the class.

    Computation:
    norms: rms, or layer if norms subtract the mean.
    eps, eps_key: the default epsilon of norms, and its key in the config; empty without a key.
    activations: activations of llama.cpp, as values of `activation_key`.
    approximated: activations that llama.cpp computes slightly differently.
    switches: boolean keys of the config, with their defaults.
    switch_names: other names of switches in configs.
    layer_switches: switches that are on in some layers.
    fixed: keys that llama.cpp assumes, with the values that it accepts.

    GGUF keys:
    sizes: keys that contain a size.
    keys: keys that contain other values.
    constants: keys with the same value in every model.
    arrays: keys with one entry per layer.

    rules: the program in gguf_model/shapes/rules.py for what data cannot express; empty without one.
    """

    layer: Rows
    outer: Rows = field(default_factory=outer)
    prefix: str = "model.layers."
    grouped: bool = True
    norms: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    eps_key: str = "rms_norm_eps"
    counts: Mapping[str, Count] = field(default_factory=dict)
    derived: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, bool] = field(default_factory=dict)
    switch_names: Mapping[str, str] = field(default_factory=dict)
    tied: bool = False
    head: Head = "optional"
    output_bias: bool = True
    square: bool = False
    equal: Mapping[str, str] = field(default_factory=dict)
    activations: tuple[str, ...] = ("silu",)
    activation_key: str = "hidden_act"
    approximated: tuple[str, ...] = ()
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, ConfigValue] = field(default_factory=dict)
    constants: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    layer_switches: Mapping[str, LayerSwitch] = field(default_factory=dict)
    arrays: Mapping[str, PerLayer] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    sections: tuple[int, ...] = ()
    assumed: Mapping[str, int] = field(default_factory=dict)
    drafting: tuple[str, ...] = ()
    rules: Rules = ""

    def gguf_name(self, hf: str) -> str | None:
        """Return a tensor's GGUF name, below its layer and without .weight, or None if it has no GGUF name."""
        name = next((row.gguf for row in self.layer if row.hf == f"{hf}.weight"), None)
        return None if name is None else name.removesuffix(".weight")


# --- formulas of sizes


def sized(formula: str, counts: Mapping[str, int]) -> int:
    """Return the value of a formula of sizes with +, -, * and //. A divisor below 1 counts as 1, because a size can be 0.

    Raises: ValueError with the invalid part.
    """
    try:
        parsed = ast.parse(formula, mode="eval").body
    except (SyntaxError, RecursionError):
        raise ValueError("is not a valid formula") from None
    return _value(parsed, counts)


def _value(node: ast.expr, counts: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            if name not in counts:
                raise ValueError(f"contains {name!r}, which is not a size; known: {', '.join(counts)}")
            return counts[name]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left, counts) + _value(right, counts)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left, counts) - _value(right, counts)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left, counts) * _value(right, counts)
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return _value(left, counts) // max(1, _value(right, counts))
    raise ValueError(f"contains {ast.unparse(node)!r}; allowed: sizes, whole numbers, +, -, * and //")


def derived(formulas: Mapping[str, str], counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts and the results of the formulas. A formula can use the results of earlier ones."""
    known = dict(counts)
    for name, formula in formulas.items():
        known[name] = sized(formula, known)
    return known


def faults(export: Export) -> Iterable[tuple[str, str]]:
    """Yield the place and a sentence for each unknown size, unknown switch and contradiction in an export table."""
    names: dict[str, int] = dict.fromkeys((*COMMON, *export.counts), 1)
    for name, one in export.counts.items():
        try:
            sized(one.formula or "1", dict.fromkeys(COMMON, 1))
        except ValueError as error:
            yield f"counts.{name}.formula", f"{one.formula!r} {error}"
    for name, formula in export.derived.items():
        try:
            names[name] = sized(formula, names)
        except ValueError as error:
            yield f"derived.{name}", f"{formula!r} {error}"
            names[name] = 1
    switches = (*SWITCHES, *export.switches, *export.held, *export.layer_switches, *export.counts, *export.derived)
    for part, rows in (("layer", export.layer), ("outer", export.outer)):
        for row in rows:
            place, used = f"{part}: {row.hf}", (*row.shape.split(), *row.written.split(), *row.many.split())
            yield from _unknown(place, used, names, "size")
            for switch, _ in conditions(row.when):
                yield from _unknown(place, [switch], switches, "switch")
                if part == "outer" and switch in export.layer_switches:
                    yield place, f"{switch!r} is a layer switch, but this tensor is in no layer"
    for name, one in export.counts.items():
        if bool(one.words_key) != (len(one.words) == 2):
            yield f"counts.{name}", "set words_key together with two words, for the first layers and for the others"
    for name in export.switch_names:
        yield from _unknown(f"switch_names.{name}", [name], export.switches, "switch")
    for name, layers in export.layer_switches.items():
        yield from _unknown(f"layer_switches.{name}", (layers.first, layers.every), names, "size")
    for key, size in export.sizes.items():
        yield from _unknown(f"sizes.{key}", [size], names, "size")
    for key, size in export.equal.items():
        yield from _unknown(f"equal.{key}", (size, key), names, "size")
    for key, each in export.arrays.items():
        yield from _unknown(f"arrays.{key}", (each.size, each.other), names, "size")
        asked = [switch for switch, _ in (*conditions(each.when), *conditions(each.where))]
        yield from _unknown(f"arrays.{key}", asked, switches, "switch")
    for key, value in export.keys.items():
        if sum(map(bool, (value.number, value.switch, value.entries))) != 1:
            yield f"keys.{key}", "must set exactly one of number, switch and entries"
        yield from _unknown(f"keys.{key}", [value.switch], export.switches, "switch")


def _unknown(place: str, used: Iterable[str], known: Collection[str], what: str) -> Iterator[tuple[str, str]]:
    """Yield the place and a sentence for each name that is not known. Empty names are not set."""
    for name in used:
        if name and name not in known:
            yield place, f"unknown {what} {name!r}; known: {', '.join(known)}"
