"""Our decoder against the running libllama, for every architecture: each rotation of its graph, by what comes out of it.

A model is made from keys alone (rotation_probe.py) and decodes a few tokens; for each rotation the vectors that come out
are those that go in, turned by the decoded table. Beside that: which layers rotate at all, which norms follow, and what
the scores are multiplied by.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rotation_probe
from rotation_probe import CONTEXT, FIRST, Model

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.files.gguf import read_shards
from ropetool.rope import arithmetic
from ropetool.rope.tables import LayerRope, Regime, RopeSet, RopeTable
from ropetool.runtimes import Refuses
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import decoding, folding, layers

pytest.importorskip("llama_cpp")

ROTATING = [name for name in archs.names() if archs.get(name).layout]
TOLERANCE = 2e-3  # of the largest channel: float32 angles at position 700 and above
AT_ONCE = 16  # architectures whose models one process runs
INDEXER_BY_HALVES = {"deepseek32", "dots3note"}  # its heads pair channels half a head apart, attention's neighbours
FIXED = ("cogvlm", "deepseek2-ocr")

YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128,
    "rope.scaling.attn_factor": 1.3,
}  # fmt: skip
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 1.3,
               "rope.freq_base": 5e5},
    "yarn": YARN,
    "keys that only some read": {
        **YARN, "rope.scaling.factor": 8.0, "rope.freq_base_swa": 700.0, "rope.scaling.alpha": 4.0,
        "rope.scaling.yarn_log_multiplier": 0.07, "rope.scaling.yarn_beta_fast": 16.0,
        "rope.scaling.yarn_ext_factor": 0.5, "rope.scaling.finetuned": False, "attention.temperature_scale": 0.2,
        "attention.temperature_length": 64,
    },
    "lists": {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 128,
              "rope.scaling.attn_factor": 1.2},
}  # fmt: skip


PARTIAL = "part of each head"


def variants(arch: str) -> list[str]:
    lists = arch in archs.LISTS | archs.LISTS_FOR_LONGROPE
    partial = not archs.get(arch).whole_heads
    return [name for name in VARIANTS if name != "lists" or lists] + [PARTIAL] * partial


def model(arch: str, variant: str) -> Model:
    keys = dict(VARIANTS.get(variant, {}))
    if variant == PARTIAL:
        stated = Model(arch).stated
        whole = stated.get("rope.dimension_count") or stated["embedding_length"] // Model(arch).heads
        keys = {"rope.dimension_count": whole // 2}
        if archs.get(arch).decoupled:  # a key is the latent part, as wide as values, and the rotating one
            keys["attention.key_length"] = stated["attention.value_length"] + whole // 2
        if arch == "dots3note":
            keys["attention.key_length_swa"] = keys["attention.key_length"]
    if arch == "deepseek2-ocr":  # which stops at another base
        keys.pop("rope.freq_base", None)
    return Model(arch, keys)


# --- what llama.cpp does


@dataclass(frozen=True)
class Node:
    """One rotation: of which layer, the channels before its first one, its weights, what goes in and what comes out.

    Shapes: before, after (heads, tokens, channels), positions (tokens,).
    """

    layer: int
    name: str
    offset: int
    normed: bool
    made_by: list[str]
    before: np.ndarray
    after: np.ndarray
    positions: np.ndarray


@dataclass(frozen=True)
class Run:
    """All that was seen of one model."""

    nodes: list[Node]
    scales: dict[int, float]
    temperatures: dict[int, list[float]]
    vectors: dict[str, int]


def probe(folder: Path) -> None:
    """Have llama.cpp run each model of a folder, as far as it can."""
    done = subprocess.run(
        [sys.executable, rotation_probe.__file__, str(folder)], capture_output=True, text=True, timeout=600,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1000:]


@cache
def runs(start: int) -> dict[tuple[str, str], Run]:
    """Return the runs of some architectures, those that one process makes."""
    those = {
        (arch, variant): model(arch, variant)
        for arch in ROTATING[start : start + AT_ONCE]
        for variant in variants(arch)
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {}
        for number, (key, each) in enumerate(those.items()):
            first, count = each.span
            paths[key] = each.write(folder / f"{number}@{first}@{count}.gguf")
        probe(folder)
        return {key: read(path.with_suffix(".npz")) for key, path in paths.items() if path.with_suffix(".npz").exists()}


def read(path: Path) -> Run:
    with np.load(path) as held:
        seen = json.loads(str(held["seen"]))
        nodes = []
        for number, node in enumerate(seen["nodes"]):
            before, after = (np.moveaxis(held[f"{side}{number}"][0].astype(np.float64), 0, 1) for side in "xy")
            positions = held[f"p{number}"][: before.shape[1]]  # three more rows where images have sections
            kept = (node[key] for key in ("layer", "name", "offset", "normed", "made_by"))
            nodes.append(Node(*kept, before, after, positions))
    return Run(nodes, dict(seen["scales"]), dict(seen["temperatures"]), seen["vectors"])


def run_of(arch: str, variant: str) -> Run:
    found = runs(ROTATING.index(arch) // AT_ONCE * AT_ONCE).get((arch, variant))
    assert found is not None, f"{arch}, {variant}: llama.cpp does not make it or stops"
    return found


# --- what we make of it


def decoded(arch: str, variant: str, vectors: Mapping[str, int]) -> RopeSet:
    """Return the decoder's reading of the same keys, with the frequency vectors that llama.cpp asked for."""
    with tempfile.TemporaryDirectory() as name:
        path = model(arch, variant).write(Path(name) / "m.gguf", vectors)
        return decoding.decode(GgufCheckpoint.of(read_shards(path)))


def apart(arch: str, seen: Run, plain: Run, rope: RopeSet) -> Iterator[str]:
    """Yield what the run and the decoded tables do not share."""
    entries = {layer: entry for entry in rope.entries.values() for layer in entry.layers}
    rotating = {layer for layer, entry in entries.items() if entry.table is not None}
    if rotating != (turned := {node.layer for node in seen.nodes}):
        yield f"layers {sorted(turned)} rotate, not {sorted(rotating)}"
    for node in seen.nodes:
        entry = entries.get(node.layer)
        if entry is not None and entry.table is not None:
            yield from _node_apart(arch, node, entry, entry.table)
    for layer, scale in seen.scales.items():
        found, wanted = scale / plain.scales[layer], entries[layer].softmax_multiplier if layer in entries else 1.0
        if abs(found / wanted - 1) > 1e-5:
            yield f"layer {layer}: the score is multiplied by {found:.6g}, not {wanted:.6g}"
    first, count = Model(arch).span
    positions = np.arange(first, first + count)
    for layer, entry in entries.items():
        grows = entry.temperature
        wanted = np.ones(count) if grows is None else 1 + grows.beta * np.log(1 + positions // grows.length)
        if entry.table is None and arch == "llama4":
            wanted = 1 + 0.1 * np.log(1 + (positions + 1) // 8192)  # llama4.cpp:14, whatever the file says
        if layer in seen.temperatures and not np.allclose(seen.temperatures[layer], wanted, rtol=1e-5):
            yield f"layer {layer}: the position temperature is {seen.temperatures[layer]}"


def _node_apart(arch: str, node: Node, entry: LayerRope, table: RopeTable) -> Iterator[str]:
    regime = table.at(CONTEXT)
    layout = "half" if node.name.startswith("indexer") and arch in INDEXER_BY_HALVES else entry.layout
    untouched, channels = np.split(node.before, [node.offset], axis=-1)
    factor = regime.attention_factor
    turned = arithmetic.rotate(channels, node.positions, regime.inv_freq, 1.0, layout)
    if node.normed:  # whatever they were multiplied by is gone behind the norm
        factor = float((turned * node.after[..., node.offset :]).sum() / (turned * turned).sum())
        if regime.attention_factor != 1:
            yield f"{node.name}: a norm takes the factor {regime.attention_factor:g} away"
    wanted = arithmetic.rotate(channels, node.positions, regime.inv_freq, factor, layout)
    off = np.abs(np.concatenate([untouched, wanted], axis=-1) - node.after).max() / np.abs(node.after).max()
    if off > TOLERANCE:
        yield f"{node.name} of layer {node.layer} is off by {off:.2g}"


CELLS = [(arch, variant) for arch in ROTATING for variant in variants(arch)]


@pytest.mark.parametrize(("arch", "variant"), CELLS)
def test_llama_cpp_rotates_as_we_decode_it(arch: str, variant: str) -> None:
    seen = run_of(arch, variant)
    assert set(seen.vectors) == set(archs.get(arch).loads(VARIANTS.get(variant, {}).get("rope.scaling.type", "linear")))
    rope = decoded(arch, variant, seen.vectors)
    assert list(apart(arch, seen, run_of(arch, "plain"), rope)) == []
    assert seen.nodes or "granite" in arch  # rope.scaling.finetuned = false takes the positions away


OF_WHOLE_HEADS = [name for name in ROTATING if archs.get(name).whole_heads]


@cache
def of_whole_heads(start: int) -> dict[str, list[bool]]:
    """Return by architecture whether llama.cpp runs a model, and whether it runs one whose heads rotate in part."""
    with tempfile.TemporaryDirectory() as name:
        paths = {}
        for arch in OF_WHOLE_HEADS[start : start + AT_ONCE]:
            first, count = Model(arch).span
            paths[arch] = [
                model(arch, variant).write(Path(name, f"{arch}, {number}@{first}@{count}.gguf"))
                for number, variant in enumerate(("plain", PARTIAL))  # the second ends the fork that has run the first
            ]
        probe(Path(name))
        return {arch: [path.with_suffix(".npz").exists() for path in pair] for arch, pair in paths.items()}


@pytest.mark.parametrize("arch", OF_WHOLE_HEADS)
def test_a_part_of_a_head_stops_those_that_rotate_whole_heads(arch: str, tmp_path: Path) -> None:
    part = model(arch, PARTIAL).write(tmp_path / "part.gguf")
    with pytest.raises(Refuses, match="invalid n_rot"):
        decoding.decode(GgufCheckpoint.of(read_shards(part)))
    assert of_whole_heads(OF_WHOLE_HEADS.index(arch) // AT_ONCE * AT_ONCE)[arch] == [True, False]


@pytest.mark.parametrize("arch", folding.known())
def test_queries_and_keys_are_made_of_the_tensors_that_bakes_go_by(arch: str) -> None:
    """The last weights in front of each rotation; what stands before a norm does not matter, as it divides it away."""
    steps, seen = folding.steps(archs.get(arch)), run_of(arch, "plain")
    queries = [step for step in steps.q if not step.unless]  # the models have a latent of queries
    wanted = {tuple(step.tensor for step in reversed(side)) for side in (queries, steps.k)}
    found = {_named(node.made_by) for node in seen.nodes}
    indexers = {made for made in found if made[0].startswith("indexer")}
    ways = [{tuple("attn_qkv" if name in ("attn_q", "attn_k") else name for name in made) for made in wanted}, wanted]
    assert found - indexers in ways
    if arch != "minimax-m3":  # which chooses with flash attention alone
        keys = {made[0] for made in indexers if made[0].startswith("indexer.k")}
        assert keys == {step.tensor for step in steps.indexer_k}


def _named(made_by: list[str]) -> tuple[str, ...]:
    return tuple(made_by[:2] if made_by[0].endswith("norm") else made_by[:1])


# --- planted defects


def changed(rope: RopeSet, change: Callable[[LayerRope], LayerRope]) -> RopeSet:
    return replace(rope, entries={kind: change(entry) for kind, entry in rope.entries.items()})


def _regimes(change: Callable[[Regime], Regime]) -> Callable[[LayerRope], LayerRope]:
    def changed_entry(entry: LayerRope) -> LayerRope:
        assert entry.table is not None
        return replace(entry, table=RopeTable(tuple(map(change, entry.table.regimes))))

    return changed_entry


def _slower(regime: Regime) -> Regime:
    pairs = np.arange(regime.inv_freq.size)
    return replace(regime, inv_freq=regime.inv_freq * 1.02 ** (-pairs / pairs.size))


def _one_off(regime: Regime) -> Regime:
    table = regime.inv_freq.copy()
    table[table.size // 2] *= 1.05
    return replace(regime, inv_freq=table)


DEFECTS: dict[str, Callable[[LayerRope], LayerRope]] = {
    "a base off by 2 %": _regimes(_slower),
    "one pair off": _regimes(_one_off),
    "a factor": _regimes(lambda r: replace(r, attention_factor=1.01 * r.attention_factor)),
    "the other pairs": lambda e: replace(e, layout="half" if e.layout == "interleaved" else "interleaved"),
    "a layer more": lambda e: replace(e, layers=(*e.layers, max(e.layers) + 1)),
    "a multiplied score": lambda e: replace(e, softmax_multiplier=1.01 * e.softmax_multiplier),
}


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("arch", ["llama", "deepseek2", "hunyuan-dense", "glm4", "qwen3vl", "hy_v4"])
def test_a_planted_defect_is_seen(arch: str, defect: str) -> None:
    seen = run_of(arch, "yarn")
    rope = changed(decoded(arch, "yarn", seen.vectors), DEFECTS[defect])
    assert list(apart(arch, seen, run_of(arch, "plain"), rope)) != []


def test_a_base_of_sliding_layers_is_seen() -> None:
    seen = run_of("gemma3", "keys that only some read")
    rope = decoded("gemma3", "keys that only some read", seen.vectors)
    full = rope.entries["full_attention"]
    planted = rope.with_entry("sliding_attention", replace(rope.entries["sliding_attention"], table=full.table))
    found = list(apart("gemma3", seen, run_of("gemma3", "plain"), planted))
    assert found
    assert all("layer 0" in line for line in found)


# --- what does not rotate


@pytest.mark.parametrize("arch", ["bloom", "jais", "jina-bert-v2", "mamba", "mamba2", "refact"])
def test_what_is_said_not_to_rotate_does_not(arch: str, tmp_path: Path) -> None:
    path = Model(arch).write(tmp_path / f"m@{FIRST}@4.gguf")
    probe(tmp_path)
    assert (read(path.with_suffix(".npz")).nodes, archs.get(arch).layout) == ([], "")


@pytest.mark.parametrize("arch", [*sorted(archs.LEARNED_POSITIONS), "mpt"])
def test_learned_positions_end_at_the_context(arch: str, tmp_path: Path) -> None:
    """Beyond it there is no vector to take: ggml aborts. mpt has one where the file does, as this one."""
    paths = [Model(arch).write(tmp_path / f"m@{first}@4.gguf") for first in (FIRST, 200)]
    probe(tmp_path)
    assert [path.with_suffix(".npz").exists() for path in paths] == [False, True]
    assert not paths[0].with_suffix(".txt").exists()
    layer = {archs.POSITION_EMBEDDINGS: 8}
    view = GgufCheckpoint.of(read_shards(Model(arch).write(tmp_path / "m.gguf", layer if arch == "mpt" else {})))
    assert layers.learned_positions(view)


# --- what stops it


@pytest.mark.parametrize(
    ("arch", "keys", "word"),
    [
        ("deepseek2-ocr", {"rope.freq_base": 5e5}, "unless it is 10000"),
        ("llama4", {"attention.sliding_window": 0}, "aborts the whole process"),
        ("dots3note", {"rope.freq_base_swa": None}, "key not found"),
        ("deepseek4", {"attention.compress_rope_freq_base": None}, "key not found"),
        ("deepseek4", {"attention.compress_ratios": [0, 4]}, "is shorter than block_count"),
        ("cohere2moe", {"leading_dense_block_count": None}, "key not found"),
    ],
)
def test_what_we_refuse_stops_llama_cpp(arch: str, keys: dict[str, Any], word: str, tmp_path: Path) -> None:
    path = Model(arch, keys).write(tmp_path / f"m@{FIRST}@4.gguf")
    with pytest.raises(Refuses, match=word):
        decoding.decode(GgufCheckpoint.of(read_shards(path)))
    probe(tmp_path)
    assert not path.with_suffix(".npz").exists()
