"""mlx-lm: raw configs. Each model file reads a few keys, and ignores all others.

Source: mlx_lm/models/rope_utils.py and the model files of the releases in RELEASES.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families.engines import MlxLm
from ropetool.files.hf.jsontext import shown
from ropetool.rope.formulas import dynamic_table, with_share
from ropetool.rope.tables import Array, LayerRope, Regime, RopeSet, RopeTable
from ropetool.runtimes import engine_formulas as engine
from ropetool.runtimes import mlx_files
from ropetool.runtimes.base import NotKnown, Refuses, Releases, checked_base
from ropetool.runtimes.hf_formulas import mscale_of

NAME = "mlx-lm"
FORMATS = ("hf",)
RELEASES = (Releases("0.30.7", "0.31.3"), Releases("0.32.0", "0.32.2"))
SUMMARY = "mlx-lm: reads rope_theta and rope_scaling as written; ignores attention_factor, truncate and short lists"

NEWER = (0, 32, 0)  # from here on, dynamic is a rope type, and qwen3 reads rope_parameters
THETA, SCALING, PARAMETERS = names.ROPE_THETA, names.ROPE_SCALING, names.ROPE_PARAMETERS
GEMMA3_LOCAL_BASE, GEMMA3_PATTERN, GEMMA3_WINDOW, GEMMA3_HEAD_DIM = 10000.0, 6, 512, 256
PHI3_LENGTH, PHI3_CONTEXT = 4096, 131072
YARN_LENGTH, LLAMA3_LENGTH = 4096, 8192  # tokens, if the config has no original length


def decode(view: HfCheckpoint, releases: Releases) -> RopeSet:
    """Return the tables that these releases of mlx-lm compute from a config.

    Raises: Refuses if the program stops with an error.
    """
    model = view.family.mlx_lm
    if model is None or not view.family.own_name:
        return mlx_files.decode(view, NAME, partial(table, first=releases.start))
    part = view.section
    theta, scaling = _base_and_scaling(part, model, releases.start)
    if not view.family.nested and names.SLIDING_ATTENTION in (part.get(names.LAYER_TYPES) or ()):
        raise NotKnown("no data on layer_types with sliding layers for this model")
    shape = engine.shape(view)
    context = int(part.get(names.MAX_POSITION_EMBEDDINGS, view.family.default_max_position_embeddings))
    if model.formula == "gemma3":
        entries = _gemma3(part, shape.entries[names.FULL_ATTENTION], theta, scaling, context, releases.start)
    else:
        entries = {}
        for layer_type, entry in shape.entries.items():
            windowed = entry if model.window else engine.without_window(entry, context)
            keys = scaling if layer_type == names.FULL_ATTENTION else None
            entries[layer_type] = _layer(part, windowed, theta, keys, context, model, releases.start)
    return RopeSet(entries, context, entries[names.FULL_ATTENTION].original_max_position_embeddings)


def _base_and_scaling(
    part: Mapping[str, Any], model: MlxLm, first: tuple[int, ...]
) -> tuple[float, Mapping[str, Any] | None]:
    """Return the base, and the scaling keys or None. first: the numbers of the first release.

    Raises: Refuses if a key that the model file requires is missing.
    """
    config = dict(part)
    if model.formula == "qwen3" and first >= NEWER and config.get(PARAMETERS):
        config[THETA] = config.get(THETA) or config[PARAMETERS].get(THETA)
        config[SCALING] = config.get(SCALING) or config[PARAMETERS]
    missing = [key for key in model.needs if config.get(key) is None]
    if missing:
        raise Refuses(f"TypeError: the model file needs {', '.join(missing)} at the top level of the config")
    theta = checked_base(config.get(THETA, model.base))
    scaling = config.get(SCALING) if model.scaling else None
    if model.formula == "phi3":
        scaling = scaling or None
    elif scaling is not None and not isinstance(scaling, Mapping):
        raise Refuses(f"AttributeError: {SCALING} {shown(scaling)} is not an object")
    return theta, scaling


def _layer(
    part: Mapping[str, Any],
    entry: LayerRope,
    theta: float,
    scaling: Mapping[str, Any] | None,
    context: int,
    model: MlxLm,
    first: tuple[int, ...],
) -> LayerRope:
    if model.formula == "phi3":
        return _phi3(part, entry, theta, scaling, context)
    if model.formula == "deepseek_v2":
        if scaling is None:
            raise Refuses("AttributeError: the model file needs rope_scaling at the top level of the config")
        scaling = {**scaling, names.ROPE_TYPE: "yarn", names.LEGACY_TYPE: "yarn"}  # for any type in the config
    keys = _typed(scaling, theta)
    changes: dict[str, Any] = {"layout": "interleaved"} if model.mla else {}
    if keys[names.ROPE_TYPE] == "longrope":
        changes["layout"] = "half"  # the class of longrope has only this layout
    if model.mla and scaling is not None:
        changes["softmax_multiplier"] = engine.softmax_multiplier(scaling)
    rotated = table(keys, engine.base_table(keys, entry.rotary_dim), part, context, first)
    return engine.filled(entry, keys, rotated, context, **changes)


def _typed(scaling: Mapping[str, Any] | None, theta: float) -> dict[str, Any]:
    """Return the keys with the base, and the type in rope_type. In mlx-lm `type` takes precedence."""
    keys = dict(scaling or {})
    rope_type = keys.pop(names.LEGACY_TYPE, None) or keys.get(names.ROPE_TYPE, "default")
    return {**keys, names.ROPE_TYPE: rope_type, THETA: theta}


def table(
    keys: Mapping[str, Any], base: Array, part: Mapping[str, Any], context: int, first: tuple[int, ...]
) -> RopeTable:
    """Return the table of a layer type. Source: initialize_rope.

    first: the numbers of the first release.
    Raises: Refuses if the program stops with an error; NotKnown.
    """
    rope_type = keys[names.ROPE_TYPE]
    if rope_type == "default":
        return RopeTable.fixed(base)
    if rope_type == "linear":
        return RopeTable.fixed(base / engine.number(keys, names.FACTOR))
    if rope_type == "dynamic" and first >= NEWER:
        return dynamic_table(base, context, engine.number(keys, names.FACTOR))
    if rope_type == "llama3":
        length = int(engine.number(keys, names.ORIGINAL_MAX_POSITION_EMBEDDINGS, LLAMA3_LENGTH))
        return engine.llama3_table(keys, base, length, low_freq_factor=1.0, high_freq_factor=4.0)
    if rope_type in ("yarn", "deepseek_yarn"):
        return _yarn(keys, base)
    if rope_type == "longrope":
        if names.MAX_POSITION_EMBEDDINGS not in part:
            raise NotKnown("no data on longrope without max_position_embeddings")
        length = int(engine.number(keys, names.ORIGINAL_MAX_POSITION_EMBEDDINGS))
        return _longrope(keys, base, context, length)
    if rope_type == "proportional":
        return _proportional(keys, base)
    raise Refuses(f"ValueError: Unsupported RoPE type {rope_type}")


def _proportional(keys: Mapping[str, Any], base: Array) -> RopeTable:
    """Return the table of a head in which only a share of the pairs rotates."""
    turning = with_share(base, engine.number(keys, names.PARTIAL_ROTARY_FACTOR, 1.0))
    return RopeTable.fixed(turning / engine.number(keys, names.FACTOR, 1.0))


def _yarn(keys: Mapping[str, Any], base: Array) -> RopeTable:
    factor = engine.number(keys, names.FACTOR)
    length = int(engine.number(keys, names.ORIGINAL_MAX_POSITION_EMBEDDINGS, YARN_LENGTH))
    magnitude = mscale_of(factor, engine.number(keys, names.MSCALE, 1.0))
    magnitude /= mscale_of(factor, engine.number(keys, names.MSCALE_ALL_DIM, 0.0))
    return RopeTable.fixed(engine.yarn_inv_freq(keys, base, factor, length), magnitude)


def _longrope(keys: Mapping[str, Any], base: Array, context: int, length: int) -> RopeTable:
    """Return the long list, because mlx-lm uses it for every length."""
    return RopeTable((Regime(engine.divided(base, keys, names.LONG_FACTOR), engine.longrope_scale(context, length)),))


def _phi3(
    part: Mapping[str, Any], entry: LayerRope, theta: float, scaling: Mapping[str, Any] | None, context: int
) -> LayerRope:
    """Return the entry of phi3: it only reads `type`, and reads the original length from the top of the config."""
    keys = _typed(scaling, theta)
    base = engine.base_table(keys, entry.rotary_dim)
    if not scaling:
        return engine.filled(entry, keys, RopeTable.fixed(base), context)
    if names.LEGACY_TYPE not in scaling or names.LONG_FACTOR not in scaling:
        raise Refuses("ValueError: rope_scaling must contain long_factor and type")
    if keys[names.ROPE_TYPE] not in ("longrope", "su"):
        raise NotKnown(f"no data on phi3 with {keys[names.ROPE_TYPE]} and long_factor")
    length = int(part.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS, PHI3_LENGTH))
    keys = {**keys, names.ROPE_TYPE: "longrope", names.ORIGINAL_MAX_POSITION_EMBEDDINGS: length}
    if names.SHORT_FACTOR not in keys:
        raise Refuses("KeyError: short_factor")
    longest = int(part.get(names.MAX_POSITION_EMBEDDINGS, PHI3_CONTEXT))
    return engine.filled(entry, keys, _longrope(keys, base, longest, length), context)


def _gemma3(
    part: Mapping[str, Any],
    entry: LayerRope,
    theta: float,
    scaling: Mapping[str, Any] | None,
    context: int,
    first: tuple[int, ...],
) -> dict[str, LayerRope]:
    """Return the two layer types of gemma3. They follow the pattern, and layer_types has no effect."""
    if part.get(names.HEAD_DIM, GEMMA3_HEAD_DIM) != entry.head_dim:
        raise NotKnown(f"no data on gemma3 with head_dim {entry.head_dim}; mlx-lm's default is {GEMMA3_HEAD_DIM}")
    count = int(part.get(names.NUM_HIDDEN_LAYERS) or 0)
    pattern = int(part.get(names.SLIDING_WINDOW_PATTERN, GEMMA3_PATTERN))
    full = tuple(i for i in range(count) if (i + 1) % pattern == 0)
    local = {names.ROPE_TYPE: "default", THETA: float(part.get(names.ROPE_LOCAL_BASE_FREQ, GEMMA3_LOCAL_BASE))}
    keys = _typed(scaling, theta)
    rotated = table(keys, engine.base_table(keys, entry.rotary_dim), part, context, first)
    sliding = RopeTable.fixed(engine.base_table(local, entry.rotary_dim))
    return {
        names.FULL_ATTENTION: engine.filled(entry, keys, rotated, context, layers=full, sliding_window=None),
        names.SLIDING_ATTENTION: engine.filled(
            entry, local, sliding, context, layers=tuple(i for i in range(count) if i not in full),
            sliding_window=int(part.get(names.SLIDING_WINDOW, GEMMA3_WINDOW)),
        ),
    }  # fmt: skip
