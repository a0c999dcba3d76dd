"""The runtimes as data, and the places where the two generations of transformers look for the same key.

That they look there is what tests/oracle holds against the programs themselves.
"""

from __future__ import annotations

import math
from typing import Any

import configs
import pytest

from ropetool import families, runtimes
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import UnknownRuntime
from ropetool.rope.tables import LayerRope, RopeSet
from ropetool.runtimes import Refuses

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LISTS = {"short_factor": [1.0] * 16, "long_factor": [1.0 + i for i in range(16)]}
V5, V4 = "transformers", "transformers-v4"


def decode(runtime: str, family: str = "llama", style: str = "v4", **changes: Any) -> RopeSet:
    data = {**configs.config(family, style), "max_position_embeddings": 2048, **changes}
    return runtimes.get(runtime).decode(HfCheckpoint(data, families.get(family)))


def full(*arguments: Any, **changes: Any) -> LayerRope:
    return decode(*arguments, **changes).entries["full_attention"]


# --- the list


def test_discovery() -> None:
    assert {V5, V4} <= set(runtimes.names())
    for name in runtimes.names():
        runtime = runtimes.get(name)
        assert runtime.name == name
        assert runtime.summary
        assert runtime.versions
        assert name in {other.program for other in runtimes.for_format(runtime.formats[0])}
    assert runtimes.for_format("hf")[0].name == V5
    assert runtimes.for_format("onnx") == []


def test_an_unknown_name_or_a_format_that_is_not_read_is_refused() -> None:
    with pytest.raises(
        UnknownRuntime,
        match=r"no runtime is called 'vlm' \(did you mean vllm or mlx-vlm\?\); known: .*transformers, transformers-v4",
    ):
        runtimes.get("vlm")
    with pytest.raises(UnknownRuntime, match="transformers does not read gguf files"):
        runtimes.get(V5, "gguf")
    assert runtimes.get(V5, "hf").name == V5


# --- where keys are looked for


def test_rope_scaling_wins_over_rope_parameters_and_4_knows_it_alone() -> None:
    both = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {**YARN, "rope_theta": 5e5}}
    assert (full(V5, **both).rope_type, full(V5, **both).rope_theta) == ("linear", 10000.0)
    only = {"rope_scaling": None, "rope_theta": 7e4, "rope_parameters": {**YARN, "rope_theta": 5e5}}
    assert (full(V5, **only).rope_type, full(V5, **only).rope_theta) == ("yarn", 5e5)
    assert (full(V4, **only).rope_type, full(V4, **only).rope_theta) == ("default", 7e4)


def test_a_silent_file_gets_the_base_of_the_class() -> None:
    data = {key: value for key, value in configs.config("mixtral", "v4").items() if key != "rope_theta"}
    for runtime in (V5, V4):
        found = runtimes.get(runtime).decode(HfCheckpoint(data, families.get("mixtral")))
        assert found.entries["full_attention"].rope_theta == 1e6


def test_an_outer_original_length_wins_in_5_and_serves_longrope_alone_in_4() -> None:
    outer = {"original_max_position_embeddings": 256}
    assert full(V5, rope_scaling=YARN, **outer).original_max_position_embeddings == 256
    assert full(V4, rope_scaling=YARN, **outer).original_max_position_embeddings == 512
    lists = {"rope_type": "longrope", **LISTS, "factor": 4.0, "original_max_position_embeddings": 512}
    assert full(V5, rope_scaling=lists).original_max_position_embeddings == 512
    assert full(V4, rope_scaling=lists).original_max_position_embeddings == 2048
    found = full(V4, rope_scaling=lists, **outer)
    assert (found.original_max_position_embeddings, found.factor) == (256, 8.0)


def test_a_factor_of_null_is_the_ratio_of_the_lengths_in_5_and_an_error_in_4() -> None:
    assert full(V5, rope_scaling={**YARN, "factor": None}).factor == 4.0
    with pytest.raises(Refuses, match="factor is null; yarn needs a number"):
        decode(V4, rope_scaling={**YARN, "factor": None})


def test_the_attention_factor_of_yarn() -> None:
    default = 0.1 * math.log(4) + 1
    for runtime in (V5, V4):
        for keys, factor in (
            ({}, default), ({"attention_factor": 1.5}, 1.5), ({"attention_factor": None}, default),
            ({"mscale": 0.5}, default), ({"mscale_all_dim": 0.5}, default),
            ({"mscale": 2.0, "mscale_all_dim": 1.0}, (0.2 * math.log(4) + 1) / default),
        ):  # fmt: skip
            found = full(runtime, rope_scaling={**YARN, **keys})
            assert found.attention_factor == pytest.approx(factor, rel=1e-12), (runtime, keys)


def test_betas_of_0_and_null_are_the_defaults() -> None:
    plain = full(V5, rope_scaling=YARN)
    for keys in ({"beta_fast": 0, "beta_slow": None}, {"beta_fast": 32, "beta_slow": 1}):
        assert plain.differences(full(V5, rope_scaling={**YARN, **keys})) == ()
    assert plain.differences(full(V5, rope_scaling={**YARN, "beta_fast": 8})) != ()


def test_truncate_is_not_read_from_a_nested_object() -> None:
    nested = {
        "full_attention": {**YARN, "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    cut = {**nested, "full_attention": {**nested["full_attention"], "truncate": False}}
    plain = full(V5, "gemma3_text", "v5", rope_parameters=nested)
    assert plain.differences(full(V5, "gemma3_text", "v5", rope_parameters=cut)) == ()
    flat = full(V5, rope_scaling=YARN)
    assert flat.differences(full(V5, rope_scaling={**YARN, "truncate": False})) != ()


def test_two_lists_are_two_regimes() -> None:
    lists = {"rope_type": "longrope", **LISTS, "factor": 4.0, "original_max_position_embeddings": 512}
    table = full(V5, rope_scaling=lists).table
    assert table is not None
    assert [regime.up_to for regime in table.regimes] == [512, None]
    assert table.at(512).inv_freq[1] == 2 * table.at(513).inv_freq[1]


def test_sliding_windows_and_layers() -> None:
    assert full(V5, "mistral", sliding_window=64).sliding_window == 64
    assert full(V5, "mistral", sliding_window=None).sliding_window is None
    assert full(V5, "qwen2", sliding_window=64).sliding_window is None
    assert full(V5, "qwen2", sliding_window=64, use_sliding_window=True).sliding_window == 64
    gemma = decode(V5, "gemma3_text")
    assert {kind: (e.layers, e.sliding_window) for kind, e in gemma.entries.items()} == {
        "full_attention": ((1,), None), "sliding_attention": ((0,), 64),
    }  # fmt: skip
    by_pattern = decode(V5, "gemma3_text", layer_types=None, num_hidden_layers=13, sliding_window_pattern=4)
    assert by_pattern.entries["full_attention"].layers == (3, 7, 11)
    assert decode(V5, "gemma3_text", layer_types=None, num_hidden_layers=13).entries["full_attention"].layers == (5, 11)


def test_the_layout_follows_the_family_and_its_switch() -> None:
    assert full(V5).layout == "half"
    assert full(V5, "deepseek_v3").layout == "interleaved"
    assert full(V5, "deepseek_v3", rope_interleave=False).layout == "half"
    assert full(V5, "deepseek_v2", rope_interleave=False).layout == "interleaved"


def test_the_softmax_scale_of_mla() -> None:
    keys = {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
    wanted = (0.0707 * math.log(4) + 1) ** 2
    assert full(V5, "deepseek_v3", rope_scaling=keys).softmax_multiplier == pytest.approx(wanted)
    assert full(V5, "deepseek_v2", rope_scaling=keys).softmax_multiplier == pytest.approx(wanted)
    assert full(V4, "deepseek_v3", rope_scaling=keys).softmax_multiplier == pytest.approx(wanted)
    assert full(V4, "deepseek_v2", rope_scaling=keys).softmax_multiplier == 1.0
    assert full(V5, "llama", rope_scaling=keys).softmax_multiplier == 1.0


# --- where they stop


REFUSED = {
    "a factor that is missing": ({"rope_scaling": {"rope_type": "linear"}}, "KeyError: linear needs factor"),
    "lists that are missing": ({"rope_scaling": {"rope_type": "longrope"}}, "needs short_factor, long_factor"),
    "a list too short": (
        {"rope_scaling": {"rope_type": "longrope", **LISTS, "short_factor": [1.0], "factor": 2.0}},
        "short_factor has 1 entries for 16 rotary pairs",
    ),
    "a list of null": (
        {"rope_scaling": {"rope_type": "longrope", **LISTS, "long_factor": None, "factor": 2.0}}, "long_factor has 0 entries",
    ),
    "a type of another family": ({"rope_scaling": {"rope_type": "axial"}}, "'axial' is not a rope type"),
    "a type of null": ({"rope_scaling": {"rope_type": None}}, "None is not a rope type"),
    "a base of null": ({"rope_theta": None}, "TypeError: rope_theta is null; it must be a number"),
    "a base of an object": ({"rope_theta": {"type": 5}}, "TypeError: rope_theta is"),
    "a ramp of null": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": None, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 512}}, "high_freq_factor is null; llama3 needs both",
    ),
    "an odd head": ({"head_dim": 31}, "head_dim is 31; it must be even"),
    "no head": ({"hidden_size": None}, "hidden_size or num_attention_heads is null, and head_dim is not set"),
    "a partial rotation": (
        {"rope_scaling": YARN, "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, but llama rotates",
    ),
}  # fmt: skip


@pytest.mark.parametrize("runtime", [V5, V4])
@pytest.mark.parametrize("case", REFUSED)
def test_a_file_on_which_the_program_stops(case: str, runtime: str) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(Refuses, match=message):
        decode(runtime, **changes)


def test_a_head_dim_of_null_stops_what_the_family_says() -> None:
    with pytest.raises(Refuses, match=r"yarn needs head_dim in config\.json for mixtral"):
        decode(V5, "mixtral", rope_scaling=YARN)
    assert full(V5, "mixtral", rope_scaling={"rope_type": "linear", "factor": 2.0}).head_dim == 32
    assert full(V5, "mistral", rope_scaling=YARN).head_dim == 32
    with pytest.raises(Refuses, match=r"yarn needs head_dim in config\.json for mistral"):
        decode(V4, "mistral", rope_scaling=YARN)


def test_a_partial_rotation_of_an_unscaled_model_is_ignored_by_5_alone() -> None:
    assert full(V5, partial_rotary_factor=0.5).rotary_dim == 32
    with pytest.raises(Refuses, match=r"partial_rotary_factor is 0\.5"):
        decode(V4, partial_rotary_factor=0.5)
    for runtime in (V5, V4):
        assert full(runtime, partial_rotary_factor=1.0, rope_scaling=YARN).rotary_dim == 32


def decode_as(family: str, **changes: Any) -> RopeSet:
    """Return what transformers 5 computes from llama's config, read as a different family."""
    data = {**configs.config("llama", "v5"), "max_position_embeddings": 2048, **changes}
    return runtimes.get(V5).decode(HfCheckpoint(data, families.get(family)))


def test_the_interval_of_layers_without_rope_must_be_a_number() -> None:
    lists = {"no_rope_layers": [1, 0]}
    for family in ("smollm3", "llama4_text"):
        with pytest.raises(Refuses, match="no_rope_layer_interval"):  # StrictDataclassFieldValidationError
            decode_as(family, no_rope_layer_interval=None, **lists)
    with pytest.raises(Refuses, match=r"no_rope_layer_interval is 0; it must be a whole number of at least 1"):
        decode_as("smollm3", no_rope_layer_interval=0)
    assert decode_as("smollm3", no_rope_layer_interval=0, **lists).entries["full_attention"].layers == (0,)


@pytest.mark.parametrize(("alpha", "head_dim"), [(1000.0, 2), (1e300, 32), (math.inf, 32)])
def test_a_stretched_base_out_of_range_is_refused(alpha: float, head_dim: int) -> None:
    scaling = {"rope_type": "dynamic", "alpha": alpha, "factor": 1.0, "rope_theta": 1e4}
    with pytest.raises(Refuses, match=r"alpha is|NTK scaling needs at least 4"):
        decode_as("hunyuan_v1_dense", rope_parameters=scaling, head_dim=head_dim)


def test_the_plain_width_of_decoupled_keys_must_be_a_number() -> None:
    with pytest.raises(Refuses, match="qk_nope_head_dim is 'a'; it must be a whole number"):
        decode_as("mistral4", qk_nope_head_dim="a", qk_rope_head_dim=32)
