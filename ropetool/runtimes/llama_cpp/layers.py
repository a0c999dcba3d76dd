"""The keys of a model as llama.cpp's loader reads them: its layers, and the sizes of its heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint, type_problem
from ropetool.errors import InvalidRope
from ropetool.files.gguf import ValueType
from ropetool.rope.tables import is_number
from ropetool.runtimes.base import Refuses
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp.architectures import Architecture

MAX_CHANNELS = 2**16  # of a head; the largest known have 576
UNROTATED = "_without_rotation"  # the end of a layer type's name for its layers that do not rotate, if others do


def value_of(view: GgufCheckpoint, key: str, type_: ValueType) -> Any:
    """Return the decoded value of a key, or None if the key is missing.

    Raises: Refuses if the value has a different type, because llama.cpp does not convert types.
    """
    value = view.values.get(key)
    if value is None:
        return None
    problem = type_problem(key, value, type_)
    if problem:
        raise Refuses(problem)
    return value.decode()


@dataclass(frozen=True)
class ModelKeys:
    """The keys of one model with their types. Callers name a key without the architecture in front."""

    view: GgufCheckpoint
    arch: Architecture

    @classmethod
    def of(cls, view: GgufCheckpoint) -> ModelKeys:
        """Return the keys of a model. Raises: Refuses if its architecture is unknown or a key has a wrong type."""
        model = cls(view, archs.get(str(value_of(view, archs.ARCHITECTURE, ValueType.STR) or "")))
        for suffix in archs.ALWAYS_LOADED:
            model.get(suffix)
        return model

    def key(self, suffix: str) -> str:
        return f"{self.arch.name}.{suffix}"

    def where(self, suffix: str) -> str:
        return f"{self.view.where}: {self.key(suffix)}"

    def get(self, suffix: str, default: Any = None) -> Any:
        value = value_of(self.view, self.key(suffix), archs.TYPES[suffix])
        return default if value is None else value

    def need(self, suffix: str) -> Any:
        value = self.get(suffix)
        if value is None:
            raise Refuses(f"key not found in model: {self.key(suffix)}")
        return value

    def scalar(self, suffix: str) -> Any:
        """Return the value, or None if the key is missing, an array, or of a type that llama.cpp does not read."""
        value = self.view.values.get(self.key(suffix))
        return value.decode() if value is not None and value.type is archs.TYPES.get(suffix) else None

    def number(self, suffix: str, default: float, least: float = 0.0) -> float:
        """Return a finite number not below `least`. Raises: InvalidRope."""
        value = self.get(suffix, default)
        if not is_number(value) or value < least:
            raise InvalidRope(f"is {value}; it must be a number of at least {least:g}", where=self.where(suffix))
        return float(value)

    def number_if_read(self, suffix: str, default: float) -> float:
        """Return a number that only some architectures read, and the default if this one does not."""
        return self.number(suffix, default) if suffix in self.arch.keys else default

    def listed(self, suffix: str) -> list[int] | None:
        """Return an array with a number for each layer, or None if the key is missing or not an array.

        Raises: Refuses.
        """
        value = self.view.values.get(self.key(suffix))
        if value is None or value.type is not ValueType.ARR:
            return None
        if value.element not in (ValueType.U32, ValueType.I32, ValueType.BOOL):
            raise Refuses(f"{self.key(suffix)} has wrong array element type {value.label.removeprefix('arr of ')}")
        if value.count > archs.MAX_LAYERS:
            raise Refuses(f"array length {value.count} for key {self.key(suffix)} exceeds max {archs.MAX_LAYERS}")
        return [int(number) for number in value_of(self.view, self.key(suffix), ValueType.ARR)]

    def per_layer(self, suffix: str, layer: int) -> int | None:
        """Return a layer's number from a key with one number for all layers, or an array."""
        listed = self.listed(suffix)
        if listed is None:
            number: int | None = self.get(suffix)
            return number
        return listed[layer] if layer < len(listed) else 0


# --- layers


def layer_types(model: ModelKeys) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Return the layers of each layer type, and whether they rotate. Raises: Refuses if llama.cpp aborts."""
    count = layer_count(model)
    attending = [layer for layer in range(count) if not recurs(model, layer)]
    sliding = sliding_layers(model, count)
    if window_of(model) and not sliding and model.arch.name not in archs.WITHOUT_SLIDING_CACHE:
        raise Refuses(
            f"{model.key(archs.SLIDING_WINDOW)} is {window_of(model)}, but no layer slides: llama.cpp aborts the process"
        )
    by_type: dict[str, tuple[tuple[int, ...], bool]] = {}
    for layer_type in (names.FULL_ATTENTION, names.SLIDING_ATTENTION):
        layers = [layer for layer in attending if (layer in sliding) == (layer_type == names.SLIDING_ATTENTION)]
        turning = tuple(layer for layer in layers if _rotates(model, layer, sliding))
        still = tuple(layer for layer in layers if layer not in turning)
        if turning:
            by_type[layer_type] = turning, True
        if still:
            by_type[layer_type + UNROTATED if turning else layer_type] = still, False
    return by_type


def layer_count(model: ModelKeys) -> int:
    """Return the number of layers, without the layers that only draft tokens. Raises: Refuses."""
    blocks, drafts = int(model.need(archs.BLOCK_COUNT)), int(model.get(archs.NEXTN_LAYERS, 0))
    if not 0 < blocks <= archs.MAX_LAYERS or drafts > blocks:
        raise Refuses(
            f"{model.key(archs.BLOCK_COUNT)} is {blocks}; llama.cpp aborts unless it is 1 to {archs.MAX_LAYERS}"
        )
    return blocks - drafts


def recurs(model: ModelKeys, layer: int) -> bool:
    """Return whether the layer keeps a state and does not attend."""
    name = model.arch.name
    if name in archs.RECURRENT_WITHOUT_HEADS:
        heads = model.per_layer(archs.HEAD_COUNT_KV, layer)
        return (model.per_layer(archs.HEAD_COUNT, layer) if heads is None else heads) == 0
    if name not in archs.RECURRENT_BY_INTERVAL:
        return False
    flag = model.per_layer(archs.RECURRENT_LAYERS, layer)
    if flag is not None:
        return flag != 0
    interval = int(model.get(archs.ATTENTION_INTERVAL, archs.RECURRENT_BY_INTERVAL[name]))
    return interval == 0 or (layer + 1) % interval != 0


def window_of(model: ModelKeys) -> int:
    """Return the window of sliding layers in tokens, or 0 without sliding layers. Raises: Refuses."""
    rules = model.arch.sliding
    if rules is None or rules.layer_count not in (None, layer_count(model)):
        return 0
    window = model.need(archs.SLIDING_WINDOW) if rules.required else model.get(archs.SLIDING_WINDOW, rules.default)
    if rules.chunked and not window:
        raise Refuses(f"{model.key(archs.SLIDING_WINDOW)} is 0: llama.cpp aborts the whole process")
    return rules.fixed if window and rules.fixed else int(window)


def sliding_layers(model: ModelKeys, count: int) -> frozenset[int]:
    """Return which of the first `count` layers slide."""
    rules = model.arch.sliding
    if rules is None or not window_of(model):
        return frozenset()
    if rules.uncompressed:
        return _uncompressed(model, count)
    if archs.SLIDING_WINDOW_PATTERN not in model.arch.keys:
        return frozenset(range(count))
    listed = model.listed(archs.SLIDING_WINDOW_PATTERN)
    if listed is not None:
        return frozenset(layer for layer, slides in enumerate(listed[:count]) if slides)
    if rules.pattern is None:
        raise Refuses(f"array key not found in model: {model.key(archs.SLIDING_WINDOW_PATTERN)}")
    step = int(model.get(archs.SLIDING_WINDOW_PATTERN, rules.pattern))
    full = 0 if rules.dense_first else step - 1
    return frozenset(layer for layer in range(count) if step == 0 or layer % step != full)


def _uncompressed(model: ModelKeys, count: int) -> frozenset[int]:
    ratios = model.listed(archs.COMPRESS_RATIOS)
    if ratios is None:
        raise Refuses(f"array key not found in model: {model.key(archs.COMPRESS_RATIOS)}")
    if len(ratios) < model.need(archs.BLOCK_COUNT):
        raise Refuses(f"{model.key(archs.COMPRESS_RATIOS)} is shorter than block_count")
    return frozenset(layer for layer, ratio in enumerate(ratios[:count]) if ratio == 0)


def _rotates(model: ModelKeys, layer: int, sliding: frozenset[int]) -> bool:
    arch, window = model.arch, window_of(model)
    if arch.layer_count not in (None, layer_count(model)):
        return False
    if arch.rotating == "step":
        return (layer + 1) % 4 != 0
    if arch.rotating == "sliding step":
        # With 4 layers, the step equals the number of layers, and llama.cpp rotates all layers (smallthinker.cpp:106).
        return not window or layer % 4 != 0 or layer_count(model) == 4
    if arch.rotating == "sliding":
        return not window or layer in sliding
    if arch.rotating == "sliding or dense":
        return layer in sliding or layer < model.need(archs.LEADING_DENSE)
    if archs.ROPE_PATTERN in arch.keys:
        listed = model.listed(archs.ROPE_PATTERN)
        return listed is None or layer >= len(listed) or listed[layer] != 0
    return archs.FINETUNED not in arch.keys or bool(model.get(archs.FINETUNED, True))


def learned_positions(view: GgufCheckpoint) -> bool:
    """Return whether the model has a vector for each position, so that no position exceeds its context length."""
    return view.name in archs.LEARNED_POSITIONS or (
        view.name in archs.WITHOUT_ROTATION and archs.POSITION_EMBEDDINGS in view.tensors
    )


def loses_factor(model: ModelKeys) -> bool:
    """Return whether no factor on cos and sin reaches the scores."""
    name = model.arch.name
    if name in archs.WITHOUT_FACTOR:
        return True
    return model.arch.norm_after and (model.get(archs.EXPERT_COUNT) or 0) != archs.NORM_UNLESS_EXPERTS.get(name, -1)


# --- heads


def image_sections(model: ModelKeys) -> list[int]:
    """Return the number of pairs for each of an image's four positions; empty if all pairs rotate by one position."""
    sections = (model.listed(archs.DIMENSION_SECTIONS) if archs.DIMENSION_SECTIONS in model.arch.keys else None) or []
    return sections if len(sections) == 4 and min(sections[:2]) > 0 else []


def head_dim(model: ModelKeys, sliding: bool = False) -> int:
    """Return the channels of a query head, or 0 in a model without attention.

    Raises: Refuses for an impossible number.
    """
    heads = model.per_layer(archs.HEAD_COUNT, 0)
    if not heads:
        return 0
    channels = model.get(archs.KEY_LENGTH, model.need(archs.EMBEDDING_LENGTH) // heads)
    rules = model.arch.sliding
    sliding = sliding or (rules is not None and rules.uncompressed)
    channels = model.get(archs.KEY_LENGTH_SWA, channels) if sliding else channels
    return _bounded(channels)


def value_dim(model: ModelKeys, sliding: bool = False) -> int:
    """Return the cached channels of a value head, or 0 if MLA computes the values from the keys.

    Raises: Refuses for an impossible number.
    """
    heads = model.per_layer(archs.HEAD_COUNT, 0)
    latent = (archs.KEY_LENGTH_MLA, archs.VALUE_LENGTH_MLA)
    if not heads or (model.arch.name in archs.READS_MLA_LENGTHS and all(model.get(suffix) for suffix in latent)):
        return 0
    channels = model.get(archs.VALUE_LENGTH, model.need(archs.EMBEDDING_LENGTH) // heads)
    channels = model.get(archs.VALUE_LENGTH_SWA, channels) if sliding else channels
    return _bounded(channels)


def _bounded(channels: int) -> int:
    if channels > MAX_CHANNELS:
        raise Refuses(f"a head has {channels} channels; at most {MAX_CHANNELS} are supported")
    return int(channels)


def rotary_dim(model: ModelKeys, sliding: bool) -> int:
    """Return the number of rotating channels of a head. Most graphs use the number of layer 0 for all layers.

    Raises: Refuses if loading or the graph would fail because of the number.
    """
    whole = head_dim(model)
    if whole == 0 and model.per_layer(archs.HEAD_COUNT, 0):
        raise Refuses(
            f"a head has 0 channels by {model.key(archs.EMBEDDING_LENGTH)}, {model.key(archs.HEAD_COUNT)} and "
            f"{model.key(archs.KEY_LENGTH)}: there is nothing to rotate"
        )
    if whole == 0:
        raise Refuses(f"{model.key(archs.HEAD_COUNT)} is missing or 0: there are no heads to rotate")
    rules = model.arch.sliding
    if rules is not None and rules.uncompressed:
        sliding = True  # the loader treats all its layers as sliding
    elif rules is not None and not (rules.own_dims and (sliding or not rules.first_dims)):
        sliding = 0 in sliding_layers(model, 1)
    channels = whole if model.arch.name in archs.OF_EMBEDDING else model.get(archs.DIMENSION_COUNT, whole)
    if model.arch.whole_heads and channels != whole:
        raise Refuses(f"invalid n_rot: {channels}, expected {whole} ({model.key(archs.DIMENSION_COUNT)})")
    if model.arch.name in archs.HALVED and not sliding:
        channels //= 2
    channels = model.get(archs.DIMENSION_COUNT_SWA, channels) if sliding else channels
    if not 0 < channels <= MAX_CHANNELS or channels % 2:
        raise Refuses(
            f"{model.key(archs.DIMENSION_COUNT)} is {channels}; it must be an even number from 2 to {MAX_CHANNELS}"
        )
    return int(channels)


def divided_channels(model: ModelKeys) -> int:
    """Return the number of channels that a frequency vector covers."""
    if model.arch.name in archs.FREQS_OF_HEADS:
        return head_dim(model)
    if model.arch.name not in archs.FREQS_ON_FULL_LAYERS:
        return rotary_dim(model, False)
    sliding = sliding_layers(model, layer_count(model))
    return max(rotary_dim(model, False), rotary_dim(model, True) if sliding else 0)
