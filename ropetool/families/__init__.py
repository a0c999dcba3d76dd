"""The model families: one JSON file each, named after its model_type, with all that ropetool knows of the family.

What a family says is what its code in transformers does; see docs/contributing.md for the checklist.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

from ropetool.errors import InvalidRope, UnknownFamily, did_you_mean
from ropetool.escaping import command
from ropetool.families import records
from ropetool.families.engines import Exllamav3, LlamaCpp, MlxLm, Sglang, Vllm
from ropetool.families.loading import parsed, record, wrong
from ropetool.families.rows import SELECTORS
from ropetool.families.tensors import Export, faults
from ropetool.families.wrappers import ALIASES, FLAT, PREFIXES, UNREAD, WRAPPERS, Wrapper

REMOTE = "remote/"  # the folder of families that only remote code has
Rotates = Literal["all", "no_rope_layers", "sliding", "sliding-if-any", "full", "none"]


@dataclass(frozen=True)
class TrainedLength:
    """A shipped max_position_embeddings that is not the length trained on."""

    max_position_embeddings: int
    trained: int
    reason: str


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
    kind_indices_key: a list of the full-attention layers' numbers instead. kind_numbers_key: a list with a number a layer,
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
    mscale_keys: the rope keys that every scaled type must state, the factors on cos and sin up to the length before scaling
    and beyond it, in place of the type's own; the table is then that of the shorter texts for all.
    shadows_type: a rope_type that is there by default shadows the `type` of an older rope_scaling. local_theta_key: the same of
    sliding layers with a table of their own; layer_base_key: a list with a base for each layer, which is not decoded.
    context_key, window_key: where the context and the window are stated; chunked: the
    window is a chunk of the text, within which layers attend. rope_types: the only ones that the class takes; empty: all.
    rope_type_names: what the class makes of a name that no other knows.
    default_rope_type: what it assumes without any rope keys. stretch_key: the rope key by whose number alone `dynamic`
    stretches the base, by NTK's formula and once for all lengths.
    rotates: which layers do: all, no_rope_layers (a list with 1 for those that do), sliding (these alone), sliding-if-any
    (these alone where there is a window), full (these alone: the others keep a state), or none. temperature_key: the rope
    key whose number lets the score
    grow with the position. in_v4: whether it is known how transformers 4.57 reads the family.
    interleave_key: the boolean key that, when false, makes the layout half.
    sliding_window: never, always, alternate (some layers, under one table), or the boolean key that switches it on.
    unrotated_window_key: the boolean key under which layers that do not rotate slide, others not, where the config
    lists no layer_types.
    mla: the softmax scale follows mscale_all_dim, the table belongs to the decoupled keys. off_key: the boolean key
    under which nothing rotates. bake: where weights can carry what the rope keys say. export: its tensors under both
    names, and what a GGUF file says of it. llama_cpp, vllm, sglang, mlx_lm, exllamav3: how each treats it; absent: that
    is not known. source: where all this was read. stated: the model_type of a config.json that hands over to this
    family, set only by of_config and find. live: it was read from the installed transformers in this process.
    wrapped: the config that states it is around that of a text model.
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
    mscale_keys: tuple[str, ...] = ()
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
    rotates_if: dict[str, str] = dataclasses.field(default_factory=dict)
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
    family: Family = record(Family, data, file)
    for place, sentence in _faults(family, file):
        raise wrong(f"{file}: {place}", sentence)
    return family


@cache
def _files() -> frozenset[str]:
    """Return the model types that have a file of their own."""
    entries = resources.files(__name__).iterdir()
    return frozenset(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json"))


@cache
def remote() -> tuple[str, ...]:
    """Return the model types that only remote code has, and that are read as it reads them, sorted."""
    entries = resources.files(__name__).joinpath(REMOTE).iterdir()
    return tuple(sorted(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")))


@cache
def _one(model_type: str) -> Family | None:
    """Return the family of this very model_type, from its file or from what is recorded of it."""
    for folder, known in (("", _files()), (REMOTE, remote())):
        if model_type in known:
            name = f"{folder}{model_type}.json"
            found = read(resources.files(__name__).joinpath(name).read_text(encoding="utf-8"), name)
            return dataclasses.replace(found, remote=bool(folder))
    try:
        family: Family = record(Family, records.facts(model_type), f"generated/{model_type}.json")
    except records.Undescribed:
        return None
    return family


_LIVE: dict[str, Family] = {}  # by model_type, of this process


def read_live(model_type: str) -> Family | None:
    """Return the family of a type that no data describes, as the installed transformers computes it; None if it has none.

    A tiny random model of it is built and probed, which takes seconds; the family is known from then on.
    Raises: UnknownFamily for a type that transformers has, with what is particular to it or why it cannot be read.
    """
    from ropetool.probing import records as probed

    if not probed.is_registered(model_type):
        return None
    try:
        found: Family = record(
            Family, records.described(probed.record(model_type), model_type), f"{model_type}, read live"
        )
    except (records.Undescribed, ImportError, MemoryError) as reason:
        raise UnknownFamily(
            f"the model family {model_type!r} is not served: read from the installed transformers, {reason}",
            try_="ropetool families",
        ) from None
    _LIVE[model_type] = dataclasses.replace(found, live=True)
    return _LIVE[model_type]


@cache
def _with_files() -> tuple[Family, ...]:
    found = tuple(family for family in map(_one, sorted(_files())) if family is not None)
    _check_claims(found)
    return found


def _check_claims(found: Iterable[Family]) -> None:
    """Refuse an architecture of GGUF files that two families say is theirs."""
    claimed: dict[str, str] = {}
    for family in found:
        for architecture in family.gguf_architectures:
            if architecture in claimed:
                sentence = f"{architecture!r} is that of {claimed[architecture]} already"
                raise wrong(f"{family.model_type}.json: gguf_architectures", sentence)
            claimed[architecture] = family.model_type


@cache
def _served() -> tuple[str, ...]:
    return tuple(
        sorted(
            name for name in {*_files(), *remote(), *records.names(), *records.text_types()} if _one(name) is not None
        )
    )


def names() -> list[str]:
    """Return the model_type of every known family, sorted."""
    return list(_served())


@cache
def handwritten() -> tuple[str, ...]:
    """Return the model types whose files state everything, sorted; the others are read from transformers' source."""
    folder = resources.files(__name__)
    texts = {name: folder.joinpath(f"{name}.json").read_text(encoding="utf-8") for name in _files()}
    return tuple(sorted(name for name, text in texts.items() if not parsed(text, f"{name}.json").get(records.REST)))


@cache
def exported() -> tuple[str, ...]:
    """Return the model types whose files list the tensors that an export writes, sorted."""
    return tuple(sorted(family.model_type for family in _with_files() if family.export is not None))


def wrapper_of(model_type: str) -> Wrapper | None:
    """Return what a config of this type is around another one, None for one that is not."""
    if model_type in WRAPPERS or _one(model_type) is not None:
        return WRAPPERS.get(model_type)
    return records.handing_over(model_type)


def find(model_type: str) -> Family | None:
    """Return the family of this model_type, or of what it is another name for, or None."""
    family = _LIVE.get(model_type) or _one(ALIASES.get(model_type, model_type))
    return dataclasses.replace(family, stated=model_type) if family and model_type in ALIASES else family


def of_config(config: Mapping[str, Any], where: str = "") -> Family:
    """Return the family of a config.json; for a wrapper that of its text model, with the place of the rope keys.

    Raises: UnknownFamily; InvalidRope where the wrapper's class would fill in what the text model leaves open.
    """
    model_type = config.get("model_type")
    stated = model_type if isinstance(model_type, str) else ""
    wrapper = wrapper_of(stated)
    if wrapper is None:
        return get(stated, where)
    try:
        family = get(text_type(config), where)  # a wrapper inside a wrapper has none
    except UnknownFamily as unknown:
        raise UnknownFamily(f"in its {wrapper.text}, {unknown.message}", where=where, try_=unknown.try_) from None
    inner = wrapper.inner(config)
    missing = next((keys for keys in wrapper.needs if not any(key in inner for key in keys.split())), None)
    if missing and inner:
        key = missing.split()[-1]
        raise InvalidRope(
            f"is not stated, and a {stated} fills it in with a number of its own",
            where=f"{where}: {wrapper.text}.{key}", try_=f"state {key} in {wrapper.text} of config.json",
        )  # fmt: skip
    flat = stated in FLAT and config.get(wrapper.text) is None
    return _inside(family, stated, wrapper, () if flat else wrapper.path)


def _inside(family: Family, stated: str, wrapper: Wrapper, path: tuple[str, ...]) -> Family:
    """Return the family as a wrapper holds it at this path."""
    bake = family.bake
    if bake is not None:
        own = [layers.removeprefix("model.") for layers in bake.layers if layers.startswith("model.")]
        bake = dataclasses.replace(bake, layers=tuple(prefix + layers for prefix in PREFIXES for layers in own))
    return dataclasses.replace(
        family, stated=stated, text_path=(*path, *family.text_path), in_v4=family.in_v4 and wrapper.in_v4, bake=bake,
        wrapped=True,
    )  # fmt: skip


def text_type(config: Mapping[str, Any]) -> str:
    """Return the model_type of the text model that a config.json describes, empty without one.

    Of a wrapper it is that of the model inside, with the switch that makes another model of it where one does.
    """
    model_type = config.get("model_type")
    stated = model_type if isinstance(model_type, str) else ""
    wrapper = wrapper_of(stated)
    if wrapper is None:
        return stated
    inner = wrapper.inner(config)
    within = wrapper.default if wrapper.fixed else inner.get("model_type") or wrapper.default
    if wrapper.switch and not inner.get(wrapper.switch, True):
        return f"{within} without {wrapper.switch}"
    return within if isinstance(within, str) else ""


def by_gguf_architecture() -> dict[str, Family]:
    """Return the family whose facts files of a GGUF architecture have, by architecture, sorted."""
    found = {name: family for family in _with_files() for name in family.gguf_architectures}
    return dict(sorted(found.items()))


def of_gguf(architecture: str) -> tuple[Family, ...]:
    """Return the families whose checkpoints become GGUF files of this architecture, the one of that very name first."""
    found = (family for family in _with_files() if family.gguf_architecture == architecture)
    return tuple(sorted(found, key=lambda family: family.model_type != architecture))


def nearest(model_type: str) -> str:
    """Return " (did you mean qwen2?)" where a type is near that has a family or hands over to one, else nothing."""
    return did_you_mean(model_type, sorted({*names(), *WRAPPERS, *ALIASES, *filter(wrapper_of, records.names())}))


def unread(model_type: str) -> str:
    """Return why a type that is known has no family; empty where it has one, or is not known either."""
    return UNREAD.get(model_type) or records.reason(model_type)


def get(model_type: str, where: str = "") -> Family:
    """Return the family of this model_type.

    Raises: UnknownFamily with the nearest known names and how to add one.
    """
    family = find(model_type)
    wrapper = wrapper_of(model_type)
    if wrapper is not None:
        text, default = wrapper.text, wrapper.default
        stated = f"the model_type in its {text} says which one it follows"
        stated += f", {default} where it states none" if default else ""
        raise UnknownFamily(
            f"{model_type} has no family of its own: "
            + (f"its {text} is that of a {default}, whatever model_type it states" if wrapper.fixed else stated),
            where=where, try_=command("ropetool", "families", default) if find(default) else "ropetool families",
        )  # fmt: skip
    if family is None:
        shown = model_type if len(model_type) <= 60 else f"{model_type[:57]}..."
        file = f"{model_type}.json" if model_type.isidentifier() and len(model_type) <= 60 else "MODEL_TYPE.json"
        particular, near = unread(model_type), nearest(model_type)
        meant = "write the model_type that was meant, or " if near else ""
        raise UnknownFamily(
            f"the model family {shown!r} is not served: {particular}"
            if particular
            else f"the model family {shown!r} is not known{near}; ropetool families lists those that are",
            where=where,
            try_="ropetool families"
            if particular
            else f"{meant}add ropetool/families/{file} after the checklist in docs/contributing.md",
        )
    return family
