"""Configs that hand over to a family: wrappers around a text model, and other names; in files, without transformers.

The classes themselves are asked in oracle/test_wrapper_classes.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import configs
import gguf_files
import models
import numpy as np
import pytest
from models import config_of, write_config
from running import run
from safetensors import safe_open
from safetensors.numpy import save_file

import ropetool
from ropetool import families
from ropetool.errors import InvalidRope, LossyExport, UnknownFamily
from ropetool.families.wrappers import ALIASES, PREFIXES, WRAPPERS
from ropetool.files.gguf import read_header
from ropetool.runtimes import inspection

PLACES = {"llava": "text_config", "internvl_chat": "llm_config"}
VICUNA = {  # the whole text_config of llava-hf/llava-1.5-7b-hf
    "_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096,
    "model_type": "llama", "rms_norm_eps": 1e-05, "torch_dtype": "float16", "vocab_size": 32064,
}  # fmt: skip


def wrapped(wrapper: str, text: str = "llama", **changes: Any) -> dict[str, Any]:
    """Return a wrapper around a small text model, with an image model beside it that has positions of its own."""
    inner = {**configs.config(text, "v4"), **changes}
    vision = {"rope_theta": 100.0, "max_position_embeddings": 64}
    return {"model_type": wrapper, "vision_config": vision, WRAPPERS[wrapper].text: inner}


@pytest.mark.parametrize("wrapper", PLACES)
def test_the_keys_inside_change_and_nothing_else(wrapper: str, tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", wrapped(wrapper, "qwen3"))
    before, text = config_of(source), PLACES[wrapper]
    found = inspection.inspect(source)
    assert found.family is not None
    assert (found.model_type, found.family.model_type) == (wrapper, "qwen3")
    assert f"{text}.rope_theta" in found.stated
    plan = ropetool.plan(source, "yarn", factor=4)
    assert plan.family == wrapper
    assert {edit.path[0] for edit in plan.edits} == {text}
    after = config_of(ropetool.apply(plan, source, tmp_path / "out").output)
    changed = {key for key in after[text] if after[text][key] != before[text].get(key)}
    assert changed == {"rope_scaling", "max_position_embeddings"}
    assert after[text]["rope_scaling"]["original_max_position_embeddings"] == 512
    assert {**after, text: None} == {**before, text: None}


def test_a_wrapper_computes_what_the_bare_text_model_does(tmp_path: Path) -> None:
    bare = write_config(tmp_path / "bare", configs.config("gemma3_text", "v5"))
    inner = {key: value for key, value in configs.config("gemma3_text", "v5").items() if key != "model_type"}
    inside = write_config(tmp_path / "inside", {"model_type": "shieldgemma2", "text_config": inner})
    tables = [ropetool.plan(source, "ntk", factor=4).tables for source in (bare, inside)]
    assert tables[0] == tables[1]
    assert set(tables[0]) == {"full_attention", "sliding_attention"}


def test_sizes_that_the_class_has_by_default_are_left_out_of_published_files(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", {"model_type": "llava", "text_config": VICUNA})
    found = inspection.inspect(source)
    assert found.rope is not None
    entry = found.rope.entries["full_attention"]
    assert (entry.head_dim, entry.rotary_dim, entry.layers) == (128, 128, tuple(range(32)))
    assert found.cache_bytes(1) == 32 * 2 * 32 * 128 * 2
    output = ropetool.apply(ropetool.plan(source, "yarn", factor=4), source, tmp_path / "out").output
    after = config_of(output)["text_config"]
    assert {key for key in after if after[key] != VICUNA.get(key)} == {"rope_scaling", "max_position_embeddings"}
    inner = configs.config("gemma3_text", "v5")
    del inner["num_attention_heads"], inner["num_key_value_heads"]
    gemma = write_config(tmp_path / "gemma", {"model_type": "gemma3", "text_config": inner})
    assert inspection.inspect(gemma).cache_bytes(1) == 2 * 2 * 4 * inner["head_dim"] * 4


@pytest.mark.parametrize(
    ("wrapper", "text"), [("kimi_vl", "deepseek_v3"), ("deepseek_vl_v2", "deepseek_v2")]
)  # fmt: skip
def test_classes_that_build_one_text_model_ask_for_no_name(wrapper: str, text: str, tmp_path: Path) -> None:
    for number, stated in enumerate((text, "llama", None)):
        source = write_config(tmp_path / str(number), wrapped(wrapper, text, model_type=stated))
        found = inspection.inspect(source)
        assert found.family is not None
        assert (found.model_type, found.family.model_type) == (wrapper, text)
        assert len(found.notes) == 2  # no weights, and remote code
        plan = ropetool.plan(source, "yarn", factor=4)
        assert {edit.path[0] for edit in plan.edits} == {WRAPPERS[wrapper].text}
    told = run("families", wrapper)
    assert (told.code, f"is always a {text}" in told.err) == (1, True)


@pytest.mark.parametrize("off", [False, None])
def test_a_text_model_that_a_switch_makes_another_has_a_family_of_its_own(off: bool | None, tmp_path: Path) -> None:
    """deepseek-ai/deepseek-vl2-tiny and DeepSeek-OCR: plain attention under the name of an MLA model."""
    plain = {"use_mla": off, "kv_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0}
    source = write_config(tmp_path / "m", wrapped("deepseek_vl_v2", "deepseek_v2", **plain))
    with pytest.raises(LossyExport, match="deepseek_ocr accepts only the rope_type default"):
        ropetool.plan(source, "yarn", factor=4)
    found = inspection.inspect(source)
    assert found.rope is not None
    assert found.family is not None
    assert (found.family.model_type, found.stated["language_config.max_position_embeddings"]) == ("deepseek_ocr", 512)
    assert found.rope.entries["full_attention"].layout == "half"
    on = write_config(tmp_path / "on", wrapped("deepseek_vl_v2", "deepseek_v2", use_mla=True))
    assert ropetool.plan(on, "yarn", factor=4).edits


REMOTE = (
    "transformers has no class for {}, only the remote code of its repository, which ropetool never runs. ropetool reads "
    "the config as the built-in class of {} does"
)


@pytest.mark.parametrize(
    ("config", "note"),
    [
        (wrapped("kimi_vl", "deepseek_v3"), REMOTE.format("kimi_vl", "deepseek_v3")),
        (wrapped("internvl_chat", "qwen3"), REMOTE.format("internvl_chat", "qwen3")),
        ({**configs.config("deepseek_v3", "v4"), "model_type": "kimi_k2"}, REMOTE.format("kimi_k2", "deepseek_v3")),
        (
            {**configs.config("llama", "v4"), "auto_map": {"AutoModel": "code.Model"}},
            (
                "auto_map names remote code, which ropetool never runs. It reads the config as the built-in model class "
                "does"
            ),
        ),
        (wrapped("llava"), None),
        (configs.config("llama", "v4"), None),
    ],
)
def test_readings_say_when_they_are_not_of_the_code_that_runs(
    config: dict[str, Any], note: str | None, tmp_path: Path
) -> None:
    source = write_config(tmp_path / "m", config)
    for notes in (inspection.inspect(source).notes, ropetool.plan(source, "yarn", factor=4).notes):
        assert [one for one in notes if "remote code" in one] == ([note] if note else [])


def test_a_wrapper_may_hold_another_name() -> None:
    inner = {**configs.config("deepseek_v3", "v4"), "model_type": "kimi_k2"}
    family = families.of_config({"model_type": "kimi_k25", "text_config": inner})
    assert (family.name, family.model_type, family.text_path) == ("kimi_k25", "deepseek_v3", ("text_config",))


def test_only_the_runtimes_that_are_known_to_hand_over_are_asked(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", wrapped("llava"))
    readings = {reading.name: reading for reading in inspection.inspect(source).readings}
    assert readings["transformers"].rope is not None
    assert readings["transformers-v4"].rope is not None
    assert readings["mlx-vlm"].rope is not None
    assert readings["llama.cpp"].rope is not None  # of the text model's export
    others = [name for name in readings if not name.startswith(("transformers", "mlx", "llama.cpp"))]
    assert others
    for name in others:
        assert (readings[name].rope, readings[name].known) == (None, False)
        assert "llava" in readings[name].refuses


# --- weights


@pytest.mark.parametrize("prefix", PREFIXES)
def test_bakes_find_the_text_model_and_leave_the_image_model(prefix: str, tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", wrapped("llava"))
    rng = np.random.default_rng(4)
    rows = {"q": 128, "k": 64}
    tensors = {
        f"{prefix}layers.{layer}.self_attn.{side}_proj.weight": rng.standard_normal((height, 128), np.float32)
        for layer in range(2)
        for side, height in rows.items()
    }
    tensors["vision_tower.encoder.layers.0.self_attn.k_proj.weight"] = rng.standard_normal((8, 8), np.float32)
    save_file(tensors, source / "model.safetensors")
    extended = ropetool.apply(ropetool.plan(source, "yarn", factor=4), source, tmp_path / "out").output
    plan = ropetool.bake(extended, "attention-factor", side="k")
    assert sorted(edit.tensor for edit in plan.tensors) == [
        f"{prefix}layers.{n}.self_attn.k_proj.weight" for n in (0, 1)
    ]
    assert {edit.path[0] for edit in plan.edits if edit.file == "config.json"} == {"text_config"}


# --- refusals


def test_an_unknown_text_model_is_named(tmp_path: Path) -> None:
    inner = {**configs.config("llama", "v4"), "model_type": "phi4_vision_text"}
    source = write_config(tmp_path / "m", {"model_type": "llava", "text_config": inner})
    with pytest.raises(UnknownFamily, match="in its text_config: unknown model family 'phi4_vision_text'"):
        ropetool.plan(source, "yarn", factor=4)
    found = inspection.inspect(source)
    assert found.family is None
    assert 'the family "phi4_vision_text" (of the text model of "llava") is unknown' in found.notes[-1]


@pytest.mark.parametrize(
    ("wrapper", "text", "left_out"),
    [
        ("voxtral", "llama", "head_dim"), ("glmasr", "llama", "rope_parameters"),
        ("deepseek_vl_v2", "deepseek_v2", "num_hidden_layers"),
    ],
)  # fmt: skip
def test_numbers_that_a_class_would_fill_in_must_be_stated(
    wrapper: str, text: str, left_out: str, tmp_path: Path
) -> None:
    key = WRAPPERS[wrapper].text
    inner = {"head_dim": 32, **configs.config(text, "v5")}
    whole = write_config(tmp_path / "whole", {"model_type": wrapper, key: inner})
    assert ropetool.plan(whole, "linear", factor=4).edits
    del inner[left_out]
    source = write_config(tmp_path / "m", {"model_type": wrapper, key: inner})
    with pytest.raises(InvalidRope, match=f"the class of {wrapper} would use its own default") as refused:
        ropetool.plan(source, "linear", factor=4)
    assert refused.value.where.endswith(f"{key}.{left_out}")


def test_edits_that_would_let_a_class_fill_in_are_refused(tmp_path: Path) -> None:
    inner = {"head_dim": 32, **configs.config("llama", "v5")}
    source = write_config(tmp_path / "m", {"model_type": "glmasr", "text_config": inner})
    with pytest.raises(InvalidRope, match="would use its own default"):
        ropetool.plan(source, "ntk", factor=4, config_style="v4")


def test_a_wrapper_inside_wrappers_is_refused_at_once(tmp_path: Path) -> None:
    """Each level once multiplied the names that attention may have in the weights: 60 took all memory."""
    data: dict[str, Any] = configs.config("llama", "v4")
    for _ in range(60):
        data = {"model_type": "llava", "text_config": data}
    source = write_config(tmp_path / "m", data)
    with pytest.raises(UnknownFamily, match="in its text_config: llava is a wrapper"):
        ropetool.plan(source, "yarn", factor=4)
    assert inspection.inspect(source).family is None


def test_a_wrapper_without_its_text_model_is_refused(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", {"model_type": "llava"})
    with pytest.raises(
        InvalidRope, match="text_config must be an object, because it contains the rope keys of llava; it is null"
    ):
        ropetool.plan(source, "yarn", factor=4)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_text_model_of_a_wrapper_is_exported_as_it_is_where_it_stands_alone(prefix: str, tmp_path: Path) -> None:
    bare = models.write(tmp_path / "bare", "llama")
    inside = shutil.copytree(bare, tmp_path / "inside")
    config = config_of(bare)
    (inside / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": config, "vision_config": {}}))
    with safe_open(bare / "model.safetensors", "np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    head = {"lm_head.weight": tensors.pop("lm_head.weight")}
    named = head | {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
    tower = {f"vision_tower.layers.{layer}.self_attn.k_proj.weight": np.ones((8, 8), np.float32) for layer in (0, 1)}
    save_file({**named, **tower}, inside / "model.safetensors")
    one, other = (models.export(source, tmp_path / f"{source.name}.gguf") for source in (bare, inside))
    wanted, found = (read_header(result.output) for result in (one, other))
    assert gguf_files.tensors(one.output) == gguf_files.tensors(other.output)
    apart = {
        key for key in wanted.values.keys() | found.values.keys() if wanted.values.get(key) != found.values.get(key)
    }
    assert {key for key in apart if not key.startswith(("general.", "ropetool."))} == set()
    assert any("only the text model; left out (number of tensors): vision_tower (2)" in note for note in other.notes)
    save_file(
        {**named, f"{prefix}layers.0.self_attn.k_norm.weight": np.ones(32, np.float32)}, inside / "model.safetensors"
    )
    with pytest.raises(LossyExport, match=r"has no place for model\.layers\.0\.self_attn\.k_norm\.weight"):
        models.export(inside, tmp_path / "again.gguf")
    assert not (tmp_path / "again.gguf").exists()


def test_the_plan_is_for_the_wrapper_that_it_was_made_for(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", wrapped("llava"))
    (tmp_path / "plan.json").write_text(json.dumps(ropetool.plan(source, "yarn", factor=4).to_json()))
    other = write_config(tmp_path / "other", wrapped("llava_next"))
    done = run("apply", other, tmp_path / "plan.json", "-o", tmp_path / "out")
    assert (done.code, "the plan is for llava" in done.err) == (1, True)
    assert not (tmp_path / "out").exists()


def test_the_list_of_families_says_where_a_wrapper_leads() -> None:
    done = run("families", "llava")
    assert (
        done.code,
        "the model_type in its text_config is the family, llama by default" in done.err,
    ) == (1, True)
    assert run("families", "kimi_k2").out == run("families", "deepseek_v3").out


def test_the_data_names_families_and_sources() -> None:
    assert all(families.find(name) for name in ALIASES.values())
    assert not set(WRAPPERS) & set(families.names())
    for name, wrapper in WRAPPERS.items():
        assert wrapper.source, name
        assert name in wrapper.source or "/" in wrapper.source


EXAONE = {  # as LGAI-EXAONE/EXAONE-4.5-33B was first published, with fewer layers
    "model_type": "exaone4_5_text", "hidden_size": 5120, "num_hidden_layers": 8, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144, "rope_theta": 1000000,
    "sliding_window": 4096, "sliding_window_pattern": "LLLG",
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip


def test_a_text_type_that_the_class_renames_is_read_as_the_other(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", {"model_type": "exaone4_5", "text_config": EXAONE})
    found = inspection.inspect(source)
    assert found.family is not None
    assert found.rope is not None
    entry = found.rope.entries["full_attention"]
    assert (found.family.model_type, entry.factor, entry.layers) == ("exaone4", 16.0, (0, 1, 2, 4, 5, 6))
    assert entry.table is not None
    inv_freq = entry.table.at(262144).inv_freq
    assert (len(inv_freq), entry.attention_factor) == (64, 1.0)
    assert float(inv_freq[-1]) == pytest.approx(7.75586e-08, rel=1e-5)  # transformers' class on that config
    after = config_of(
        ropetool.apply(ropetool.plan(source, "yarn", factor=2, reading="current"), source, tmp_path / "out").output
    )
    assert after["text_config"]["model_type"] == "exaone4_5_text"


UNKNOWN = "ropetool does not know the code of foo_vl: it reads text_config as qwen2 does"


def test_an_unknown_wrapper_hands_over_to_a_known_text_model_and_says_so(tmp_path: Path) -> None:
    inner = configs.config("qwen2", "v4")
    bare = write_config(tmp_path / "bare", inner)
    source = write_config(tmp_path / "m", {"model_type": "foo_vl", "auto_map": {}, "text_config": inner})
    plan = ropetool.plan(source, "ntk", factor=4)
    assert plan.tables == ropetool.plan(bare, "ntk", factor=4).tables
    assert {edit.path[0] for edit in plan.edits} == {"text_config"}
    output = ropetool.apply(plan, source, tmp_path / "out").output
    for notes in (plan.notes, inspection.inspect(source).notes, inspection.inspect(output).notes):
        assert sum(UNKNOWN in note for note in notes) == 1
    as_named = ropetool.plan(source, "ntk", factor=4, as_type="qwen2")
    assert (as_named.tables, as_named.edits) == (plan.tables, plan.edits)
    known = {reading.name for reading in inspection.inspect(source).readings if reading.known}
    assert known <= {"transformers", "llama.cpp"}  # what another program does with the wrapper is not known


def test_as_names_the_class_of_an_unknown_text_model(tmp_path: Path) -> None:
    inner = {**configs.config("qwen2", "v4"), "model_type": "foo_text", "architectures": ["FooForCausalLM"]}
    for number, wrapper in enumerate(("foo_vl", "llava")):
        source = write_config(tmp_path / str(number), {"model_type": wrapper, "text_config": inner})
        with pytest.raises(UnknownFamily):
            ropetool.plan(source, "ntk", factor=4)
        plan = ropetool.plan(source, "ntk", factor=4, as_type="qwen2")
        after = config_of(ropetool.apply(plan, source, tmp_path / f"out{number}").output)
        assert (after["model_type"], after["text_config"]["model_type"]) == (wrapper, "qwen2")
        assert after["text_config"]["architectures"] == ["Qwen2ForCausalLM"]


@pytest.mark.parametrize(
    ("more", "inner", "says"),
    [
        ({}, {"model_type": "bar"}, "unknown model family 'foo_vl'"),
        ({}, {}, "unknown model family 'foo_vl'"),
        ({"rope_theta": 7.0}, {"model_type": "qwen2"}, "unknown model family 'foo_vl'"),
        ({"num_hidden_layers": 7}, {"model_type": "qwen2"}, "unknown model family 'foo_vl'"),
    ],
)
def test_an_unknown_wrapper_of_which_too_little_is_told_stays_refused(
    more: dict[str, Any], inner: dict[str, Any], says: str, tmp_path: Path
) -> None:
    text = {key: value for key, value in configs.config("qwen2", "v4").items() if key != "model_type"}
    source = write_config(tmp_path / "m", {"model_type": "foo_vl", **more, "text_config": {**text, **inner}})
    with pytest.raises(UnknownFamily, match=says):
        ropetool.plan(source, "yarn", factor=4)
    assert inspection.inspect(source).rope is None


def test_as_another_class_than_the_text_model_names_is_refused(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", {"model_type": "foo_vl", "text_config": configs.config("qwen2", "v4")})
    with pytest.raises(InvalidRope, match='"qwen2" is a known type'):
        ropetool.plan(source, "ntk", factor=4, as_type="llama")


KIMI = {
    "model_type": "kimi_linear", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "qk_rope_head_dim": 32,
    "mla_use_nope": True, "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({**KIMI, "model_max_length": 1048576}, ["model_max_length"]),
        (
            {"model_type": "kimi_k3", "text_config": {**KIMI, "max_position_embeddings": 1048576}},
            ["text_config", "max_position_embeddings"],
        ),
    ],
)
def test_a_model_without_rotation_gets_a_longer_stated_context(
    config: dict[str, Any], place: list[str], tmp_path: Path
) -> None:
    source = write_config(tmp_path / "m", config)
    rope = inspection.inspect(source).rope
    assert rope is not None
    entry = rope.entries["full_attention"]
    assert (entry.table, entry.layers, rope.max_position_embeddings) == (None, (3,), 1048576)
    plan = ropetool.plan(source, "length", target_length=2097152)
    assert [(list(edit.path), edit.new) for edit in plan.edits] == [(place, 2097152)]
    with pytest.raises(InvalidRope, match="none of its layers rotates") as refusal:
        ropetool.plan(source, "yarn", factor=2)
    assert "--method length" in refusal.value.try_
    off = write_config(tmp_path / "off", {**KIMI, "mla_use_nope": False, "model_max_length": 4096})
    reading = next(each for each in inspection.inspect(off).readings if each.name == "transformers")
    assert (reading.known, "mla_use_nope is false" in reading.refuses) == (False, True)
