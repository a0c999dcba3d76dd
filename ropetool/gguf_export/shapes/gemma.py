"""Gemma 2 and 3: norms that add one, embeddings that are scaled, layers that look back through a window.

Source: transformers 5.23.0, models/gemma2 and gemma3; src/models/gemma2.cpp and gemma3.cpp of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ropetool.files.gguf import Value, ValueType
from ropetool.gguf_export.shapes.base import ABSENT, NORM, OUTER, Family, Model
from ropetool.gguf_export.shapes.rows import Rows, attention, gated, head_norms, vector

NORMS: Rows = (
    vector("input_layernorm", "attn_norm", offset=1.0),
    vector("post_attention_layernorm", "post_attention_norm", offset=1.0),
    vector("pre_feedforward_layernorm", "ffn_norm", offset=1.0),
    vector("post_feedforward_layernorm", "post_ffw_norm", offset=1.0),
)
LARGEST = {"gemma2": 46, "gemma3": 62}  # layers of the 27B models, which llama.cpp knows by that number
ATTENTION_CAP, FINAL_CAP = "attn_logit_softcapping", "final_logit_softcapping"


def _check_score(model: Model) -> None:
    """Refuse a query_pre_attn_scalar that is not what llama.cpp divides by."""
    c, stated = model.counts, model.number("query_pre_attn_scalar", 256.0)
    divided = c["hidden"] // c["heads"] if c["layers"] == LARGEST[model.arch] else c["head_dim"]
    if stated != divided:
        raise model.lossy(
            f"query_pre_attn_scalar is {stated:g}; llama.cpp takes {divided} in a {model.arch} of this size"
        )


def _check_capped(model: Model) -> None:
    _check_score(model)
    for key in (ATTENTION_CAP, FINAL_CAP):
        if model.config.get(key, 0) is None:
            raise model.lossy(f"{key} is null; llama.cpp always caps the scores and logits of gemma2")


def _caps(model: Model) -> Mapping[str, Value]:
    caps = {ATTENTION_CAP: 50.0, FINAL_CAP: 30.0}
    return {key: Value.of(ValueType.F32, model.number(key, default)) for key, default in caps.items()}


def _final_cap(model: Model) -> Mapping[str, Value]:
    if not model.config.get(FINAL_CAP):
        return {}
    return {FINAL_CAP: Value.of(ValueType.F32, model.number(FINAL_CAP, 0.0))}


_GEMMA2 = Family(
    (*NORMS, *attention(), *gated()), outer=tuple(replace(row, offset=float(row.source == NORM)) for row in OUTER),
    kv_heads=4, tied=True, head=ABSENT, output_bias=False, activations=("gelu_pytorch_tanh",),
    activation_key="hidden_activation", fixed={"use_bidirectional_attention": (None, False)},
    more=_caps, check=_check_capped,
)  # fmt: skip
FAMILIES = {
    "gemma2": _GEMMA2,
    "gemma3_text": replace(
        _GEMMA2, layer=(*_GEMMA2.layer, *head_norms(offset=1.0)), head="optional", more=_final_cap, check=_check_score,
        fixed={**_GEMMA2.fixed, ATTENTION_CAP: (None,)},
    ),
}  # fmt: skip
