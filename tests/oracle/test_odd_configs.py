"""Files that are odd, half-written or wrong: loading, refusing and computing as each real transformers does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import configs
import pytest
from models import write_config
from probes import probe, v4_python
from test_transformers import LENGTHS, assert_agrees

import ropetool
from ropetool.errors import ConfigError
from ropetool.runtimes import inspection

LLAMA, LLAMA_5 = configs.config("llama", "v4"), configs.config("llama", "v5")
GEMMA, GEMMA_5 = configs.config("gemma3_text", "v4"), configs.config("gemma3_text", "v5")
OLMO, DEEPSEEK = configs.config("olmo3", "v4"), configs.config("deepseek_v3", "v4")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LISTS = {"short_factor": [1.0] * 16, "long_factor": [1.0 + i for i in range(16)]}
LONGROPE = {"rope_type": "longrope", **LISTS, "factor": 4.0, "original_max_position_embeddings": 512}
LONGER = {"max_position_embeddings": 2048}

# What ropetool's decoder of each generation says must be what the program does: the same tables, or an error in both.
AS_THE_PROGRAM: dict[str, dict[str, Any]] = {
    "theta of null": {**LLAMA, "rope_theta": None},
    "theta of null under yarn": {**LLAMA, "rope_theta": None, "rope_scaling": YARN},
    "theta of null inside v5": {**LLAMA_5, "rope_parameters": {"rope_type": "default", "rope_theta": None}},
    "theta of null in gemma3": {**GEMMA, "rope_theta": None},
    "local base of null in gemma3": {**GEMMA, "rope_local_base_freq": None},
    "theta of null in olmo3": {**OLMO, "rope_theta": None},
    "type alone": {**LLAMA, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}},
    "type alone in v5": {**LLAMA_5, "rope_parameters": {"type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "the old name su": {**LLAMA, "rope_scaling": {**LONGROPE, "rope_type": "su"}},
    "lists too short": {**LLAMA, "rope_scaling": {**LONGROPE, "short_factor": [1.0] * 3}},
    "lists with a short regime": {**LLAMA, **LONGER, "rope_scaling": LONGROPE},
    "lists with an outer length": {
        **LLAMA, **LONGER, "rope_scaling": LONGROPE, "original_max_position_embeddings": 256,
    },
    "yarn with an outer length": {**LLAMA, **LONGER, "rope_scaling": YARN, "original_max_position_embeddings": 256},
    "yarn with a factor of null": {**LLAMA, **LONGER, "rope_scaling": {**YARN, "factor": None}},
    "yarn with betas of 0": {**LLAMA, **LONGER, "rope_scaling": {**YARN, "beta_fast": 0, "beta_slow": 0}},
    "yarn with a lone mscale": {**LLAMA, **LONGER, "rope_scaling": {**YARN, "mscale": 0.5}},
    "yarn with two mscales": {**LLAMA, **LONGER, "rope_scaling": {**YARN, "mscale": 2.0, "mscale_all_dim": 0.5}},
    "yarn without a length": {**LLAMA, **LONGER, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "llama3 with a null ramp": {
        **LLAMA, **LONGER,
        "rope_scaling": {**YARN, "rope_type": "llama3", "low_freq_factor": None, "high_freq_factor": 4.0},
    },
    "linear without a factor": {**LLAMA, "rope_scaling": {"rope_type": "linear"}},
    "an outer theta, none inside": {**LLAMA_5, "rope_theta": 5e5, "rope_parameters": YARN},
    "a null rope_scaling beside v5": {**LLAMA_5, "rope_scaling": None},
    "truncate in a nested object": {
        **GEMMA_5, **LONGER,
        "rope_parameters": {
            "full_attention": {**YARN, "rope_theta": 1e4, "truncate": False},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "mscale_all_dim without a factor": {**DEEPSEEK, "rope_scaling": {"type": "default", "mscale_all_dim": 1.0}},
    "another gpt_neox's word": {**LLAMA, **LONGER, "rotary_pct": 0.5, "rope_scaling": YARN},
    "all of a partial rotation": {**LLAMA, **LONGER, "partial_rotary_factor": 1.0, "rope_scaling": YARN},
    **{
        f"a rope_scaling of {value!r} in {family}": {**configs.config(family, "v4"), "rope_scaling": value}
        for family in ("llama", "mistral", "gemma3_text", "olmo3", "deepseek_v3") for value in (False, 0, "", [])
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("odd")
    return {name: write_config(root / str(i), data) for i, (name, data) in enumerate(AS_THE_PROGRAM.items())}


@pytest.mark.parametrize("runtime", ["transformers", "transformers-v4"])
def test_odd_files_are_read_as_the_program_reads_them(runtime: str, paths: dict[str, Path]) -> None:
    python = sys.executable if runtime == "transformers" else v4_python()
    answers = probe([{"path": str(path), "lengths": LENGTHS} for path in paths.values()], python)
    stopped = 0
    for (name, path), answer in zip(paths.items(), answers, strict=True):
        try:
            assert_agrees(answer, path, runtime)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        stopped += "error" in answer
    assert 5 <= stopped <= len(paths) - 10  # both outcomes are covered


EXAONE, MOE = configs.config("exaone4", "v5"), configs.config("qwen2_moe", "v5")
KINDLESS = {key: value for key, value in EXAONE.items() if key != "layer_types"}

# As above, of families that ropetool knows in transformers 5 alone.
AS_TRANSFORMERS_5: dict[str, tuple[dict[str, Any], bool]] = {
    "a pattern in letters beside layer_types, as EXAONE-4.0 has it": ({**EXAONE, "sliding_window_pattern": "LLLG"}, True),
    "a pattern in letters alone": ({**KINDLESS, "sliding_window_pattern": "LLLG"}, False),
    "a pattern as a number": ({**KINDLESS, "sliding_window_pattern": 2}, True),
    "a window of 0 that is switched off": ({**MOE, "sliding_window": 0, "use_sliding_window": False}, True),
    "a window of 0 without its switch": ({**MOE, "sliding_window": 0}, True),
}  # fmt: skip


def test_windows_and_patterns_are_read_as_transformers_5_reads_them(tmp_path: Path) -> None:
    sources = [write_config(tmp_path / str(i), data) for i, (data, _) in enumerate(AS_TRANSFORMERS_5.values())]
    answers = probe([{"path": str(path), "lengths": LENGTHS} for path in sources])
    for (name, (_, loads)), path, answer in zip(AS_TRANSFORMERS_5.items(), sources, answers, strict=True):
        assert ("error" not in answer) == loads, name
        assert_agrees(answer, path, "transformers")


NESTED = {"full_attention": {**YARN, "rope_theta": 1e4}}

# The program loads these and computes something that the file does not say; ropetool refuses them instead.
IGNORED = {
    "flat for gemma3": ({**GEMMA_5, **LONGER, "rope_parameters": {**YARN, "rope_theta": 1e4}}, "it is flat"),
    "nested for llama": ({**LLAMA_5, **LONGER, "rope_parameters": NESTED}, "it is nested"),
    "nested rope_scaling": ({**LLAMA, **LONGER, "rope_scaling": NESTED}, "rope_scaling must be flat"),
    "negative divisors": ({**LLAMA, "rope_scaling": {**LONGROPE, "long_factor": [-1.0] * 16}}, "above 0"),
    "a base on top and another inside": (
        {**LLAMA_5, **LONGER, "rope_theta": 5e5, "rope_parameters": {**YARN, "rope_theta": 1e4}}, "500000 at the top",
    ),
}  # fmt: skip


def test_what_the_program_ignores_in_silence_is_refused(tmp_path: Path) -> None:
    sources = {name: write_config(tmp_path / str(i), data) for i, (name, (data, _)) in enumerate(IGNORED.items())}
    answers = probe([{"path": str(path), "lengths": [512]} for path in sources.values()])
    for (name, path), answer in zip(sources.items(), answers, strict=True):
        assert "error" not in answer, name
        with pytest.raises(ConfigError, match=IGNORED[name][1]):
            inspection.inspect(path)


def test_a_partial_rotation_narrows_the_table_of_whole_heads(tmp_path: Path) -> None:
    """Unscaled it is ignored by transformers 5; otherwise the table no longer fits the head, and we say so."""
    partial = {**LLAMA, "partial_rotary_factor": 0.5}
    unscaled, yarn = (
        write_config(tmp_path / "a", partial),
        write_config(tmp_path / "b", {**partial, **LONGER, "rope_scaling": YARN}),
    )
    jobs = [{"path": str(path), "lengths": LENGTHS} for path in (unscaled, yarn)]
    new, old = probe(jobs), probe(jobs, v4_python())
    assert_agrees(new[0], unscaled, "transformers")
    for answer, path, runtime in (
        (new[1], yarn, "transformers"), (old[0], unscaled, "transformers-v4"), (old[1], yarn, "transformers-v4"),
    ):  # fmt: skip
        assert len(answer["layers"]["full_attention"][0]["inv_freq"]) == 8  # of 16 pairs
        reading = next(r for r in inspection.inspect(path).readings if r.name == runtime)
        assert "llama rotates whole heads" in reading.refuses


SECTIONS: dict[str, tuple[Any, str]] = {
    "two sections of three pairs": ([1, 2], "covers 3 rotary pairs"),
    "twice the pairs": ([4, 4, 8], "covers 16 rotary pairs"),
    "a text": ("x", "is not a list of whole numbers"),
    "no section": ([], "is not a list of whole numbers"),
    "numbers with a point": ([2.0, 3.0, 3.0], "is not a list of whole numbers"),
}


@pytest.mark.parametrize("name", SECTIONS)
def test_sections_of_other_pairs_than_there_are_stop_the_class_and_are_refused(name: str, tmp_path: Path) -> None:
    import torch
    from transformers import Qwen2VLTextConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextModel

    def run(sections: Any) -> None:
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}
        model = Qwen2VLTextModel(Qwen2VLTextConfig(**sizes, rope_parameters=rope))
        model(inputs_embeds=torch.zeros(1, 4, 64), position_ids=torch.arange(4).expand(3, 1, 4))

    sizes = {
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
        "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 512,
    }  # fmt: skip
    run([2, 3, 3])
    sections, says = SECTIONS[name]
    with pytest.raises((RuntimeError, TypeError)):
        run(sections)
    text = {"model_type": "qwen2_vl_text", **sizes, "rope_scaling": {"type": "mrope", "mrope_section": sections}}
    with pytest.raises(ConfigError, match=says):
        ropetool.plan(
            write_config(tmp_path / "wrong", {"model_type": "qwen2_vl", "text_config": text}), method="yarn", factor=4
        )
    well = {**text, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    assert ropetool.plan(
        write_config(tmp_path / "well", {"model_type": "qwen2_vl", "text_config": well}), method="yarn", factor=4
    ).edits


@pytest.mark.parametrize("where", ["beside", "inside"])
def test_a_share_of_the_head_as_text_is_refused_as_text(where: str, tmp_path: Path) -> None:
    share = {"partial_rotary_factor": "0.25"}
    plain = {**configs.config("phi", "v5"), "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    plain.pop("partial_rotary_factor", None)
    config = (
        {**plain, **share} if where == "beside" else {**plain, "rope_parameters": {**plain["rope_parameters"], **share}}
    )
    path = write_config(tmp_path / "share", config)
    assert "error" in probe([{"path": str(path), "lengths": [512]}])[0]
    with pytest.raises(ConfigError, match=r'"0\.25" is not a number') as error:
        inspection.inspect(path)
    assert "partial_rotary_factor" in (error.value.where or "")


def test_a_number_of_layers_of_null_is_refused_by_the_key_that_states_it(tmp_path: Path) -> None:
    """The remote code of exaone counts num_layers, and stops at null as any range does."""
    config = {
        "model_type": "exaone", "hidden_size": 64, "num_attention_heads": 4, "num_layers": None,
        "max_position_embeddings": 512, "rope_theta": 1e4,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="null is not a whole number from 1 to") as error:
        inspection.inspect(write_config(tmp_path / "exaone", config))
    assert (error.value.where or "").endswith(": num_layers")
