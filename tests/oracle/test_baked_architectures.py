"""Bakes of every architecture whose keys and queries are described: llama.cpp's logits before and after.

baking_probe.py makes a whole file of each, with two layers or more. A sample is run each time; the others where what is
described, the model or llama.cpp is another than when they passed (scripts/settled/settle.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import baking_probe
import pytest
from settled import Comparison

from ropetool import families
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import folding

pytest.importorskip("llama_cpp")

EVERY = sorted({*folding.known(), *families.by_gguf_architecture()})
SAMPLE = (
    "bailingmoe2", "chameleon", "deci", "dots3note", "falcon", "gemma4", "glm-dsa", "hrm_text", "hy_v4", "minimax-m3",
    "modern-bert", "plamo2", "qwen35", "qwen4exp",
)  # fmt: skip
TOLERANCE = 1e-4  # of the largest logit; nearly all are below 1e-5
# ggml's GELU is a table of float16, of which these take many; flash attention rounds queries to float16.
TOLERANCES = {"gemma3n": 5e-4, "gemma4": 2e-4, "minimax-m3": 2e-4}
SEEN = 50  # times as far as the baked file is one whose keys alone are changed


def comparison(arch: str) -> Comparison:
    steps = folding.steps(archs.get(arch)) if arch in folding.known() else families.by_gguf_architecture()[arch].bake
    made = json.dumps(baking_probe.model(arch).stated, sort_keys=True)
    return Comparison(
        f"baked {arch}", {"steps": repr(steps).encode(), "model": made.encode()}, "llama-cpp-python", "gguf"
    )  # fmt: skip


RUN = [arch for arch in EVERY if arch in SAMPLE or not comparison(arch).settled]


@cache
def found() -> dict[str, dict[str, Any]]:
    """Return what came of those that are run, from a process that an assertion of ggml may end."""
    done = subprocess.run(
        [sys.executable, baking_probe.__file__, *RUN], capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GGML_NO_BACKTRACE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1000:]
    return {row["arch"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("arch", RUN)
def test_the_weights_carry_the_factor(arch: str) -> None:
    row = found()[arch]
    off = max(row[side] for side in ("k", "q", "both"))
    assert off < TOLERANCES.get(arch, TOLERANCE)
    assert row["unbaked"] > SEEN * off
    if arch in folding.INDEXERS:
        assert row["without indexer"] > SEEN * off
    comparison(arch).passed()


@pytest.mark.parametrize(
    ("arch", "touched"),
    [
        ("bailingmoe2", ["attn_k_norm.weight"]),
        ("deci", ["attn_k.bias", "attn_k.weight"]),
        ("falcon", ["attn_qkv.weight"]),
        ("dots3note", ["attn_k_norm.weight", "indexer.k_norm.bias", "indexer.k_norm.weight"]),
        ("glm-dsa", ["attn_kv_a_mqa.weight", "attn_q_a_norm.weight", "indexer.k_norm.bias", "indexer.k_norm.weight"]),
    ],
)
def test_the_tensors_that_a_bake_of_keys_changes(arch: str, touched: list[str]) -> None:
    assert found()[arch]["touched"] == touched


def test_every_architecture_that_rotates_is_baked_or_refused_with_a_reason() -> None:
    rotating = [name for name in archs.names() if archs.get(name).layout]
    refused = {name for name in rotating if folding.refused(name)}
    assert refused.isdisjoint(EVERY)
    assert {*EVERY, *refused} == set(rotating)
    assert len(EVERY) == 116
