"""The tables of docs/families.md, and of docs/export.md on what exported files can hold."""

from __future__ import annotations

from typing import Any

import export_grid

from ropetool import families, names, runtimes
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families.family import Family
from ropetool.families.wrappers import ALIASES
from ropetool.report.family_details import wrappers_around
from ropetool.runtimes.decoded import decoded

HEAD = (
    "family",
    "other model types",
    "rotation",
    "GGUF architecture",
    "export",
    "import",
    "bake",
    "runtimes besides transformers",
)
HELD = ("families", "unextended", *export_grid.CELLS)
ROTATES = {
    "no_rope_layers": "some layers", "sliding": "sliding layers only", "sliding-if-any": "sliding layers only",
    "full": "full layers only",
}  # fmt: skip
LARGE = {
    names.HIDDEN_SIZE: 4096,
    names.NUM_ATTENTION_HEADS: 32,
    names.NUM_KEY_VALUE_HEADS: 32,
    names.NUM_HIDDEN_LAYERS: 32,
}


def rows() -> list[list[str]]:
    """Return a row for each family."""
    return [_row(families.get(name)) for name in families.names()]


def _row(family: Family) -> list[str]:
    others = sorted({*(name for name, known in ALIASES.items() if known == family.model_type),
                     *wrappers_around(family.model_type)})  # fmt: skip
    exported = family.export is not None
    return [
        family.model_type, ", ".join(others), _rotation(family), family.gguf_architecture or "-",
        _yes(exported), _yes(exported and family.alone), _yes(family.bake is not None and not family.bake.refused),
        ", ".join(_runtimes(family)) or "-",
    ]  # fmt: skip


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _rotation(family: Family) -> str:
    """Return the layout of the pairs and what is special about the rotation."""
    if family.rotates == "none":
        return "does not rotate"
    parts = [
        family.layout,
        *(["a table per layer type"] if family.nested else []),
        *(["a part of each head"] if family.partial_rotary_key else []),
        *(["MLA"] if family.mla else []),
        *([ROTATES[family.rotates]] if family.rotates != "all" else []),
    ]
    return ", ".join(parts)


def _runtimes(family: Family) -> list[str]:
    """Return the runtimes of which at least one release runs an unscaled config of the family, as ropetool decodes it."""
    view = HfCheckpoint(_config(family), family)
    engines = [name for name in runtimes.names() if "hf" in runtimes.get(name).formats and name != "transformers"]
    return [
        name for name in engines if any(decoded(one.name, view).rope is not None for one in runtimes.all_of(name))
    ]  # fmt: skip


def _config(family: Family) -> dict[str, Any]:
    """Return an unscaled config with the sizes of the class, or large ones."""
    by_type = {
        kind: {names.ROPE_TYPE: "default", names.ROPE_THETA: base} for kind, base in family.default_rope_theta.items()
    }
    config: dict[str, Any] = {
        family.size_keys.get(key, key): size for key, size in {**LARGE, **family.default_sizes}.items()
    }
    config[family.context_key] = family.default_max_position_embeddings
    if family.nested:
        config[names.ROPE_PARAMETERS] = {family.rope_group(kind): keys for kind, keys in by_type.items()}
    else:
        config[names.ROPE_THETA] = by_type[names.FULL_ATTENTION][names.ROPE_THETA]
        if not family.in_v4 and not family.remote:
            config[names.ROPE_PARAMETERS] = by_type[names.FULL_ATTENTION]
    if family.head_dim_key:
        config.setdefault(family.head_dim_key, family.default_head_dim or 128)
    if family.partial_rotary_key and not family.remote:
        config[family.partial_rotary_key] = min(family.default_partial_rotary_factor, 0.5)
    for place, needed in family.needed.items():
        _set(config, place, needed.values[0])
    for key in reversed(family.text_path):
        config = {key: config}
    return {names.MODEL_TYPE: family.model_type, names.ARCHITECTURES: [family.architecture], **config}


def _set(config: dict[str, Any], place: str, value: Any) -> None:
    *way, last = place.split(".")
    for key in way:
        config = config.setdefault(key, {})
    if value is not None:
        config[last] = value


def held() -> list[list[str]]:
    """Return a row for each set of families whose exported files can hold the same scaling."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, (_, cells) in export_grid.grid().items():
        alike.setdefault(tuple(cells), []).append(name)
    return [
        [", ".join(found), "exact", *cells] for cells, found in sorted(alike.items(), key=lambda item: -len(item[1]))
    ]
