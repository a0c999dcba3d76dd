"""Tiny configs and GGUF shapes of a plain family, made from its own file, so that no table of the tests needs an entry.

For families whose layers are alike and dense; what is particular to others (layer types, experts, MLA) stands in the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool import families
from ropetool.families.family import Family
from ropetool.families.tensors import COMMON, Export, Row, derived


def is_plain(family: Family) -> bool:
    """Return whether its file says enough to make a tiny model from."""
    odd = family.layer_types or family.text_path or family.mla or family.pattern or family.rotates != "all"
    programmed = family.export is not None and (family.export.counts or family.export.rules)
    return not odd and family.sliding_window in ("never", "always") and not programmed


def others(known: Mapping[str, Any], *, exported: bool = False, baked: bool = False) -> list[str]:
    """Return the plain families that a table of the tests has no entry for, those that are exported or baked alone."""
    names = families.exported() if exported else families.baked()
    found = (families.get(name) for name in names if name not in known)
    return [
        family.model_type
        for family in found
        if is_plain(family) and not (baked and (family.bake is None or family.bake.refused))
    ]


def config(name: str, sizes: Mapping[str, Any], *, head_dim: int = 32, share: float = 0.5) -> dict[str, Any]:
    """Return a config of these sizes, with biases and norms that are optional, and the values that llama.cpp takes.

    Where a part of each head rotates, the hidden size is such that the heads have 2 x head_dim channels. The rope keys
    are left to the caller, but for what `rope_keys` says.
    """
    family = families.get(name)
    made: dict[str, Any] = {**sizes, "tie_word_embeddings": False}
    wide = head_dim * (2 if family.partial_rotary_key else 1)
    if family.default_head_dim is not None or family.null_head_dim:
        made[family.head_dim_key] = wide
    if family.default_head_dim is None or (family.export is not None and family.export.square):
        made["hidden_size"] = wide * sizes["num_attention_heads"]
    if family.sliding_window == "always":
        made["sliding_window"] = None
    if family.export is not None:
        made |= dict.fromkeys(family.export.switches, True)
        made |= {key: values[0] for key, values in family.export.fixed.items() if values[0] is not None}
        made |= {one.number: one.default or 1.0 for one in family.export.keys.values() if one.number}
        made["tie_word_embeddings"] = family.export.head == "absent"
        if not family.export.grouped:
            made.pop("num_key_value_heads")
    return made


def rope_keys(name: str, share: float = 0.5) -> dict[str, Any]:
    """Return the rope keys that a family has beside the base and the scaling."""
    return {"partial_rotary_factor": share} if families.get(name).partial_rotary_key else {}


# --- GGUF


def gguf_keys(name: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the keys of a GGUF file of this family, below its architecture's name, beside the common ones."""
    table = _table(name)
    found: dict[str, Any] = {key: counts[size] for key, size in table.sizes.items()}
    found |= {"attention.key_length": counts["head_dim"], "attention.value_length": counts["head_dim"]}
    found |= {"rope.dimension_count": counts["rotary_dim"], "attention.head_count_kv": counts["kv_heads"]}
    found |= {key: one.default or 1.0 for key, one in table.keys.items() if one.number and not one.optional}
    found |= {key: True for key, one in table.keys.items() if one.switch}
    return found | ({"attention.layer_norm_epsilon": table.eps} if table.norms == "layer" else {})


def gguf_shapes(name: str, counts: Mapping[str, int]) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Return the shapes of a layer's tensors, rows first, and of those beside the layers, all optional ones included."""
    table = _table(name)
    known = derived(table.derived, counts)
    return _shapes(table.layer, known), _shapes(table.outer, known)


def key_tensors(name: str) -> set[str]:
    """Return the tensors of a layer in a GGUF file that a factor on the keys goes into."""
    family, table = families.get(name), _table(name)
    assert family.bake is not None
    last = family.gguf_name(family.bake.k[-1].tensor)
    return {row.gguf for row in table.layer if row.gguf in (f"{last}.weight", f"{last}.bias")}


def _shapes(rows: tuple[Row, ...], counts: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    found = {}
    for row in rows:
        if not row.when.startswith("not "):
            shape = tuple(counts[size] for size in (row.written or row.shape).split())
            found[row.gguf] = (counts[row.many], *shape) if row.many else shape
    return found


def common(
    name: str, *, layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, inner: int, vocabulary: int
) -> dict[str, int]:
    """Return the sizes that every model has, by the names that the rows of families give them; half of a head rotates
    where a part does."""
    rotary_dim = head_dim // 2 if rope_keys(name) else head_dim
    kv_heads = kv_heads if _table(name).grouped else heads
    found = {
        "layers": layers, "hidden": hidden, "heads": heads, "intermediate": inner, "kv_heads": kv_heads,
        "vocabulary": vocabulary, "head_dim": head_dim, "rotary_dim": rotary_dim, "queries": heads * head_dim,
        "keys": kv_heads * head_dim, "one": 1, "twice": 2 * inner,
    }  # fmt: skip
    assert found.keys() == {*COMMON}
    return found


def _table(name: str) -> Export:
    table = families.get(name).export
    assert table is not None
    return table
