"""The facts about one model family, read from its JSON file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
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
    """A published max_position_embeddings that differs from the trained length, both in tokens."""

    max_position_embeddings: int
    trained: int
    reason: str


@dataclass(frozen=True)
class Needed:
    """A condition on one config key: without it, the family's description of the positions is wrong.

    values: the values that satisfy the condition; None allows a missing key.
    why: how the code behaves with other values, as text for the user.
    """

    values: tuple[Any, ...]
    why: str


@dataclass(frozen=True)
class FoldStep:
    """One linear step of a query or key before the rotation: a projection, or the weight of a norm.

    tensor: its name below the attention, without .weight or .bias; contains {head} if each head has a separate tensor.
    rows: the selector in families/rows.py that assigns rows to heads.
    norm: rms or layer; empty for a projection.
    offset: the number that the runtime adds to the stored weight before it multiplies.
    when: the config key that switches the step on. If the config lacks the key, the step exists if its tensor does.
    unless: the config key that switches the step off, with the same fallback.
    """

    tensor: str
    rows: str = "heads"
    norm: Literal["", "rms", "layer"] = ""
    offset: float = 0.0
    when: str = ""
    unless: str = ""


@dataclass(frozen=True)
class FoldSteps:
    """The weights of a family that can absorb a change of the rope keys.

    layers: possible names of the attention in layer {layer}.
    q, k: the steps in order. The last step is the affine one before the rotation.
    k_plain: the steps of key channels that do not rotate, if another tensor makes them (MLA).
    score: the steps that scale whole queries but no keys (MLA).
    indexer_k: the keys of a sparse-attention indexer, which rotate by the same table.
    indexer_layout: the layout of the indexer's keys.
    score_key: a config key that multiplies the whole score.
    clip_key: a config key that clamps queries and keys after the projection.
    refused: the reason why `bake` does not support the family; empty if it does.
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
    """A model family, with the defaults of its class in transformers.

    example: a published model of the family, as a hub id; empty if there is none.

    Place and sizes:

    text_path: keys from the top of config.json to the object with the rope keys.
    size_keys: usual name of a size, and the name that this class uses.
    default_sizes: sizes that the class assumes. Without num_key_value_heads, there are as many as attention heads.
    default_*: other values that the class assumes if the config lacks the key.
    head_dim_key, default_head_dim: channels of a head. None means hidden_size // num_attention_heads.
    head_dim_keys, default_head_dims: the same by layer type, if the head size depends on it.
    null_head_dim: runtimes that keep a missing head_dim null, which breaks yarn, dynamic and longrope.
    stated_null_head_dim: the effects of a null head_dim in transformers 5 that a missing key does not have:
      `stops yarn` is an error for those three types, `computed` takes the size from hidden_size.
    not_null: keys that must not be null.
    one_key_head: boolean keys. All heads share one key and value if the first is on or missing and the others are off.
    context_key, window_key: the keys of the context length and the sliding window, in tokens.

    Layer types:

    layer_types: layer types that have separate tables; empty if one table works for all.
    extends: the layer types that a longer context changes.
    pattern: every n-th layer is full attention, if the config does not list the layers.
    pattern_letters: the pattern may also be a text of letters (LLLG), if the config lists layer_types too.
    pattern_key: the key of n.
    pattern_other: the layer type of the remaining layers.
    pattern_offset: the full-attention layer within n, from 0; None for the last one.
    pattern_offset_key: the key of that offset.
    default_kinds: the layer types in order, repeated over all layers, if there is no pattern.
    kinds_count: the only number of layers for which default_kinds is known; None for any number.
    kinds_keys: keys of a list with a layer type per layer, or of a text with a letter per layer. The first key wins.
    kind_names: words, letters or numbers of these keys, each with its layer type.
    kind_indices_key: the key of a list with the numbers of the full-attention layers; dots lead into objects.
    kind_indices_from: the number of the first layer in that list.
    kind_numbers_key: the key of a list with one number per layer; the list may be too long.
    rope_groups: names of layer types in rope_parameters, if they differ from layer_types.
    cache_known: whether each layer keeps full keys and values of every token.
    sliding_window: never, always, alternate (some layers, under one table), or a boolean key that enables the window.
    unrotated_window_key: a boolean key. If it is on and the config lists no layers, the unrotated layers slide.
    chunked: the window is a fixed chunk of the text, and layers attend only within it.

    Rotation:

    rotates: all, sliding, full (the others keep a state) or none; sliding-if-any means all if there is no window;
      no_rope_layers reads a list with 1 for each layer that rotates.
    rotating_key: the key of that list. If another key than no_rope_layers is missing, all layers rotate.
    rotates_if: keys with the value that the config must have for the rotation to be on.
    off_key: a boolean key that switches the rotation off.
    partial_rotary_key: the key for the rotating share of a head, outside the rope keys; empty if whole heads rotate.
    rotary_dim_key: an older key for the rotating channels, as a count.
    interleave_key: a boolean key; false makes the layout half.
    mrope: the class rotates image tokens by several axes, split by mrope_section.
    norm_after: norms follow the rotation, which cancels any factor on cos and sin.
    mla: multi-head latent attention. The table rotates the decoupled keys, and mscale_all_dim sets the softmax scale.
    v4_softmax_scale: with `mla`, whether mscale_all_dim also sets the softmax scale in transformers 4.57.
    temperature_key: the rope key that makes the score grow with the position.

    Rope keys:

    rope_types: the types that the class accepts; empty for all.
    rope_type_names: names of types that only this class knows, each with the usual type.
    default_rope_type: the type that the class assumes without rope keys.
    default_rope_keys: rope keys by layer type that the class fills in if the config lacks them.
    rope_theta_key: the key of the base outside the rope keys; empty if the class does not read one.
    v4_default_rope_theta: the base that transformers 4.57 assumes if the config sets none.
    base_of_stated_keys: the default base by layer type when there are rope keys, if it differs from default_rope_theta.
    local_theta_key: the key of the base of sliding layers that have a separate table; empty if the class reads none.
    layer_base_key: a list with one base per layer, which ropetool does not decode.
    scaling_keys: the exact keys that rope_scaling must have, the type first; empty for any.
    scaling_defaults: keys that the class adds to a rope_scaling of type yarn.
    rope_scaling_reaches: the layer types that a rope_scaling changes. Empty: none. `stops`: the class raises an error.
      None: all layers of a family with one table, else the full-attention layers.
    scaling_by_release: the reason why ropetool adds no scaling to a config without one: releases of the remote code
      read its type from different keys. All of them read an existing scaling in the same way.
    no_scaling_stops: values of rope_scaling at which this class stops, though most classes read them as no scaling.
    shadows_type: a default rope_type hides the `type` of an older rope_scaling.
    stretch_key: a rope key. With `dynamic`, the class stretches the base by its number once, by NTK's formula.
    mscale_keys: two required rope keys of every scaled type: the factors on cos and sin within and beyond the original
      length. They replace the type's attention factor, and the class uses its table for short texts at all lengths.

    Limits of this description:

    needed: conditions on the config. If one fails, ropetool does not decode the file.
    beyond: boolean keys, each with its effect beyond the context, which ropetool reports but does not decode.
    trained_length: published contexts that differ from the trained length.
    in_v4: whether ropetool knows how transformers 4.57 reads the family.

    GGUF, other engines, origin:

    bake: the weights that can absorb a change of the rope keys.
    export: the tensor names and the metadata of a GGUF file. In JSON, a family name means that family's export.
    gguf_architecture: the architecture that `export` writes.
    gguf_architectures: architectures whose GGUF files have this family's weights and lengths. Each has one family.
    fixed: config keys of remote code, each with the values that llama.cpp or its converter assumes. With any other
      value, the converter would write a different model. null allows a missing key. Dots lead into objects and into all
      entries of lists.
    not_computed: how llama.cpp computes every such model incorrectly; `export` then refuses to run the converter.
    llama_cpp, vllm, sglang, mlx_lm, exllamav3: how each engine treats the family; None if this is unknown.
    source: the files that contain these facts.
    config_type: the model_type of the config.json, if it is a wrapper or an alias; set by of_config and find.
    live: read from the installed transformers in this process.
    remote: only remote code has this type.
    wrapped: the config of the text model is inside another config.
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
    local_theta_key: str = ""
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
    in_v4: bool = False
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
    config_type: str = field(default="", metadata={"not_in_file": True})
    live: bool = field(default=False, metadata={"not_in_file": True})
    remote: bool = field(default=False, metadata={"not_in_file": True})
    wrapped: bool = field(default=False, metadata={"not_in_file": True})

    @property
    def name(self) -> str:
        """The model_type in config.json."""
        return self.config_type or self.model_type

    @cached_property
    def own_name(self) -> bool:
        """Whether the config has this family's model_type. Engines choose a model file by it."""
        return not self.config_type

    @property
    def alone(self) -> bool:
        """Whether transformers has a class with a language-model head for the family, not only a multimodal wrapper."""
        return not self.architecture.endswith("ForConditionalGeneration")

    def gguf_name(self, tensor: str) -> str | None:
        """Return the GGUF name, below its layer, of a tensor that is named below the attention, or None."""
        if self.export is None or self.bake is None:
            return None
        attention = self.bake.layers[0].removeprefix(f"{self.export.prefix}{{layer}}.")
        return self.export.gguf_name(f"{attention}.{tensor}".replace("{head}", "{x}"))

    @property
    def has_kinds(self) -> bool:
        """Whether the family has several layer types, even if one table rotates all of them."""
        return bool(self.pattern is not None or self.default_kinds or self.unrotated_window_key)

    def one_key_for_all(self, config: Mapping[str, Any]) -> bool:
        """Return whether all heads share one key and value under this config."""
        shared, *others = self.one_key_head or ("",)
        return bool(shared) and bool(config.get(shared, True)) and not any(config.get(key) for key in others)

    def not_described(self, config: Mapping[str, Any]) -> str:
        """Return a sentence on the first key that breaks a condition in `needed`, or an empty string."""
        for place, needed in self.needed.items():
            value = at(config, place)
            if value not in needed.values:
                return f"{place} is {shown(value)}: {needed.why}"
        return ""

    def rope_group(self, layer_type: str) -> str:
        """Return the name of a layer type in rope_parameters."""
        return self.rope_groups.get(layer_type, layer_type)

    @cached_property
    def nested(self) -> bool:
        """Whether rope_parameters contains one object per layer type."""
        return bool(self.layer_types)

    @property
    def shared_default_theta(self) -> float | None:
        """The base that transformers 4 and 5 both assume if the config sets none, or None if they differ."""
        theta = self.default_rope_theta["full_attention"]
        return theta if theta == self.v4_default_rope_theta else None

    @property
    def has_local_base(self) -> bool:
        """Whether rope_local_base_freq sets the base of the sliding layers in the v4 style."""
        theta = self.default_rope_theta
        return self.nested and bool(self.local_theta_key) and theta["sliding_attention"] != theta["full_attention"]

    @property
    def rope_entries(self) -> tuple[str, ...]:
        """The layer types that have a table."""
        return self.layer_types or ("full_attention",)


def at(config: Mapping[str, Any], place: str) -> Any:
    """Return the value at a dotted path of a config, or None if a key is missing."""
    value: Any = config
    for key in place.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _faults(family: Family, file: str) -> Iterator[tuple[str, str]]:
    """Yield the inconsistencies between the parts of a family: the path of the field, and a sentence."""
    if f"{family.model_type}.json" != file.removeprefix(REMOTE):
        yield "model_type", f"{family.model_type!r} must be the name of the file without .json"
    for layer_type in family.rope_entries:
        if layer_type not in family.default_rope_theta:
            yield "default_rope_theta", f"does not set {layer_type!r}"
    for layer_type in family.extends:
        if layer_type not in family.rope_entries:
            yield "extends", f"{layer_type!r} is not one of {', '.join(family.rope_entries)}"
    for part, steps in _steps(family.bake):
        for number, step in enumerate(steps):
            if step.rows not in SELECTORS:
                yield f"bake.{part}[{number}].rows", f"{step.rows!r} is not a selector; known: {', '.join(SELECTORS)}"
    if bool(family.gguf_architecture) != (family.export is not None):
        yield "export", "gguf_architecture and export must be set together"
    if family.gguf_architectures and (family.export is None or family.bake is None):
        yield "gguf_architectures", "requires export and bake, which name the tensors of the file"
    if family.export is not None:
        yield from ((f"export.{place}", sentence) for place, sentence in faults(family.export))
        if family.gguf_architectures:
            for part, steps in _steps(family.bake):
                for number, step in enumerate(steps):
                    if part != "k_plain" and not family.gguf_name(step.tensor):
                        place = f"bake.{part}[{number}].tensor"
                        yield place, f"{step.tensor!r} is not a tensor of export.layer"


def _steps(bake: FoldSteps | None) -> Iterator[tuple[str, tuple[FoldStep, ...]]]:
    """Yield the fold steps whose tensors also exist in GGUF files."""
    if bake is not None:
        yield from (("q", bake.q), ("k", bake.k), ("k_plain", bake.k_plain), ("score", bake.score))


def read(text: str, file: str) -> Family:
    """Return the family that the text of a JSON file describes: the record of the same name, overlaid with the file's keys.

    Raises: ConfigError with the path of the field and the expected value.
    """
    data = parsed(text, file)
    if not file.startswith(REMOTE):
        data = {**records.rest(file.removesuffix(".json")), **data}
    if isinstance(data.get("export"), str):
        data |= _table_of(data["export"], file)
    family: Family = record(Family, data, file)
    for place, sentence in _faults(family, file):
        raise wrong(f"{file}: {place}", sentence)
    return dataclasses.replace(family, wrapped=bool(family.text_path))


def architecture_in(text: str, file: str) -> str:
    """Return the GGUF architecture from the text of a family's file, or from the family whose export it shares."""
    data = parsed(text, file)
    if isinstance(data.get("export"), str):
        data = _table_of(data["export"], file)
    return str(data.get("gguf_architecture", ""))


def _table_of(model_type: str, file: str) -> dict[str, Any]:
    """Return `export` and `gguf_architecture` from a different family's file."""
    other = resources.files(__package__).joinpath(f"{model_type}.json")
    if not other.is_file():
        raise wrong(f"{file}: export", f"{model_type!r} is not a family with a file")
    data = parsed(other.read_text(encoding="utf-8"), f"{model_type}.json")
    return {key: data.get(key, "") for key in ("export", "gguf_architecture")}
