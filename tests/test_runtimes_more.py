"""vLLM, SGLang, mlx-lm and exllamav3: their names and releases, what inspect says of them, and plans that ask for them.

That the decoders compute what the programs do is what tests/oracle/test_*_rotary.py show.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import configs
import peers
import pytest
from models import write_config
from running import run

import ropetool
from ropetool import families, runtimes
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import LossyExport, UnknownRuntime
from ropetool.families.family import Family
from ropetool.report.inspected import inspection_json
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import NotKnown, Refuses, inspection
from ropetool.runtimes.base import Releases, numbers

YARN = peers.YARN
ENGINES = ("vllm", "sglang", "mlx-lm", "exllamav3")


def decode(runtime: str, family: str = "llama", style: str = "v4", **changes: Any) -> RopeSet:
    data = {**configs.config(family, style), "max_position_embeddings": 2048, **changes}
    return runtimes.get(runtime).decode(HfCheckpoint(data, families.get(family)))


# --- names and releases


def test_releases_have_their_versions() -> None:
    stretch = Releases("0.26", "0.28")
    assert [v for v in ("0.25.9", "0.26", "0.26.1", "0.28.0", "0.28.7", "0.29", "0.29.0") if stretch.has(v)] == [
        "0.26", "0.26.1", "0.28.0", "0.28.7",
    ]  # fmt: skip
    assert (str(stretch), str(Releases("0.29", "0.29"))) == ("0.26 to 0.28", "0.29")
    assert numbers("0.5.15.post1") == (0, 5, 15)
    assert numbers("nightly") == ()


def test_a_program_stands_for_all_its_releases_and_a_version_for_one() -> None:
    names = [runtime.name for runtime in runtimes.all_of("vllm", "hf")]
    assert names == [f"vllm@0.{n}" for n in (25, 26, 29, 30, 31, 32)]
    for version, name in (("0.25", "0.25"), ("0.25.1", "0.25"), ("0.27.1", "0.26"), ("0.33.0", "0.32")):
        (found,) = runtimes.all_of(f"vllm@{version}")
        assert found.name == f"vllm@{name}"
        assert runtimes.get(f"vllm@{version}") == found
    assert [runtime.name for runtime in runtimes.all_of("transformers")] == ["transformers"]
    whole = runtimes.get("vllm")
    assert (whole.name, whole.versions) == ("vllm", "0.25 to 0.33")
    assert set(ENGINES) <= set(runtimes.names())


@pytest.mark.parametrize("name", ["ollama", "Ollama", "ollama@0.30", "lmstudio", "koboldcpp", "llama-server"])
def test_programs_that_run_llama_cpp_mean_it(name: str) -> None:
    assert runtimes.all_of(name, "gguf") == runtimes.all_of("llama.cpp")
    assert runtimes.get(name).name == "llama.cpp"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vllm@0.99", "vllm 0.99 is an unknown release; known: 0.25, 0.26 to 0.28, 0.29, 0.30, 0.31, 0.32 to 0.33"),
        ("vllm@0.8", "vllm 0.8 is an unknown release"),
        ("vllm@", "vllm  is an unknown release"),
        ("vllm@new", "vllm new is an unknown release"),
        ("transformers@5", f"transformers 5 is an unknown release; known: {runtimes.get('transformers').versions}"),
        ("ollama@0.29", "ollama 0.29 does not use llama.cpp"),
        ("vllmm@0.25", r"no runtime is called 'vllmm' \(did you mean vllm\?\); known: .*vllm"),
    ],
)
def test_a_version_that_is_not_known_is_refused(name: str, message: str) -> None:
    with pytest.raises(UnknownRuntime, match=message):
        runtimes.all_of(name)
    with pytest.raises(UnknownRuntime, match=message):
        runtimes.get(name)


def test_a_format_that_it_does_not_read_is_refused_by_name() -> None:
    for engine in ENGINES:
        with pytest.raises(UnknownRuntime, match=f"{engine} does not read gguf files; these do: llama.cpp"):
            runtimes.all_of(engine, "gguf")


def test_names_fold_where_all_of_a_program_are_there() -> None:
    every = [runtime.name for runtime in runtimes.all_of("sglang")]
    assert runtimes.collapse_releases(["transformers", *every]) == ["transformers", "sglang"]
    assert runtimes.collapse_releases(every[:1]) == every[:1]
    assert runtimes.for_format("hf")[0].name == "transformers"


def test_all_releases_agree_or_the_whole_program_refuses() -> None:
    assert decode("vllm", rope_scaling=YARN).entries["full_attention"].factor == 4.0
    with pytest.raises(Refuses, match=r"0\.25 and 0\.30 differ: attention factor 1 instead of 1\.13863"):
        decode("vllm", rope_scaling={**YARN, "attention_factor": 1.0})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_family_that_was_not_looked_at_is_not_guessed(engine: str) -> None:
    family = Family("other", "", "OtherForCausalLM", "half", default_rope_theta={"full_attention": 1e4})
    for runtime in runtimes.all_of(engine):
        with pytest.raises(NotKnown, match=r"no data on other in|has no (model file|architecture) for other"):
            runtime.decode(HfCheckpoint(configs.config("llama", "v4"), family))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_kimi_k2_is_loaded_and_run_as_deepseek_v3(engine: str) -> None:
    data = {**configs.config("deepseek_v3", "v4"), "architectures": ["DeepseekV3ForCausalLM"], "rope_scaling": YARN}
    kimi = {**data, "model_type": "kimi_k2"}
    for runtime in runtimes.all_of(engine):
        found = [runtime.decode(HfCheckpoint(one, families.of_config(one))) for one in (data, kimi)]
        assert found[0].disagreement(found[1]) == ""
        other = {**kimi, "architectures": ["KimiLinearForCausalLM"]}
        with pytest.raises(NotKnown, match="no data on kimi_k2 in"):
            runtime.decode(HfCheckpoint(other, families.of_config(other)))


# --- the recorded answers


def test_the_recorded_answers_are_of_the_present_configs() -> None:
    assert list(peers.golden("vllm", "0.33.0")) == list(peers.jobs())
    known = {f"{program}@{v}" for program, versions in peers.RELEASES.items() for v in versions}
    for program in ENGINES:
        for runtime in runtimes.all_of(program):
            ends = (runtime.releases.first, runtime.releases.last) if runtime.releases else (runtime.versions,) * 2
            for end in ends:
                assert any(name.startswith(f"{program}@{end}") for name in known), (program, end)


@pytest.mark.parametrize("cell", [name for name in peers.CELLS if name not in ("default", "yarn", "linear-whole")])
def test_each_cell_can_be_seen(cell: str) -> None:
    """Each option changes three pairs by 1e-3, or a factor by 1e-2, against plain yarn, in at least one program."""
    seen = []
    for engine in ENGINES:
        for runtime in runtimes.all_of(engine):
            try:
                plain = runtime.decode(HfCheckpoint(peers.config("llama", "v4", YARN), families.get("llama")))
                found = runtime.decode(
                    HfCheckpoint(peers.config("llama", "v4", peers.CELLS[cell]), families.get("llama"))
                )
            except Refuses:
                seen.append(True)
                continue
            a, b = (rope.entries["full_attention"] for rope in (plain, found))
            assert a.table is not None
            assert b.table is not None
            ratio = b.table.regimes[-1].inv_freq / a.table.regimes[-1].inv_freq
            seen.append(
                int((abs(ratio - 1) > 1e-3).sum()) >= 3 or abs(b.attention_factor / a.attention_factor - 1) > 1e-2
            )
    assert any(seen) or cell == "yarn-unsaid-length"


# --- inspect


def listed(path: Path) -> list[str]:
    return run("inspect", path).out.partition("\nruntimes\n")[2].partition("\n\n")[0].splitlines()


def test_inspect_says_which_differ_in_what_and_what_it_does(tmp_path: Path) -> None:
    data = {
        **configs.config("llama", "v4"),
        "max_position_embeddings": 2048,
        "rope_scaling": {**YARN, "attention_factor": 1.0},
    }
    assert listed(write_config(tmp_path / "a", data)) == [
        "  as above  transformers, exllamav3, transformers-v4, vllm 0.30 to 0.33, llama.cpp",
        "  DIFFERS   mlx-lm, mlx-vlm, sglang, vllm 0.25 to 0.29",
        "            - attention factor 1.13863 instead of 1: scores of the rotated channels times 1.29648",
    ]
    data = {**data, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    assert listed(write_config(tmp_path / "b", data)) == [
        "  as above  transformers, exllamav3, mlx-lm, mlx-vlm, transformers-v4, llama.cpp",
        "  DIFFERS   sglang, vllm",
        "            - context 8192 instead of 2048: accepts longer texts",
    ]
    data = {
        **configs.config("llama", "v5"),
        "max_position_embeddings": 2048,
        "rope_parameters": {**YARN, "rope_theta": 5e5},
    }
    assert listed(write_config(tmp_path / "c", data)) == [
        "  as above  transformers, exllamav3, sglang, vllm, llama.cpp",
        "  DIFFERS   mlx-lm, mlx-vlm, transformers-v4",
        "            - table: 15 of 16 pairs differ: distances look up to 157x longer",
        "            - attention factor 1 instead of 1.13863: scores of the rotated channels times 0.771321",
    ]


def test_inspect_says_what_scales_the_score(tmp_path: Path) -> None:
    scaling = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 1.0}
    data = {**configs.config("deepseek_v3", "v4"), "max_position_embeddings": 2048, "rope_scaling": scaling}
    assert listed(write_config(tmp_path / "a", data)) == [
        "  as above  transformers, exllamav3, mlx-lm, mlx-vlm, sglang, transformers-v4, vllm 0.25 to 0.30, llama.cpp",
        "  DIFFERS   vllm 0.31 to 0.33",
        "            - the whole score is multiplied by 1 instead of 1.29648: attention is flatter",
    ]


def test_releases_that_read_alike_are_one_stretch() -> None:
    every = [runtime.name for runtime in runtimes.all_of("vllm")]
    assert runtimes.display_ranges(["transformers", *every]) == ["transformers", "vllm"]
    some = [name for name in every if name not in ("vllm@0.26", "vllm@0.31")]
    assert runtimes.display_ranges(some) == ["vllm 0.25", "vllm 0.29 to 0.30", "vllm 0.32 to 0.33"]
    assert runtimes.display_ranges(["llama.cpp", "nothing"]) == ["llama.cpp", "nothing"]


def test_the_json_says_the_same(tmp_path: Path) -> None:
    data = {**configs.config("mixtral", "v4"), "head_dim": 32, "max_position_embeddings": 2048, "rope_scaling": YARN}
    found = inspection_json(inspection.inspect(write_config(tmp_path / "a", data)))["runtimes"]
    assert found["transformers"]["differs"] == []
    assert found["sglang@0.5.16"]["differs"] == [
        "table: 14 of 16 pairs differ: distances look up to 4x longer",
        "attention factor 1 instead of 1.13863: scores of the rotated channels times 0.771321",
    ]  # fmt: skip


def test_a_runtime_that_is_not_known_is_said_so(tmp_path: Path) -> None:
    data = {**configs.config("llama", "v4"), "max_position_embeddings": 4096, "rope_scaling": YARN}
    found = inspection.inspect(write_config(tmp_path / "a", data))
    text = listed(tmp_path / "a")
    where = text.index("  not known  sglang")
    assert text[where + 1].startswith("             - releases differ for positions beyond 2048")
    assert "not_known" in inspection_json(found)["runtimes"]["sglang@0.5.15"]


# --- plans


def plan(tmp_path: Path, family: str, method: str, *asked: str, **options: Any) -> ropetool.plans.plan.Plan:
    path = tmp_path / family
    if not path.exists():
        data = peers.config(family, "v4", None)
        if family == "gemma3_text":
            data["rope_local_base_freq"] = 10000.0  # as published; exllamav3 takes this whatever the config says
        write_config(path, {**data, "rms_norm_eps": 1e-5})
    return ropetool.plan(path, method, factor=4, for_runtimes=list(asked), **options)


def kept(made: ropetool.plans.plan.Plan) -> list[str]:
    return [candidate.name for candidate in made.candidates if not candidate.rejected]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "deepseek_v3", "mistral", "gemma3_text"])
def test_one_file_for_six_programs(family: str, tmp_path: Path) -> None:
    made = plan(tmp_path, family, "yarn", "transformers", "transformers-v4", *ENGINES)
    assert kept(made) == ["yarn keys"]
    assert set(made.runtimes) >= {"transformers", "vllm@0.25", "vllm@0.32", "sglang@0.5.16", "mlx-lm@0.32.0"}
    others = [note for note in made.notes if "would compute something else" in note]
    # mlx-vlm looks for gemma3's base under a key that no file of transformers has.
    assert [note.partition(" would")[0] for note in others] == (["mlx-vlm"] if family == "gemma3_text" else [])


def test_phi3_is_served_by_lists_with_the_factor_that_vllm_assumes(tmp_path: Path) -> None:
    lists = "a full table as longrope lists"
    assert kept(plan(tmp_path, "phi3", "yarn", "transformers", "vllm", "sglang", attention_factor="logn")) == [lists]
    made = plan(tmp_path, "phi3", "yarn", "transformers", "vllm")
    (rejected,) = [c.rejected for c in made.candidates if c.name == lists]
    assert (
        rejected
        == "vllm@0.25: attention factor 1.10554 instead of 1.13863: scores of the rotated channels times 0.942726"
    )
    assert kept(made) == [f"{lists} without a factor, the rest in the weights"]
    assert made.bakes == ("attention factor 1.02993 of full_attention: its square into the keys",)


def test_the_weights_take_what_one_program_does_not_read(tmp_path: Path) -> None:
    made = plan(tmp_path, "llama", "ntk-by-parts", "transformers", "vllm", "sglang")
    assert (
        made.candidates[0].rejected
        == "vllm@0.25: attention factor 1.13863 instead of 1: scores of the rotated channels times 1.29648"
    )
    assert kept(made) == ["yarn keys without a factor, the rest in the weights"]
    made = plan(tmp_path, "llama", "linear", "transformers", "vllm")
    assert made.candidates[0].rejected == "vllm@0.25: context 8192 instead of 2048: accepts longer texts"
    assert kept(made) == ["a full table as longrope lists without a factor, the rest in the weights"]


def test_a_program_that_no_file_serves_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(LossyExport) as refused:
        plan(tmp_path, "mixtral", "yarn", "transformers", "sglang")
    text = refused.value.message
    assert text.startswith(
        "yarn cannot be written in v4 style for transformers, sglang: no file works for sglang@0.5.15: "
    )
    assert "sglang@0.5.15: table: 14 of 16 pairs differ: distances look up to 4x longer" in text


def test_one_release_may_do_what_all_cannot(tmp_path: Path) -> None:
    made = plan(tmp_path, "llama", "ntk-by-parts", "transformers", "vllm@0.33")
    assert made.runtimes == ("transformers", "vllm@0.32")
    (note,) = [n for n in made.notes if "would compute something else: attention factor 1.13863 instead of 1" in n]
    assert note.startswith("mlx-lm, mlx-vlm, sglang, vllm@0.25, vllm@0.26, vllm@0.29 would compute something else: ")
    assert note.endswith(
        "--for transformers --for vllm@0.32 --for mlx-lm --for mlx-vlm --for sglang --for vllm@0.25 --for vllm@0.26 "
        "--for vllm@0.29 writes a file that works for them too"
    )


def test_the_attention_factor_of_mla_is_compared_as_the_score(tmp_path: Path) -> None:
    """deepseek_v3 with attention_factor 1.0 beside mscale keys: 0.31 and later leave the softmax scale alone."""
    scaling = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 1.0}
    old, new = (
        decode(f"vllm@{v}", "deepseek_v3", rope_scaling=scaling).entries["full_attention"] for v in ("0.30", "0.31")
    )
    assert (old.attention_factor, new.attention_factor) == (1.0, 1.0)
    assert old.score_rotary == pytest.approx((0.1 * math.log(4) + 1) ** 2)
    assert new.score_rotary == 1.0
    (found,) = old.differences(new)
    assert found.words == "the whole score is multiplied by 1 instead of 1.29648"


def test_the_factor_keys_that_most_programs_read_alike() -> None:
    """attention_factor with attn_factor beside it, and on MLA with mscale 0: the docs say where each works."""
    both = {**YARN, "attention_factor": 0.9, "attn_factor": 0.9 / (0.1 * math.log(4) + 1)}
    for name in ("transformers", "transformers-v4", "vllm", "sglang", "exllamav3"):
        assert decode(name, rope_scaling=both).entries["full_attention"].attention_factor == pytest.approx(
            0.9, rel=1e-12
        )
    assert decode("mlx-lm", rope_scaling=both).entries["full_attention"].attention_factor == pytest.approx(
        1.13863, rel=1e-5
    )
    alone = {**YARN, "attention_factor": 1.0, "mscale": 0.0}
    for name in ("transformers", "transformers-v4", *ENGINES):
        entry = decode(name, "deepseek_v3", rope_scaling=alone).entries["full_attention"]
        assert (entry.attention_factor, entry.softmax_multiplier) == (1.0, 1.0), name


def image_model(architecture: str | None = "Qwen3VLForConditionalGeneration", **keys: Any) -> HfCheckpoint:
    """Return a config around a small qwen3_vl text model, with its sections of the rotary pairs."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True, **keys}
    text = {
        "model_type": "qwen3_vl_text", "hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
        "num_hidden_layers": 4, "max_position_embeddings": 4096, "rope_parameters": rope,
    }  # fmt: skip
    named = {} if architecture is None else {"architectures": [architecture]}
    return HfCheckpoint({"model_type": "qwen3_vl", **named, "text_config": text})


def test_the_text_model_inside_a_wrapper_is_run_by_vllm_as_the_class_that_the_wrapper_makes() -> None:
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    theirs = {**scaled, "attention_factor": 1.0}
    for keys in ({}, scaled):
        found, wanted = (runtimes.get(name).decode(image_model(**keys)) for name in ("vllm@0.32", "transformers"))
        assert not wanted.entries["full_attention"].differences(found.entries["full_attention"])
    older, newer = (runtimes.get(f"vllm@{v}").decode(image_model(**theirs)) for v in ("0.29", "0.30"))
    assert older.entries["full_attention"].attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    assert newer.entries["full_attention"].attention_factor == 1.0


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (image_model(None), "no data on qwen3_vl in vLLM"),
        (image_model("AnotherForConditionalGeneration"), "no data on qwen3_vl in vLLM"),
        (image_model(rope_type="linear", factor=4.0), "no data on mrope_section in vLLM"),
    ],
)
def test_what_vllm_makes_of_other_wrappers_and_tables_is_not_claimed(model: HfCheckpoint, says: str) -> None:
    with pytest.raises(NotKnown, match=says):
        runtimes.get("vllm@0.32").decode(model)


@pytest.mark.parametrize("runtime", ["vllm", "sglang", "exllamav3"])
def test_what_engines_make_of_a_model_that_rotates_nothing_is_not_claimed(runtime: str) -> None:
    config = {
        "model_type": "granitemoehybrid", "position_embedding_type": "nope", "hidden_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 2, "layer_types": ["mamba", "attention"], "max_position_embeddings": 4096,
    }  # fmt: skip
    for each in runtimes.all_of(runtime):
        with pytest.raises(NotKnown):
            each.decode(HfCheckpoint(config))
    assert runtimes.get("transformers").decode(HfCheckpoint(config)).entries["full_attention"].table is None


def test_an_empty_list_of_layers_that_rotate_says_nothing() -> None:
    """Llama 4 as published states [], which its class takes for none: every fourth layer does not rotate."""
    config = {
        "model_type": "llama4_text", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "num_hidden_layers": 8, "max_position_embeddings": 4096, "no_rope_layers": [],
    }  # fmt: skip
    found = runtimes.get("transformers").decode(HfCheckpoint(config))
    rotating = [layer for entry in found.entries.values() if entry.table is not None for layer in entry.layers]
    assert rotating == [0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize("family", ["deepseek_v2", "qwen3", "falcon"])
def test_a_source_that_a_runtime_does_not_read_has_a_next_step_that_runs(family: str, tmp_path: Path) -> None:
    """mlx-lm stops at deepseek_v2 without rope_scaling and at qwen3 without a base on top, and has no falcon."""
    config = {**configs.config(family, "v5"), "max_position_embeddings": 512}
    source = write_config(tmp_path / "model", config)
    refused = run("extend", source, "--method", "yarn", "--factor", "4", "--dry-run", "--for", "mlx-lm@0.30.7")
    assert refused.code != 0
    (command,) = [line for line in refused.err.splitlines() if line.startswith("Try: ropetool ")]
    again = run(*command.removeprefix("Try: ropetool ").split(), "--dry-run")
    assert again.code == 0, again.err
