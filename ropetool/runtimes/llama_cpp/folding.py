"""The tensors of queries and keys in llama.cpp's graphs, for architectures that no model family describes.

Only data: the last tensors before each rotation. Source: src/models/*.cpp of llama.cpp within llama-cpp-python 0.3.36.
tests/oracle/test_running_architectures.py walks back from each rotation of the running graph, and
test_baked_architectures.py compares the logits of baked files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from ropetool.families.family import FoldStep, FoldSteps
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import layers
from ropetool.runtimes.llama_cpp.architectures import Architecture
from ropetool.runtimes.llama_cpp.layers import ModelKeys

QUERIES, KEYS = "attn_q", "attn_k"
QUERY_NORM, KEY_NORM = "attn_q_norm", "attn_k_norm"
IF_THERE = "a tensor of the file"  # a step that applies if the file has the tensor
ADAPTERS = "graniteswitch"
BY_SOURCES = frozenset({ADAPTERS})  # known only from the sources; a model of each other one was run (docs/runtimes.md)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# --- the steps between the projections and the rotation
PLAIN = _words(
    """arctic baichuan bailingmoe bitnet chatglm codeshell cohere2 cohere2moe dbrx deci deepseek dream ernie4_5
    ernie4_5-moe eurobert exaone falcon falcon-h1 gemma granite_swa granitehybrid granitemoe grok hrm_text internlm2
    jais2 jina-bert-v3 llada llama-embed llama4 mimo2 minicpm minimax-01 modern-bert nanbeige nemotron neo-bert
    nomic-bert nomic-bert-moe olmo orion paddleocr pangu-embedded phi2 phimoe plamo pockettts qwen qwen2vl
    smallthinker spark2_5 xverse"""
)
# One norm for all heads.
NORMED = _words(
    """afmoe apertus bailingmoe2 dots1 exaone-moe gemma-embedding gemma3n gemma4 grovemoe hy_v3 laguna lfm2 lfm2moe
    llada-moe maple mellum minimax-m3 muse-glimmer openelm plamo3 qwen3tts qwen3vl qwen3vlmoe rnd1"""
)
NORMED_IF_THERE = frozenset({"glm4moe", "step35"})
# The same, with a gate after each query head in the projection.
NORMED_AND_GATED = frozenset({"qwen3next", "qwen35", "qwen35moe", "qwen4exp"})
# A norm as wide as all heads together, or with separate numbers for each head.
NORMED_BY_HEAD: Mapping[str, Literal["rms", "layer"]] = {
    "minimax-m2": "rms", "olmoe": "rms", "plamo2": "rms", "chameleon": "layer",
}  # fmt: skip
# Queries and keys from latents, with a rotating part. Only the rotating part of the keys has a separate tensor.
LATENT = archs.MLA | archs.DECOUPLED | {"minicpm3", "plm"}
NORMED_LATENT = frozenset({"dots3note"})  # its rotating keys are normalised again
# The norm of a sparse indexer's keys, the place of the rotating channels in them, and the pairing of these channels.
INDEXERS: Mapping[str, tuple[Literal["rms", "layer"], str, Literal["half", "interleaved"]]] = {
    "deepseek32": ("layer", "indexer", "half"), "dots3note": ("layer", "indexer", "half"),
    "glm-dsa": ("layer", "indexer", "interleaved"), "hy_v4": ("layer", "indexer_behind", "interleaved"),
    "minimax-m3": ("rms", "indexer", "half"), "qwen4exp": ("rms", "indexer", "half"),
}  # fmt: skip
CLAMPED = frozenset({"dbrx", "olmo"})
CLAMP = "attention.clamp_kqv"

TWO_STACKS = {"hrm_text": "hrm.layers_per_stack"}  # the layers of each stack; each stack runs repeatedly
# The key sets the number of last layers that attend with the keys of other layers.
SHARE_LAST_KEYS = frozenset({"gemma4"})
SHARED_KEY_LAYERS = "attention.shared_kv_layers"
LAYERS_WITH_KEYS = {"gemma3n": 20}  # the number of first layers with keys, for any value in the file


def known() -> list[str]:
    """Return the architectures that are described here, sorted."""
    return sorted(PLAIN | NORMED | NORMED_IF_THERE | NORMED_AND_GATED | NORMED_BY_HEAD.keys() | LATENT)


def refusal(model: ModelKeys) -> str:
    """Return why ropetool cannot bake the factor on cos and sin of a file into its weights; empty if it can."""
    arch = model.arch
    if not arch.layout:
        return "nothing rotates"
    if arch.fixed_base or layers.loses_factor(model):
        return arch.limit
    return refused(arch.name)


def refused(arch: str) -> str:
    """Return why ropetool cannot bake any file of an architecture; empty without such a reason."""
    if arch == ADAPTERS:
        return "its adapters add values to queries and keys that are not in the projections"
    architecture = archs.get(arch)
    lost = architecture.norm_after and arch not in archs.NORM_UNLESS_EXPERTS
    return architecture.limit if architecture.fixed_base or lost or arch in archs.WITHOUT_FACTOR else ""


def steps(arch: Architecture) -> FoldSteps:
    """Return the steps of an architecture, by llama.cpp's names of tensors. Raises: KeyError if it is not described."""
    name = arch.name
    if name in LATENT:
        fold_steps = _latent(name)
    elif name in PLAIN:
        fold_steps = FoldSteps(q=(FoldStep(QUERIES),), k=(FoldStep(KEYS),), clip_key=CLAMP if name in CLAMPED else "")
    elif name in NORMED_BY_HEAD:
        fold_steps = _normed("heads", NORMED_BY_HEAD[name])
    elif name in NORMED_AND_GATED:
        fold_steps = _normed("shared", gated=True)
    elif name in NORMED | NORMED_IF_THERE:
        fold_steps = _normed("shared", when=IF_THERE if name in NORMED_IF_THERE else "")
    else:
        raise KeyError(name)
    return _with_indexer(fold_steps, name)


def _normed(rows: str, norm: Literal["rms", "layer"] = "rms", *, when: str = "", gated: bool = False) -> FoldSteps:
    queries = FoldStep(QUERIES, "gated_heads" if gated else "heads")
    return FoldSteps(
        q=(queries, FoldStep(QUERY_NORM, rows, norm, when=when)),
        k=(FoldStep(KEYS), FoldStep(KEY_NORM, rows, norm, when=when)),
    )  # fmt: skip


def _latent(name: str) -> FoldSteps:
    key = FoldStep("attn_kv_a_mqa", "mla_rope_key")
    if name == "plm":  # only its keys are computed from a latent
        return FoldSteps(q=(FoldStep(QUERIES, "mla_query"),), k=(key,))
    return FoldSteps(
        q=(FoldStep("attn_q_b", "mla_query", when="q_lora_rank"), FoldStep(QUERIES, "mla_query", unless="q_lora_rank")),
        k=(key, FoldStep(KEY_NORM, "shared", "rms")) if name in NORMED_LATENT else (key,),
        score=(FoldStep("attn_q_a_norm", "query_latent", "rms", when="q_lora_rank"),),
    )  # fmt: skip


def _with_indexer(fold_steps: FoldSteps, name: str) -> FoldSteps:
    if name not in INDEXERS:
        return fold_steps
    norm, rows, layout = INDEXERS[name]
    key = FoldStep("indexer.k_norm", rows, norm, when=IF_THERE)  # some layers use the indexer of another layer
    return replace(fold_steps, indexer_k=(key,), indexer_layout=layout)
