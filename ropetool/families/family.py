"""What ropetool knows of one model family, and how its JSON file says it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from ropetool.families import records
from ropetool.families.engines import Exllamav3, LlamaCpp, MlxLm, Sglang, Vllm
from ropetool.families.loading import parsed, record, wrong
from ropetool.families.rows import SELECTORS
from ropetool.families.tensors import Export, faults
from ropetool.files.hf.jsontext import shown

REMOTE = "remote/"  # the folder of families that only remote code has
Rotates = Literal["all", "no_rope_layers", "sliding", "sliding-if-any", "full", "none"]


@dataclass(frozen=True)
class TrainedLength:
    """A shipped max_position_embeddings that is not the length trained on."""

    max_position_embeddings: int
    trained: int
    reason: str


@dataclass(frozen=True)
class Needed:
    """A key of the config without which what a family's file says of positions does not hold.

    Keys that lead to one have dots between. values: those with which it does; null: the key may be absent. why: what the
    code does under another one, in words.
    """

    values: tuple[Any, ...]
    why: str


@dataclass(frozen=True)
class FoldStep:
    """One linear step of a query or key on its way to the rotation: a projection, or a norm's weight.

    tensor: its name below the attention, without .weight or .bias; {head} where each head has one of its own. rows:
    the selector of families/rows.py that says which rows make which head. norm: rms or layer, empty for a projection.
    offset: what the runtime adds to the stored weight before it multiplies. when, unless: the config key that
    switches the step on or off; a file without the key tells by the tensor.
    """

    tensor: str
    rows: str = "heads"
    norm: Literal["", "rms", "layer"] = ""
    offset: float = 0.0
    when: str = ""
    unless: str = ""


@dataclass(frozen=True)
class FoldSteps:
    """Where the weights of a family can carry what its rope keys say.

    layers: the names that the attention of layer {layer} may have. q, k: the steps in order; the last is the affine
    one before the rotation. k_plain: where key channels that do not rotate come from another tensor (MLA). score:
    steps that scale whole queries alone (MLA). indexer_k: the keys of a sparse-attention indexer, which rotate by the
    same table, in the layout indexer_layout. score_key: a config key that multiplies the whole score. clip_key: a config
    key that clamps after the projection. refused: why no bake serves.
    """

    layers: tuple[str, ...] = ("model.layers.{layer}.self_attn", "layers.{layer}.self_attn")
    q: tuple[FoldStep, ...] = ()
    k: tuple[FoldStep, ...] = ()
    k_plain: tuple[FoldStep, ...] = ()
    score: tuple[FoldStep, ...] = ()
    indexer_k: tuple[FoldStep, ...] = ()
    indexer_layout: Literal["half", "interleaved"] = "half"
    score_key: str = ""
    clip_key: str = ""
    refused: str = ""


@dataclass(frozen=True)
class Family:
    """A model family, as its config.json and its code in transformers have it.

    size_keys: sizes that the class has under another key, by the usual one. scaling_keys: the only keys that rope_scaling
    may have, the type first. text_path: where the rope keys live inside config.json. layer_types: kinds of layer with a table of their own
    (empty: one table for all). extends: the kinds that a longer context concerns. pattern: every n-th layer is a
    full-attention one where the config does not list layer_types. pattern_letters: published files state it in letters
    too (LLLG), beside layer_types. pattern_key: where n is stated; pattern_other: the kind of the other layers.
    pattern_offset: which layer of each n, from 0; the last where nothing is stated. pattern_offset_key: where that is stated.
    default_kinds: the kinds in order, over and over, instead of a pattern; with kinds_count they are those of so many layers,
    and of no other number. kinds_keys: where there may be a list with one word a layer, or a text
    with one letter, the first that is stated counts; kind_names: its words that are not these.
    kind_indices_key: a list of the full-attention layers' numbers instead, dots lead into objects; kind_indices_from: the
    number of the first layer in it. kind_numbers_key: a list with a number a layer,
    of which kind_names says the kinds; it may go on beyond the last layer. cache_known: whether a layer keeps whole keys and
    values of each token. rope_groups: under which words rope_parameters
    nests the kinds, where not under these. default_*: the values that the class assumes when the config is silent; None for
    head_dim means hidden_size // num_attention_heads; default_sizes without num_key_value_heads: as many as there are
    heads. one_key_head: boolean keys; all heads share one key and value where the first is on, as it is where it is
    absent, and no other is.
    gguf_architecture: the name that GGUF files give it, which export writes. gguf_architectures: those whose files have
    this family's shape: where they make queries and keys, and which lengths they ship; each is of one family.
    head_dim_keys, default_head_dims: the same by kind of layer, where one has heads of another size.
    default_rope_keys: the rope keys by kind of layer that the class fills in where the config has none at all.
    rotates_if: keys, each with the value without which nothing rotates.
    needed: keys whose value all that is said here takes for granted. beyond: boolean keys, each with what the code does
    beyond the context where it is on; that is said, and not decoded.
    norm_after: queries and keys are normalised behind the rotation, so that no factor on cos and sin is left.
    null_head_dim: runtimes in which a missing head_dim stays null, which breaks yarn, dynamic and longrope.
    stated_null_head_dim: what a head_dim of null does in transformers 5 that an absent one does not: it stops those types,
    or the size is computed from hidden_size. not_null: the keys that its class takes no null for.
    mrope: its class turns the pairs of an image's tokens by axes, as mrope_section of the rope keys divides them.
    partial_rotary_key: the key beside the rope keys for the share of a head that rotates; empty where whole heads do.
    rotary_dim_key: an older key for the same, in channels.
    rope_theta_key: where the base is looked for beside the rope keys, empty for nowhere; base_of_stated_keys: the base of
    rope keys that state none, where it is another than that of a config without them. rope_scaling_reaches: the kinds of
    layer that a rope_scaling changes: none, or `stops` where the class does; None: as most do, all of a flat family and
    the full-attention layers of another. scaling_defaults: what the class adds to a rope_scaling of type yarn.
    scaling_by_release: why no scaling is written into a config without one: releases of the remote code read its type by
    different keys. All releases that run a scaling that is there read the same.
    mscale_keys: the rope keys that every scaled type must state, the factors on cos and sin up to the length before scaling
    and beyond it, in place of the type's own; the table is then that of the shorter texts for all.
    shadows_type: a rope_type that is there by default shadows the `type` of an older rope_scaling. local_theta_key: the same of
    sliding layers with a table of their own; layer_base_key: a list with a base for each layer, which is not decoded.
    context_key, window_key: where the context and the window are stated; chunked: the
    window is a chunk of the text, within which layers attend. rope_types: the only ones that the class takes; empty: all.
    rope_type_names: what the class makes of a name that no other knows.
    no_scaling_stops: values of rope_scaling that most classes take for no scaling, and at which this class stops.
    default_rope_type: what it assumes without any rope keys. stretch_key: the rope key by whose number alone `dynamic`
    stretches the base, by NTK's formula and once for all lengths.
    rotates: which layers do: all, no_rope_layers (a list with 1 for those that do), sliding (these alone), sliding-if-any
    (these alone where there is a window), rotating_key: that list, which other classes have under another name, and for which
    they take all layers where it is absent; full (these alone: the others keep a state), or none. temperature_key: the rope
    key whose number lets the score
    grow with the position. in_v4: whether it is known how transformers 4.57 reads the family.
    interleave_key: the boolean key that, when false, makes the layout half.
    sliding_window: never, always, alternate (some layers, under one table), or the boolean key that switches it on.
    unrotated_window_key: the boolean key under which layers that do not rotate slide, others not, where the config
    lists no layer_types.
    mla: the softmax scale follows mscale_all_dim, the table belongs to the decoupled keys. off_key: the boolean key
    under which nothing rotates. bake: where weights can carry what the rope keys say. export: its tensors under both
    names, and what a GGUF file says of it; in its file the name of another family says that it is that one's.
    fixed: keys that remote code computes by and that llama.cpp or its converter takes for granted, each with the values that
    agree, null where it may be left out: the converter's file of any other would be another model; keys that lead to one have
    dots between, and in a list each entry has it. not_computed: what
    llama.cpp does otherwise with every such model, so that the converter is not asked. llama_cpp,
    vllm, sglang, mlx_lm, exllamav3: how each treats it; absent: that is not known. source: where all this was read.
    stated: the model_type of a config.json that hands over to this family, set only by of_config and find. live: it was
    read from the installed transformers in this process. wrapped: the config that states it is around that of a text model.
    """

    model_type: str
    example: str
    architecture: str
    layout: Literal["half", "interleaved"]
    size_keys: dict[str, str] = dataclasses.field(default_factory=dict)
    scaling_keys: tuple[str, ...] = ()
    text_path: tuple[str, ...] = ()
    layer_types: tuple[str, ...] = ()
    extends: tuple[str, ...] = ("full_attention",)
    pattern: int | None = None
    pattern_letters: bool = False
    pattern_key: str = "sliding_window_pattern"
    pattern_offset: int | None = None
    pattern_offset_key: str = ""
    pattern_other: str = "sliding_attention"
    default_kinds: tuple[str, ...] = ()
    kinds_count: int | None = None
    kinds_keys: tuple[str, ...] = ("layer_types",)
    kind_names: dict[str, str] = dataclasses.field(default_factory=dict)
    kind_indices_key: str = ""
    kind_indices_from: int = 0
    kind_numbers_key: str = ""
    cache_known: bool = True
    rope_groups: dict[str, str] = dataclasses.field(default_factory=dict)
    head_dim_key: str = "head_dim"
    default_head_dim: int | None = None
    head_dim_keys: dict[str, str] = dataclasses.field(default_factory=dict)
    default_head_dims: dict[str, int] = dataclasses.field(default_factory=dict)
    partial_rotary_key: str = ""
    default_partial_rotary_factor: float = 1.0
    rotary_dim_key: str = ""
    rope_theta_key: str = "rope_theta"
    base_of_stated_keys: dict[str, float] = dataclasses.field(default_factory=dict)
    rope_scaling_reaches: tuple[str, ...] | None = None
    no_scaling_stops: tuple[Any, ...] = ()
    mscale_keys: tuple[str, ...] = ()
    scaling_by_release: str = ""
    scaling_defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    shadows_type: bool = False
    local_theta_key: str = "rope_local_base_freq"
    layer_base_key: str = ""
    rope_types: tuple[str, ...] = ()
    rope_type_names: dict[str, str] = dataclasses.field(default_factory=dict)
    default_rope_type: str = "default"
    stretch_key: str = ""
    default_rope_theta: dict[str, float] = dataclasses.field(default_factory=dict)
    default_rope_keys: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    v4_default_rope_theta: float = 10000.0
    default_max_position_embeddings: int = 2048
    context_key: str = "max_position_embeddings"
    default_original_max_position_embeddings: int | None = None
    default_sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    one_key_head: tuple[str, ...] = ()
    rotates: Rotates = "all"
    rotating_key: str = "no_rope_layers"
    rotates_if: dict[str, str] = dataclasses.field(default_factory=dict)
    needed: dict[str, Needed] = dataclasses.field(default_factory=dict)
    beyond: dict[str, str] = dataclasses.field(default_factory=dict)
    norm_after: bool = False
    temperature_key: str = ""
    off_key: str = ""
    in_v4: bool = True
    null_head_dim: tuple[str, ...] = ()
    stated_null_head_dim: tuple[Literal["stops yarn", "computed"], ...] = ()
    not_null: tuple[str, ...] = ()
    mrope: bool = False
    sliding_window: str = "never"
    default_sliding_window: int | None = None
    window_key: str = "sliding_window"
    chunked: bool = False
    unrotated_window_key: str = ""
    interleave_key: str = ""
    mla: bool = False
    v4_softmax_scale: bool = True
    trained_length: tuple[TrainedLength, ...] = ()
    gguf_architecture: str = ""
    gguf_architectures: tuple[str, ...] = ()
    bake: FoldSteps | None = None
    export: Export | None = None
    fixed: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    not_computed: str = ""
    llama_cpp: LlamaCpp | None = None
    vllm: Vllm | None = None
    sglang: Sglang | None = None
    mlx_lm: MlxLm | None = None
    exllamav3: Exllamav3 | None = None
    source: str = ""
    stated: str = field(default="", metadata={"unstated": True})
    live: bool = field(default=False, metadata={"unstated": True})
    remote: bool = field(default=False, metadata={"unstated": True})
    wrapped: bool = field(default=False, metadata={"unstated": True})

    @property
    def name(self) -> str:
        """The model_type that config.json states."""
        return self.stated or self.model_type

    @property
    def own_name(self) -> bool:
        """Whether the config states this family's own model_type: engines know model files by it."""
        return not self.stated

    @property
    def alone(self) -> bool:
        """Whether transformers has a class with a head for it, and not only for a wrapper around it."""
        return not self.architecture.endswith("ForConditionalGeneration")

    def gguf_name(self, tensor: str) -> str | None:
        """Return the name in GGUF, below its layer, of a tensor that is named below the attention; None without one."""
        if self.export is None or self.bake is None:
            return None
        attention = self.bake.layers[0].removeprefix(f"{self.export.prefix}{{layer}}.")
        return self.export.gguf_name(f"{attention}.{tensor}".replace("{head}", "{x}"))

    @property
    def has_kinds(self) -> bool:
        """Whether its layers are of several kinds, whatever they rotate by."""
        return bool(self.pattern is not None or self.default_kinds or self.unrotated_window_key)

    def one_key_for_all(self, config: Mapping[str, Any]) -> bool:
        """Return whether all heads share one key and value under this config."""
        shared, *others = self.one_key_head or ("",)
        return bool(shared) and bool(config.get(shared, True)) and not any(config.get(key) for key in others)

    def not_described(self, config: Mapping[str, Any]) -> str:
        """Return which key of a config is other than all that is said here takes for granted, in words; empty for none."""
        for place, needed in self.needed.items():
            value = at(config, place)
            if value not in needed.values:
                return f"{place} is {shown(value)}: {needed.why}"
        return ""

    def rope_group(self, layer_type: str) -> str:
        """Return the word under which rope_parameters holds the keys of a kind of layer."""
        return self.rope_groups.get(layer_type, layer_type)

    @property
    def nested(self) -> bool:
        """Whether the v5 style nests its rope keys by layer type."""
        return bool(self.layer_types)

    @property
    def shared_default_theta(self) -> float | None:
        """The base that every generation of transformers assumes where the config is silent, None if they differ."""
        theta = self.default_rope_theta["full_attention"]
        return theta if theta == self.v4_default_rope_theta else None

    @property
    def has_local_base(self) -> bool:
        """Whether the v4 style has rope_local_base_freq for the sliding layers."""
        theta = self.default_rope_theta
        return self.nested and bool(self.local_theta_key) and theta["sliding_attention"] != theta["full_attention"]

    @property
    def rope_entries(self) -> tuple[str, ...]:
        """The kinds of layer that have a table."""
        return self.layer_types or ("full_attention",)


def at(config: Mapping[str, Any], place: str) -> Any:
    """Return the value at a place of a config, keys with dots between them, or None."""
    value: Any = config
    for key in place.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _faults(family: Family, file: str) -> Iterator[tuple[str, str]]:
    """Yield what the parts of a family do not have of each other: the place, and a sentence on it."""
    if f"{family.model_type}.json" != file.removeprefix(REMOTE):
        yield "model_type", f"{family.model_type!r} is not the name of the file without .json"
    for layer_type in family.rope_entries:
        if layer_type not in family.default_rope_theta:
            yield "default_rope_theta", f"lacks {layer_type!r}"
    for layer_type in family.extends:
        if layer_type not in family.rope_entries:
            yield "extends", f"{layer_type!r} is not one of {', '.join(family.rope_entries)}"
    for part, steps in _steps(family.bake):
        for number, step in enumerate(steps):
            if step.rows not in SELECTORS:
                yield f"bake.{part}[{number}].rows", f"{step.rows!r} is not a selector; known: {', '.join(SELECTORS)}"
    if bool(family.gguf_architecture) != (family.export is not None):
        yield "export", "gguf_architecture and export are stated together, or neither"
    if family.gguf_architectures and (family.export is None or family.bake is None):
        yield "gguf_architectures", "needs export and bake, which name what such a file holds"
    if family.export is not None:
        yield from ((f"export.{place}", sentence) for place, sentence in faults(family.export))
        if family.gguf_architectures:
            for part, steps in _steps(family.bake):
                for number, step in enumerate(steps):
                    if part != "k_plain" and not family.gguf_name(step.tensor):
                        place = f"bake.{part}[{number}].tensor"
                        yield place, f"{step.tensor!r} is not among the tensors of export.layer"


def _steps(bake: FoldSteps | None) -> Iterator[tuple[str, tuple[FoldStep, ...]]]:
    """Yield the parts of the fold targets that name tensors of GGUF files too."""
    if bake is not None:
        yield from (("q", bake.q), ("k", bake.k), ("k_plain", bake.k_plain), ("score", bake.score))


def read(text: str, file: str) -> Family:
    """Return the family that the text of a file describes.

    Raises: ConfigError with the place and what would be right.
    """
    data = parsed(text, file)
    model_type = data.get("model_type", "")
    data = {**(records.rest(model_type) if data.pop(records.REST, False) else records.spellings(model_type)), **data}
    if isinstance(data.get("export"), str):
        data |= _table_of(data["export"], file)
    family: Family = record(Family, data, file)
    for place, sentence in _faults(family, file):
        raise wrong(f"{file}: {place}", sentence)
    return dataclasses.replace(family, wrapped=bool(family.text_path))


def stated_architecture(text: str, file: str) -> str:
    """Return the GGUF architecture in the text of a family's file, or that of the family whose export it takes."""
    data = parsed(text, file)
    if isinstance(data.get("export"), str):
        data = _table_of(data["export"], file)
    return str(data.get("gguf_architecture", ""))


def _table_of(model_type: str, file: str) -> dict[str, Any]:
    """Return the export of another family and the name that GGUF files give it, as its file states them."""
    other = resources.files(__package__).joinpath(f"{model_type}.json")
    if not other.is_file():
        raise wrong(f"{file}: export", f"{model_type!r} is not a family with a file")
    data = parsed(other.read_text(encoding="utf-8"), f"{model_type}.json")
    return {key: data.get(key, "") for key in ("export", "gguf_architecture")}
