"""Tables as GGUF keys and vectors: what is stated for each, and whether the formulas of ggml give the table again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ropetool.rope.tables import LayerRope, Regime, RopeSet, RopeTable
from ropetool.runtimes.base import NotKnown
from ropetool.runtimes.llama_cpp.encodings import GgufEncoding, gguf_encodings

DIM, LENGTH, THETA = 64, 512, 10000.0


def base(theta: float = THETA) -> np.ndarray:
    return theta ** (-np.arange(0, DIM, 2) / DIM)


def from_transformers(**scaling: Any) -> tuple[np.ndarray, float]:
    """Return table and attention factor of a method as transformers computes them, in float64 where it lets us."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    config = transformers.LlamaConfig(
        hidden_size=4 * DIM, num_attention_heads=4, head_dim=DIM, max_position_embeddings=4 * LENGTH,
        rope_parameters={"rope_theta": THETA, "original_max_position_embeddings": LENGTH, **scaling},
    )  # fmt: skip
    torch.set_default_dtype(torch.float64)
    try:
        table, factor = functions[scaling["rope_type"]](config)
    finally:
        torch.set_default_dtype(torch.float32)
    return table.numpy().astype(np.float64), float(factor)


def target(
    table: RopeTable, rope_type: str = "default", factor: float | None = None, length: int | None = LENGTH
) -> RopeSet:
    entry = LayerRope(rope_type, table, DIM, DIM, "interleaved", (0, 1), THETA, factor)
    return RopeSet({"full_attention": entry}, 4 * LENGTH, length)


def stated(encoding: GgufEncoding) -> dict[str, Any]:
    """Return the keys without the architecture, decoded."""
    return {key.partition(".")[2]: value.decode() for key, value in encoding.keys.items()}


def ggml(encoding: GgufEncoding, use_long: bool = True) -> tuple[np.ndarray, float]:
    """Return table and magnitude by the formulas of ggml's rope, written out from their description."""
    keys = stated(encoding)
    assert not (keys.get("rope.scaling.type") == "longrope" and "rope.scaling.factor" in keys)
    divisor = np.ones(DIM // 2)
    for name, vector in encoding.tensors.items():
        if name == "rope_freqs.weight" or ("long" in name) == use_long:
            divisor = vector.astype(np.float64)
    plain = base(keys["rope.freq_base"]) / divisor
    factor, kind = keys.get("rope.scaling.factor", 1.0), keys.get("rope.scaling.type", "linear")
    magnitude = keys.get("rope.scaling.attn_factor", 1.0)
    if kind == "none":
        return plain, magnitude
    if kind != "yarn":
        return plain / factor, magnitude

    def corr(beta: float) -> float:
        length = keys["rope.scaling.original_context_length"]
        return DIM * math.log(length / (beta * 2 * math.pi)) / (2 * math.log(keys["rope.freq_base"]))

    low, high = max(0, math.floor(corr(32))), min(DIM - 1, math.ceil(corr(1)))
    mix = 1 - np.clip((np.arange(DIM // 2) - low) / max(0.001, high - low), 0, 1)
    return plain / factor * (1 - mix) + plain * mix, magnitude * (1 + 0.1 * math.log(factor))


def assert_gives(encoding: GgufEncoding, table: np.ndarray, attention_factor: float) -> None:
    found, magnitude = ggml(encoding)
    np.testing.assert_allclose(found, table, rtol=1e-6, atol=0)
    assert magnitude == pytest.approx(attention_factor, rel=1e-6)


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("linear", {"rope_type": "linear", "factor": 4.0}, "linear keys"),
    ("yarn", {"rope_type": "yarn", "factor": 4.0}, "yarn keys"),
    ("yarn 2.7", {"rope_type": "yarn", "factor": 2.7}, "yarn keys"),
    ("yarn, factor 1.0", {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0}, "yarn keys"),
    ("yarn, factor 1.7", {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.7}, "yarn keys"),
    ("yarn, betas", {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8, "beta_slow": 2}, "rope_freqs.weight"),
    ("yarn, whole", {"rope_type": "yarn", "factor": 4.0, "truncate": False}, "rope_freqs.weight"),
    (
        "llama3",
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "rope_freqs.weight",
    ),
]


@pytest.mark.parametrize(("scaling", "name"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_some_encoding_gives_transformers_table(scaling: dict[str, Any], name: str) -> None:
    table, factor = from_transformers(**scaling)
    wanted = target(RopeTable.fixed(table, factor), scaling["rope_type"], scaling["factor"])
    by_name = {encoding.name: encoding for encoding in gguf_encodings(wanted, "llama", THETA)}
    assert_gives(by_name[name], table, factor)
    if name == "rope_freqs.weight":  # what comes before it is honest about not being the table
        for other in [e for e in by_name.values() if e.name == "yarn keys"]:
            with pytest.raises(AssertionError):
                assert_gives(other, table, factor)
    else:
        assert next(iter(by_name)) == name
        # Any fixed table is a vector too, so an architecture with vectors is never at a loss.
        assert_gives(by_name["rope_freqs.weight"], table, factor)


def test_a_forgotten_attention_factor_would_be_seen() -> None:
    table, factor = from_transformers(rope_type="yarn", factor=4.0, attention_factor=1.0)
    (yarn, *_) = gguf_encodings(target(RopeTable.fixed(table, factor), "yarn", 4.0), "llama", THETA)
    without = {key: value for key, value in yarn.keys.items() if not key.endswith("attn_factor")}
    with pytest.raises(AssertionError):
        assert_gives(GgufEncoding(yarn.name, without), table, factor)


def test_an_unscaled_table_states_its_base_alone() -> None:
    (first, *_) = gguf_encodings(target(RopeTable.fixed(base())), "qwen2", THETA)
    assert stated(first) == {"context_length": 2048, "rope.freq_base": 10000.0}
    assert first.keys.keys() == {"qwen2.context_length", "qwen2.rope.freq_base"}


def test_the_default_yarn_factor_is_not_stated() -> None:
    table, factor = from_transformers(rope_type="yarn", factor=4.0)
    (first, *_) = gguf_encodings(target(RopeTable.fixed(table, factor), "yarn", 4.0), "qwen2", THETA)
    assert stated(first) == {
        "context_length": 2048, "rope.freq_base": 10000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 512,
    }  # fmt: skip


def test_yarn_is_recognised_by_its_table() -> None:
    table, factor = from_transformers(rope_type="yarn", factor=4.0)
    unnamed = target(RopeTable.fixed(table, factor))  # as where a method derives a target from an unscaled source
    for hint in (None, 4.0, 99.0):
        (first, *_) = gguf_encodings(unnamed, "qwen2", THETA, hint)
        assert stated(first)["rope.scaling.factor"] == pytest.approx(4, rel=1e-6)
        assert_gives(first, table, factor)


def test_another_base_is_found() -> None:
    wanted = RopeTable.fixed(base(5e5))
    (first, *_) = gguf_encodings(target(wanted), "qwen2", THETA)
    assert stated(first)["rope.freq_base"] == pytest.approx(5e5, rel=1e-7)
    assert_gives(first, base(5e5), 1.0)
    # ... and divided by a factor on top of that
    (both, *_) = gguf_encodings(target(RopeTable.fixed(base(5e5) / 4)), "qwen2", THETA)
    assert_gives(both, base(5e5) / 4, 1.0)
    assert stated(both)["rope.scaling.type"] == "linear"


def test_an_attention_factor_alone_needs_no_scaling() -> None:
    (first, *_) = gguf_encodings(target(RopeTable.fixed(base(), 1.3)), "qwen2", THETA)
    assert_gives(first, base(), 1.3)
    assert stated(first)["rope.scaling.type"] == "none"


def test_vectors_only_where_the_architecture_uses_them() -> None:
    table = RopeTable.fixed(base() * np.linspace(1, 0.5, DIM // 2))
    assert gguf_encodings(target(table), "qwen2", THETA) == []
    assert [e.name for e in gguf_encodings(target(table), "llama", THETA)] == ["rope_freqs.weight", "longrope lists"]
    assert [e.name for e in gguf_encodings(target(table), "phi3", THETA)] == ["longrope lists"]
    # loaded, but not looked at by its graph
    assert gguf_encodings(target(table), "falcon-h1", THETA) == []


def test_two_lists() -> None:
    short, long = base() / 1.5, base() / np.linspace(1, 9, DIM // 2)
    table = RopeTable((Regime(short, 1.2, up_to=LENGTH), Regime(long, 1.2)))
    (lists,) = gguf_encodings(target(table, "longrope", 4.0), "phi3", THETA)
    for use_long, wanted in ((True, long), (False, short)):
        found, magnitude = ggml(lists, use_long)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert magnitude == pytest.approx(1.2)
    assert stated(lists)["rope.scaling.original_context_length"] == LENGTH
    differing = RopeTable((Regime(short, 1.0, up_to=LENGTH), Regime(long, 1.2)))
    assert gguf_encodings(target(differing, "longrope", 4.0), "phi3", THETA) == []


def test_what_no_file_holds() -> None:
    still = base().copy()
    still[-1] = 0.0
    assert gguf_encodings(target(RopeTable.fixed(still)), "llama", THETA) == []
    moving = RopeTable((Regime(base()),), rule=lambda length: Regime(base() / length), rule_key=("by length",))
    assert gguf_encodings(target(moving, "dynamic", 4.0), "llama", THETA) == []


def test_an_original_length_that_is_not_known_is_not_stated() -> None:
    (linear, *_) = gguf_encodings(target(RopeTable.fixed(base() / 4), "linear", 4.0, length=None), "qwen2", THETA)
    assert "rope.scaling.original_context_length" not in stated(linear)


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(NotKnown, match="lama"):
        gguf_encodings(target(RopeTable.fixed(base())), "lama", THETA)
