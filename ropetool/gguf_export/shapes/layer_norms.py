"""Families whose norms take the mean away, most of them with biases.

Source: transformers 5.23.0, models/starcoder2, stablelm, gpt_neox, cohere; src/models/*.cpp of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ropetool.files.gguf import Value, ValueType
from ropetool.gguf_export.shapes.base import ABSENT, LAYER_EPS, OUTER, REQUIRED, Family, Model
from ropetool.gguf_export.shapes.orders import sides
from ropetool.gguf_export.shapes.rows import ALWAYS, Row, Rows, affine, attention, gated, linear, vector

AFFINE_OUTER: Rows = (*OUTER, Row("model.norm.bias", "output_norm.bias", "hidden"))
LOGIT_SCALE = 0.0625
WITH_NORMS = 64  # layers from which on llama.cpp looks for norms of queries and keys in a command-r


def _parallel(model: Model) -> Mapping[str, Value]:
    return {"use_parallel_residual": Value.of(ValueType.BOOL, model.switches["parallel"])}


def _logit_scale(model: Model) -> Mapping[str, Value]:
    return {"logit_scale": Value.of(ValueType.F32, model.number("logit_scale", LOGIT_SCALE))}


def _check_cohere(model: Model) -> None:
    model.need_nonzero("logit_scale", LOGIT_SCALE)
    if model.switches["qk_norm"] != (model.layers >= WITH_NORMS):
        raise model.lossy(
            f"use_qk_norm is {str(model.switches['qk_norm']).lower()}; llama.cpp takes a command-r of {model.layers} layers "
            f"to have these norms from {WITH_NORMS} layers on, and only then"
        )


STARCODER2 = Family(
    (
        *affine("input_layernorm", "attn_norm"), *affine("post_attention_layernorm", "ffn_norm"),
        *attention(ALWAYS, ALWAYS), *linear("mlp.c_fc", "ffn_up", "intermediate", "hidden", ALWAYS),
        *linear("mlp.c_proj", "ffn_down", "hidden", "intermediate", ALWAYS),
    ),
    outer=AFFINE_OUTER, kv_heads=2, eps=1e-5, eps_key="norm_epsilon", eps_name=LAYER_EPS, tied=True, square=True,
    activations=("gelu_pytorch_tanh",), fixed={"use_bias": (True,)},
)  # fmt: skip
STABLELM = Family(
    (
        *affine("input_layernorm", "attn_norm"), *affine("post_attention_layernorm", "ffn_norm", "not parallel"),
        *attention("qkv_bias"),
        Row("self_attn.q_layernorm.norms.{x}.weight", "attn_q_norm.weight", "head_dim", "qk_norm", many="heads"),
        Row("self_attn.k_layernorm.norms.{x}.weight", "attn_k_norm.weight", "head_dim", "qk_norm", many="kv_heads"),
        *gated(),
    ),
    outer=AFFINE_OUTER, kv_heads=32, eps=1e-5, eps_key="layer_norm_eps", eps_name=LAYER_EPS, head=REQUIRED, square=True,
    switches={
        "qkv_bias": ("use_qkv_bias", False), "qk_norm": ("qk_layernorm", False),
        "parallel": ("use_parallel_residual", False),
    },
    more=_parallel,
)  # fmt: skip
GPT_NEOX = Family(
    (
        *affine("input_layernorm", "attn_norm"), *affine("post_attention_layernorm", "ffn_norm"),
        *(replace(row, order=sides) for row in linear("attention.query_key_value", "attn_qkv", "all", "hidden", ALWAYS)),
        *linear("attention.dense", "attn_output", "hidden", "hidden", ALWAYS),
        *linear("mlp.dense_h_to_4h", "ffn_up", "intermediate", "hidden", ALWAYS),
        *linear("mlp.dense_4h_to_h", "ffn_down", "hidden", "intermediate", ALWAYS),
    ),
    outer=(
        Row("gpt_neox.embed_in.weight", "token_embd.weight", "vocabulary hidden"),
        *affine("gpt_neox.final_layer_norm", "output_norm"),
        Row("embed_out.weight", "output.weight", "vocabulary hidden", "untied"),
    ),
    prefix="gpt_neox.layers.", grouped=False, eps=1e-5, eps_key="layer_norm_eps", eps_name=LAYER_EPS, head=REQUIRED, square=True,
    derived=lambda c: {"all": 3 * c["hidden"]}, more=_parallel, fixed={"attention_bias": (True,)},
    switches={"parallel": ("use_parallel_residual", True)},
    activations=("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), approximated=("gelu",),
)  # fmt: skip
COHERE = Family(
    (
        vector("input_layernorm", "attn_norm"), *attention(), *gated(),
        Row("self_attn.q_norm.weight", "attn_q_norm.weight", "heads head_dim", "qk_norm"),
        Row("self_attn.k_norm.weight", "attn_k_norm.weight", "kv_heads head_dim", "qk_norm"),
    ),
    eps=1e-5, eps_key="layer_norm_eps", eps_name=LAYER_EPS, tied=True, head=ABSENT, square=True, output_bias=False,
    switches={"qk_norm": ("use_qk_norm", False)}, more=_logit_scale, check=_check_cohere,
)  # fmt: skip
FAMILIES = {"starcoder2": STARCODER2, "stablelm": STABLELM, "gpt_neox": GPT_NEOX, "cohere": COHERE}
