"""Plans: where they start, which encoding they choose and why, what they say beside it, and how they travel."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import configs
import gguf_files
import pytest
from models import TOKENIZER_CONFIG, config_of, write_config, write_model
from running import run

import ropetool
from ropetool.errors import AmbiguousRope, ConfigError, InvalidRope, LossyExport
from ropetool.escaping import words
from ropetool.plans.plan import Plan

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip


def llama(tmp_path: Path, **changes: Any) -> Path:
    return write_config(tmp_path / "model", {**configs.config("llama", "v4"), **changes})


def scaled(tmp_path: Path, scaling: dict[str, Any], context: int = 4096) -> Path:
    return llama(tmp_path, rope_scaling=scaling, max_position_embeddings=context)


def edits(plan: Plan) -> dict[str, Any]:
    """Return the new values of config.json by their dotted path."""
    return {".".join(e.path): e.new for e in plan.edits if e.file == "config.json"}


def tried(plan: Plan) -> list[tuple[str, str]]:
    return [(c.name, c.rejected) for c in plan.candidates]


# --- what changes nothing


@pytest.mark.parametrize("method", ["yarn", "linear", "ntk", "ntk-by-parts", "llama3", "length"])
@pytest.mark.parametrize(
    ("goal", "step"), [({"factor": 1}, "--factor 2"), ({"target_length": 4096}, "--target-length 8192")]
)
def test_an_extension_that_changes_nothing_is_refused(
    method: str, goal: dict[str, int], step: str, tmp_path: Path
) -> None:
    if method == "length" and "factor" in goal:
        pytest.skip("length takes a target length")
    source = write_config(tmp_path / "m", {**configs.config("llama", "v4", 5e5), "max_position_embeddings": 4096})
    with pytest.raises(
        InvalidRope, match="changes nothing: the source has this table and a context of 4096"
    ) as refusal:
        ropetool.plan(source, method, **goal)
    assert refusal.value.try_ == step


def test_the_base_of_the_source_changes_nothing(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", {**configs.config("llama", "v4", 5e5), "max_position_embeddings": 4096})
    with pytest.raises(InvalidRope, match="abf with factor=1 changes nothing"):
        ropetool.plan(source, "abf", factor=1, params={"rope_theta": 5e5})


def test_another_table_at_the_same_length_is_a_change(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", {**configs.config("llama", "v4", 1e4), "max_position_embeddings": 4096})
    plan = ropetool.plan(source, "abf", factor=1, params={"rope_theta": 1e6})
    assert edits(plan) == {"rope_theta": 1e6}
    unscaled = ropetool.plan(scaled(tmp_path, LLAMA3), "yarn", factor=1, reading="original")
    assert unscaled.max_position_embeddings == 512


# --- readings


def test_two_readings_are_spelled_out(tmp_path: Path) -> None:
    source = scaled(tmp_path, LLAMA3)
    with pytest.raises(AmbiguousRope) as refusal:
        ropetool.plan(source, "yarn", factor=4)
    assert refusal.value.sentence == (
        f"{source}/config.json: already scaled (llama3, factor 8, original 512, context 4096); "
        "factor 4 could mean 512 -> 2048 (--from original: in place of the present scaling) or 4096 -> 16384 "
        "(--from current: on top of it)"
    )
    assert refusal.value.try_ == f"ropetool extend {source} --method yarn --factor 4 --from current"


def test_an_original_length_that_is_not_stored_is_asked_for(tmp_path: Path) -> None:
    """gemma-3's linear scaling stores none; inside the context only the original table leads anywhere."""
    source = scaled(tmp_path, {"rope_type": "linear", "factor": 8.0})
    with pytest.raises(
        AmbiguousRope, match=r"2 times its original length \(reading=\"original\" original_length N: "
    ) as any_:
        ropetool.plan(source, "yarn", factor=2)
    assert any_.value.try_.endswith("--factor 2 --from current")
    with pytest.raises(
        AmbiguousRope, match=r"its original length -> 2048 \(.*\) or no extension \(reading=\"current\" starts"
    ) as inside:
        ropetool.plan(source, "yarn", target_length=2048)
    assert inside.value.try_.endswith("--target-length 2048 --from original --original-length 512")
    assert ropetool.plan(source, "yarn", target_length=2048, reading="original", original_length=512)


def test_two_readings_of_a_target_length(tmp_path: Path) -> None:
    source = scaled(tmp_path, LLAMA3)
    with pytest.raises(AmbiguousRope, match=r"512 -> 8192 \(reading=\"original\": .*\) or 4096 -> 8192 \(") as beyond:
        ropetool.plan(source, "yarn", target_length=8192)
    assert beyond.value.try_.endswith("--target-length 8192 --from original")
    with pytest.raises(AmbiguousRope, match=r"no extension \(reading=\"current\" starts at 4096\)") as inside:
        ropetool.plan(source, "yarn", target_length=2048)
    assert inside.value.try_.endswith("--target-length 2048 --from original")


@pytest.mark.parametrize(
    ("scaling", "options"),
    [
        (LLAMA3, ["--factor", "4"]),
        (LLAMA3, ["--target-length", "2048"]),
        ({"rope_type": "linear", "factor": 8.0}, ["--factor", "4"]),
        ({"rope_type": "linear", "factor": 8.0}, ["--factor", "4", "--from", "original"]),
        ({"rope_type": "dynamic", "factor": 2.0}, ["--factor", "4"]),
        ({"rope_type": "dynamic", "factor": 2.0}, ["--factor", "4", "--from", "current"]),
    ],
)
def test_the_command_that_is_suggested_runs(scaling: dict[str, Any], options: list[str], tmp_path: Path) -> None:
    source = scaled(tmp_path / "it's here", scaling)
    refused = run("extend", source, "--method", "yarn", *options, "--json")
    assert refused.code == 1
    program, *command = shlex.split(refused.json["error"]["try"])
    assert program == "ropetool"
    assert run(*command).code == 0


def test_the_original_reading_replaces_the_scaling(tmp_path: Path) -> None:
    plan = ropetool.plan(scaled(tmp_path, LLAMA3), "yarn", factor=16, reading="original")
    assert (plan.reading, plan.trained_length, plan.max_position_embeddings) == ("original", 512, 8192)
    # The table is that of the same method on the unscaled model.
    plain = ropetool.plan(llama(tmp_path / "plain"), "yarn", factor=16)
    assert plan.tables == plain.tables


def test_the_current_reading_builds_on_the_table(tmp_path: Path) -> None:
    source = scaled(tmp_path, {"rope_type": "linear", "factor": 8.0})
    plan = ropetool.plan(source, "linear", factor=2, reading="current")
    assert (plan.reading, plan.trained_length, plan.max_position_embeddings) == ("current", 4096, 8192)
    base = [10000 ** (-2 * i / 32) for i in range(16)]
    assert plan.tables["full_attention"][0]["inv_freq"] == pytest.approx([f / 16 for f in base], rel=1e-12)
    assert edits(plan)["rope_scaling.long_factor"] == pytest.approx([16.0] * 16, rel=1e-12)


def test_turns_are_counted_on_the_current_table(tmp_path: Path) -> None:
    """A table divided by 8 turns in 4096 tokens as often as the base does in 512, so yarn's ramp stands where it stood."""
    source = scaled(tmp_path, {"rope_type": "linear", "factor": 8.0})
    plan = ropetool.plan(source, "yarn", factor=2, reading="current")
    plain = ropetool.plan(llama(tmp_path / "plain"), "yarn", factor=2)
    expected = [f / 8 for f in plain.tables["full_attention"][0]["inv_freq"]]
    assert plan.tables["full_attention"][0]["inv_freq"] == pytest.approx(expected, rel=1e-9)
    assert tried(plan) == [("a full table as longrope lists", "")]


def test_linear_scaling_stores_no_length(tmp_path: Path) -> None:
    source = scaled(tmp_path, {"rope_type": "linear", "factor": 8.0})
    with pytest.raises(AmbiguousRope, match="original not stored, context 4096"):
        ropetool.plan(source, "yarn", factor=16)
    with pytest.raises(InvalidRope, match="does not store the length before its linear scaling") as refusal:
        ropetool.plan(source, "yarn", factor=16, reading="original")
    assert refusal.value.try_.endswith("--from original --original-length 512")
    plan = ropetool.plan(source, "yarn", factor=16, reading="original", original_length=512)
    assert (plan.trained_length, plan.max_position_embeddings) == (512, 8192)


def test_a_table_that_follows_the_length_has_no_current_reading(tmp_path: Path) -> None:
    source = scaled(tmp_path, {"rope_type": "dynamic", "factor": 2.0}, context=512)
    with pytest.raises(InvalidRope, match="the current table depends on the text length"):
        ropetool.plan(source, "yarn", factor=4, reading="current")
    assert ropetool.plan(source, "yarn", factor=4, reading="original").trained_length == 512


def test_two_lists_are_extended_from_the_longer_and_say_so(tmp_path: Path) -> None:
    lists = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    source = scaled(
        tmp_path, {"rope_type": "longrope", **lists, "factor": 8.0, "original_max_position_embeddings": 512}
    )
    plan = ropetool.plan(source, "linear", factor=2, reading="current")
    assert "texts up to 512 tokens now use the extended long table too; check them with `ropetool verify`" in plan.notes
    assert edits(plan)["rope_scaling.long_factor"] == pytest.approx([4.0] * 16)


@pytest.mark.parametrize(
    ("method", "params"), [("ntk", {}), ("abf", {"rope_theta": 2e6}), ("dynamic", {"freeze": 2048})]
)
def test_an_output_of_ours_that_looks_unscaled_is_known_as_scaled(
    method: str, params: dict[str, Any], tmp_path: Path
) -> None:
    source = llama(tmp_path)
    made = tmp_path / "made"
    ropetool.apply(ropetool.plan(source, method, factor=4, params=params), source, made)
    with pytest.raises(AmbiguousRope, match=f"already scaled \\({method} by ropetool, original 512, context 2048\\)"):
        ropetool.plan(made, "yarn", factor=2)
    plan = ropetool.plan(made, "yarn", factor=2, reading="current")
    assert (plan.trained_length, plan.max_position_embeddings) == (512, 4096)
    assert plan.candidates[0].name == "yarn keys"
    with pytest.raises(AmbiguousRope, match="its original table is not in this file") as refusal:
        ropetool.plan(made, "yarn", factor=2, reading="original")
    assert refusal.value.try_ == f"ropetool extend {source} --method yarn --factor 2"


def test_the_original_of_an_output_built_on_another_is_not_guessed(tmp_path: Path) -> None:
    """ntk, then yarn on top: yarn's keys stand over ntk's base, which is not the base that was trained."""
    source, first, second = llama(tmp_path), tmp_path / "first", tmp_path / "second"
    ropetool.apply(ropetool.plan(source, "ntk", factor=4), source, first)
    ropetool.apply(ropetool.plan(first, "yarn", factor=2, reading="current"), first, second)
    with pytest.raises(AmbiguousRope, match=f"ropetool made from {first} with yarn"):
        ropetool.plan(second, "linear", factor=2, reading="original")


def test_an_output_of_ours_that_replaced_nothing_can_be_read_from_its_original(tmp_path: Path) -> None:
    source, made = llama(tmp_path), tmp_path / "made"
    ropetool.apply(ropetool.plan(source, "linear", factor=4), source, made)
    # linear stores no length, but the provenance knows it
    plan = ropetool.plan(made, "yarn", factor=8, reading="original")
    assert (plan.trained_length, plan.max_position_embeddings) == (512, 4096)
    assert plan.tables == ropetool.plan(source, "yarn", factor=8).tables


def test_qwen3_ships_another_length_than_it_was_trained_on(tmp_path: Path) -> None:
    data = {**configs.config("qwen3", "v4", 1e6), "max_position_embeddings": 40960}
    source = write_config(tmp_path / "qwen3", data)
    plan = ropetool.plan(source, "yarn", factor=4)
    assert (plan.trained_length, plan.max_position_embeddings) == (32768, 131072)
    (note,) = [note for note in plan.notes if "40960" in note]
    assert "lengths count from 32768 tokens: factor 4 gives 131072, not 163840." in note
    assert edits(plan)["rope_scaling"]["original_max_position_embeddings"] == 32768
    shipped = ropetool.plan(source, "yarn", factor=4, original_length=40960)
    assert (shipped.trained_length, shipped.max_position_embeddings) == (40960, 163840)
    assert not [note for note in shipped.notes if "lengths count from" in note]
    by_target = ropetool.plan(source, "yarn", target_length=65536)
    assert by_target.factor == 2.0
    assert [note for note in by_target.notes if "lengths count from 32768 tokens. --original" in note]


def test_a_stated_original_length_counts_for_an_unscaled_source(tmp_path: Path) -> None:
    plan = ropetool.plan(llama(tmp_path), "yarn", factor=4, original_length=256)
    assert (plan.trained_length, plan.max_position_embeddings) == (256, 1024)
    with pytest.raises(InvalidRope, match="1 is not a length"):
        ropetool.plan(tmp_path / "model", "yarn", factor=4, original_length=1)


def test_a_reading_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRope, match="'present' is neither original nor current"):
        ropetool.plan(llama(tmp_path), "yarn", factor=4, reading="present")


def test_a_context_below_the_present_one_is_noted(tmp_path: Path) -> None:
    plan = ropetool.plan(scaled(tmp_path, LLAMA3), "yarn", factor=4, reading="original")
    assert (
        "the new context of 2048 tokens is shorter than the present 4096: pass a larger length to extend" in plan.notes
    )
    same = ropetool.plan(tmp_path / "model", "yarn", factor=8, reading="original")
    assert not [note for note in same.notes if "the new context" in note]


# --- encodings


@pytest.mark.parametrize(
    ("method", "options", "name"),
    [
        ("linear", {}, "linear keys"), ("ntk", {}, "default keys"), ("abf", {"params": {"rope_theta": 5e5}}, "default keys"),
        ("yarn", {}, "yarn keys"), ("ntk-by-parts", {}, "yarn keys"), ("llama3", {}, "llama3 keys"),
        ("dynamic", {}, "dynamic keys"), ("dynamic", {"params": {"freeze": 1024}}, "default keys"),
        ("mixed-ntk", {}, "a full table as longrope lists"), ("attention", {}, "a full table as longrope lists"),
        ("yarn", {"params": {"ramp": "turns"}}, "a full table as longrope lists"),
    ],
)  # fmt: skip
def test_the_methods_own_keys_come_first(method: str, options: dict[str, Any], name: str, tmp_path: Path) -> None:
    assert tried(ropetool.plan(llama(tmp_path), method, factor=4, **options)) == [(name, "")]


def test_keys_that_a_runtime_would_not_read_are_rejected_with_the_reason(tmp_path: Path) -> None:
    """transformers asks nested configs for `truncate` in the wrong place, so yarn's keys cannot say it there."""
    source = write_config(tmp_path / "gemma", configs.config("gemma3_text", "v5"))
    plan = ropetool.plan(source, "yarn", factor=4, params={"truncate": False})
    (first, reason), *_, kept = tried(plan)
    assert first == "yarn keys"
    assert reason.startswith("transformers: full_attention: table: 6 of 16 pairs differ: distances look up to ")
    assert kept == ("a full table as longrope lists", "")
    assert edits(plan)["rope_parameters.full_attention.rope_type"] == "longrope"
    flat = ropetool.plan(llama(tmp_path), "yarn", factor=4, params={"truncate": False})
    assert tried(flat) == [("yarn keys", "")]
    assert edits(flat)["rope_scaling"]["truncate"] is False


def test_linear_keys_cannot_hold_an_attention_factor(tmp_path: Path) -> None:
    plan = ropetool.plan(llama(tmp_path), "linear", factor=4, attention_factor=1.2)
    assert tried(plan) == [
        (
            "linear keys",
            "transformers: attention factor 1 instead of 1.2: scores of the rotated channels times 0.694444",
        ),
        ("a full table as longrope lists", ""),
    ]
    written = edits(plan)["rope_scaling"]
    assert written["long_factor"] == pytest.approx([4.0] * 16)
    assert written["attention_factor"] == 1.2


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_yarn_on_mla_writes_the_multiplier_of_the_whole_score(family: str, tmp_path: Path) -> None:
    plan = ropetool.plan(write_config(tmp_path / "mla", configs.config(family, "v4")), "yarn", factor=4)
    assert edits(plan)["rope_scaling"] == {
        **YARN, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    }  # fmt: skip
    assert plan.softmax_multiplier == pytest.approx(1.2965, rel=1e-4)
    assert plan.tables["full_attention"][0]["attention_factor"] == 1.0


def test_what_no_encoding_holds_is_refused_with_every_reason(tmp_path: Path) -> None:
    source = llama(tmp_path)
    with pytest.raises(
        LossyExport, match=r"dynamic keys: transformers: attention factor 1 instead of 1.5: sco"
    ) as refusal:
        ropetool.plan(source, "dynamic", factor=4, attention_factor=1.5)
    assert refusal.value.try_ == (
        f"ropetool extend {source} --method dynamic --factor 4 -p freeze 2048 --attention-factor 1.5"
    )
    with pytest.raises(
        LossyExport, match=r"in v5 style for transformers-v4: yarn keys, .* a full table as .*: transformers-v4: table"
    ) as refusal:
        ropetool.plan(source, "yarn", factor=4, config_style="v5", for_runtimes=["transformers-v4"])
    assert refusal.value.try_ == (
        f"ropetool extend {source} --method yarn --factor 4 --for transformers-v4 --config-style both"
    )
    plan = ropetool.plan(source, "yarn", factor=4, config_style="both", for_runtimes=["transformers-v4"])
    assert tried(plan) == [("yarn keys", "")]


ALONE = ("transformers", "transformers-v4", "mlx-lm", "vllm", "sglang", "exllamav3", "llama.cpp")
OFTEN_REFUSED = ("cohere", "gemma2", "glm4", "phi3", "olmo3", "deepseek_v3", "qwen3_moe")


def advice(source: Path, method: str, names: tuple[str, ...]) -> str:
    """Return the command line that a refusal advises; empty where it is planned, or refused for another reason."""
    asked = {"attention_factor": 1.5} if method == "dynamic" else {}
    try:
        ropetool.plan(source, method, factor=4, for_runtimes=names, **asked)
    except LossyExport as refusal:
        return refusal.try_
    except ConfigError:  # such as longrope without lists
        return ""
    return ""


@pytest.mark.parametrize("family", OFTEN_REFUSED)
def test_what_a_refusal_advises_can_be_planned(family: str, tmp_path: Path) -> None:
    """Advice that is refused in its turn is none: each command line is carried out."""
    source = write_config(tmp_path / "m", configs.config(family, "v4"))
    several = [*itertools.combinations(ALONE, 1), ALONE[:5]]
    lines = {advice(source, method, names) for method in ("yarn", "dynamic", "longrope") for names in several} - {""}
    assert lines
    for line in lines:
        done = run(*words(line)[1:], "--dry-run")
        assert done.code == 0, (line, done.err)


def test_longrope_lists_of_the_source_serve_the_original_reading_only(tmp_path: Path) -> None:
    lists = {"short_factor": [1.0] * 16, "long_factor": [1.0 + i for i in range(16)]}
    source = scaled(tmp_path, {"rope_type": "longrope", **lists, "original_max_position_embeddings": 512})
    plan = ropetool.plan(source, "longrope", factor=4, reading="original")
    assert plan.params == lists
    with pytest.raises(
        InvalidRope, match="longrope needs a list of divisors"
    ):  # they divide the base, not the present table
        ropetool.plan(source, "longrope", factor=4, reading="current")


# --- what else is edited


@pytest.mark.parametrize(
    ("method", "params", "context"),
    [("linear", {}, 2048), ("ntk", {}, 2048), ("yarn", {}, 2048), ("llama3", {}, 2048), ("dynamic", {}, None),
     ("dynamic", {"freeze": 1500}, 1500)],
)  # fmt: skip
def test_max_position_embeddings(method: str, params: dict[str, Any], context: int | None, tmp_path: Path) -> None:
    """Scaled by the factor; dynamic keeps the trained length, from which its rule counts."""
    plan = ropetool.plan(llama(tmp_path), method, factor=4, params=params)
    assert edits(plan).get("max_position_embeddings") == context
    assert plan.max_position_embeddings == (context or 512)


@pytest.mark.parametrize(
    ("limit", "new"),
    [(512, 2048), (512.0, 2048), (2048, None), (10**30, None), (None, None), ("512", None), (True, None)],
)
def test_the_tokenizers_limit_is_raised_where_it_is_smaller(limit: Any, new: int | None, tmp_path: Path) -> None:
    source = llama(tmp_path)
    (source / "tokenizer_config.json").write_text(json.dumps({**TOKENIZER_CONFIG, "model_max_length": limit}))
    plan = ropetool.plan(source, "yarn", factor=4)
    assert [(e.path, e.old, e.new) for e in plan.edits if e.file == "tokenizer_config.json"] == (
        [(("model_max_length",), limit, new)] if new else []
    )


def test_the_outer_original_length_is_kept_equal(tmp_path: Path) -> None:
    """transformers 5 lets it win over the inner one, 4.57 reads longrope's only there."""
    outer = ropetool.plan(llama(tmp_path / "a", original_max_position_embeddings=333), "yarn", factor=4)
    assert edits(outer)["original_max_position_embeddings"] == 512
    assert tried(outer) == [("yarn keys", "")]
    assert "original_max_position_embeddings" not in edits(ropetool.plan(llama(tmp_path / "b"), "yarn", factor=4))
    lists = ropetool.plan(llama(tmp_path / "c"), "mixed-ntk", factor=4)
    assert edits(lists)["original_max_position_embeddings"] == 512


def test_head_dim_is_added_where_its_absence_would_stop_a_runtime(tmp_path: Path) -> None:
    mixtral = write_config(tmp_path / "mixtral", configs.config("mixtral", "v4"))
    assert edits(ropetool.plan(mixtral, "yarn", factor=4))["head_dim"] == 32
    assert edits(ropetool.plan(mixtral, "mixed-ntk", factor=4))["head_dim"] == 32
    assert "head_dim" not in edits(ropetool.plan(mixtral, "linear", factor=4))
    assert "head_dim" not in edits(ropetool.plan(llama(tmp_path), "yarn", factor=4))


@pytest.mark.parametrize("style", ["v4", "v5", "both"])
@pytest.mark.parametrize("start", ["v4", "v5"])
def test_the_style_is_the_one_asked_for(start: str, style: str, tmp_path: Path) -> None:
    source = write_config(tmp_path / "model", configs.config("llama", start))
    plan = ropetool.plan(source, "yarn", factor=4, config_style=style)
    assert plan.config_style == style
    ropetool.apply(plan, source, tmp_path / "out")
    keys = {"rope_theta", "rope_scaling", "rope_parameters"} & set(config_of(tmp_path / "out"))
    assert keys == {
        "v4": {"rope_theta", "rope_scaling"}, "v5": {"rope_parameters"},
        "both": {"rope_theta", "rope_scaling", "rope_parameters"},
    }[style]  # fmt: skip
    assert ropetool.plan(source, "yarn", factor=4).config_style == start


# --- what is said beside it


def notes(source: Path, **options: Any) -> tuple[str, ...]:
    return ropetool.plan(source, "yarn", **{"factor": 4, **options}).notes


def test_a_sliding_window_that_the_target_exceeds_is_noted(tmp_path: Path) -> None:
    data = {**configs.config("mistral", "v4"), "sliding_window": 1024}
    source = write_config(tmp_path / "mistral", data)
    assert [n for n in notes(source) if "each layer attends to at most 1024 tokens" in n]
    assert not [n for n in notes(source, factor=2) if "sliding window" in n]
    qwen = {**configs.config("qwen2", "v4"), "sliding_window": 64}
    off = write_config(tmp_path / "off", {**qwen, "use_sliding_window": False})
    on = write_config(tmp_path / "on", {**qwen, "use_sliding_window": True})
    assert not [n for n in notes(off) if "sliding window" in n]
    assert [n for n in notes(on) if "each layer attends to at most 64 tokens" in n]


def test_remote_code_and_pickles_are_noted(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", {**configs.config("llama", "v4"), "auto_map": {"AutoModel": "x.Y"}})
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    found = notes(source)
    assert "pickle files are not copied: pytorch_model.bin" in found
    assert [n for n in found if n.startswith("auto_map names remote code, which ropetool never runs")]
    assert not [n for n in found if "config.json" in n]
    plain, cost = notes(llama(tmp_path / "plain"))
    assert plain == "the source has no weights, so the output has none either"
    assert cost.startswith("4 times the trained length. Measured cost: ")


def test_a_runtime_that_was_not_asked_and_would_not_agree_is_named(tmp_path: Path) -> None:
    source = write_config(tmp_path / "v5", configs.config("llama", "v5"))
    (note,) = [
        n for n in notes(source) if n.startswith("mlx-lm, mlx-vlm, transformers-v4 would compute something else: ")
    ]
    assert "attention factor 1 instead of 1.13863" in note
    asked = "--config-style both --for transformers --for mlx-lm --for mlx-vlm --for transformers-v4"
    assert f"{asked} writes a file that works for them too" in note
    both = notes(source, config_style="both", for_runtimes=["transformers", "transformers-v4"])
    assert not [n for n in both if "transformers-v4" in n]


# --- the plan as data


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", configs.config("llama", "v4"))
    plan = ropetool.plan(source, "longrope", factor=4, params={"long_factor": [2] * 16}, attention_factor="yarn")
    assert plan.params == {"long_factor": [2.0] * 16, "attention_factor": "yarn"}
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    assert Plan.read(tmp_path / "plan.json") == plan


def test_parameters_are_stated_in_their_own_types(tmp_path: Path) -> None:
    plan = ropetool.plan(llama(tmp_path), "yarn", factor=4, params={"truncate": "false", "beta_fast": "16"})
    assert plan.params == {"truncate": False, "beta_fast": 16.0}


def corrupted(**changes: Any) -> Any:
    return lambda data: data.update(changes)


def of_layer(**changes: Any) -> Any:
    return lambda data: data["target"]["layers"]["full_attention"].update(changes)


BROKEN_PLANS = {
    "another schema": (corrupted(schema=3), "schema is 3; it must be 1 or 2, the schemas of this version"),
    "a truth for a schema": (corrupted(schema=True), "schema is true"),
    "another format": (corrupted(format="onnx"), 'format is "onnx"; it must be one of hf, gguf'),
    "a list for a format": (corrupted(format=["hf"]), r'format is \["hf"\]'),
    "a key that is missing": (lambda data: data.pop("edits"), "edits is absent; it must be a list"),
    "a length as text": (corrupted(trained_length="512"), 'trained_length is "512"'),
    "a length without end": (corrupted(factor=10**400), "factor is 1000.* must be a finite number"),
    "edits that are none": (corrupted(edits=[3]), r"edits is \[3\].* each an object"),
    "an edit of another file": (
        corrupted(edits=[{"file": "model.safetensors", "path": ["a"], "new": 1}]),
        'an edit: file is "model.safetensors"; it must be one of config.json, ',
    ),
    "an edit outside": (corrupted(edits=[{"file": "../config.json", "path": ["a"]}]), r'file is "\.\./config\.json"; it must be one of'),
    "an edit of a list of files": (corrupted(edits=[{"file": ["config.json"], "path": ["a"]}]), r'file is \["config.json"\]'),
    "an edit of nothing": (corrupted(edits=[{"file": "config.json", "path": []}]), r"path is \[\]; it must be the names of"),
    "a path of numbers": (corrupted(edits=[{"file": "config.json", "path": [1]}]), r"path is \[1\]; it must be the names of"),
    "a suffix with a folder": (corrupted(suffix="../../x"), "it must be part of a file name"),
    "no suffix": (corrupted(suffix=3), "suffix is 3"),
    "a table that is none": (corrupted(tables={"full_attention": [{"up_to": None}]}), "full_attention of tables: inv_freq is absent"),
    "a table of nested lists": (
        corrupted(tables={"full_attention": [{"up_to": None, "attention_factor": 1.0, "inv_freq": [[1.0], [1.0, 2.0]]}]}),
        r"inv_freq is \[\[1.0\]",
    ),
    "a table of numbers beyond floats": (
        corrupted(tables={"full_attention": [{"up_to": None, "attention_factor": 1.0, "inv_freq": [10**400]}]}), r"inv_freq is \[1000",
    ),
    "a table for all lengths": (corrupted(tables={"full_attention": 3}), "full_attention is 3"),
    "a length of a table as text": (
        corrupted(tables={"full_attention": [{"up_to": "9", "attention_factor": 1.0, "inv_freq": [1.0]}]}), 'up_to is "9"',
    ),
    "a negative table": (
        corrupted(tables={"full_attention": [{"up_to": None, "attention_factor": 1.0, "inv_freq": [-1.0]}]}),
        "finite and not negative",
    ),
    "no target": (corrupted(target=None), "target is null"),
    "a target without layers": (corrupted(target={"max_position_embeddings": 9}), "layers is absent"),
    "a layer that is none": (corrupted(target={"max_position_embeddings": 9, "layers": {"full_attention": 3}}), "full_attention is 3"),
    "a layer of another layout": (of_layer(layout="diagonal"), "layout is 'diagonal'; it must be half or interleaved"),
    "layers without end": (of_layer(layers=[0] * 70_000), "layers is .* at most 65,536 values"),
    "a window below 1": (of_layer(sliding_window=0), "sliding_window is 0"),
    "a temperature that is none": (of_layer(temperature=[1]), "temperature is"),
    "a rule of lists": (of_layer(rule={"name": [[1]], "regimes": []}), "name is"),
    "a rule without a table": (of_layer(rule={"name": ["dynamic"]}), "regimes is absent"),
    "rows that are numbers of another type": (
        corrupted(bakes=["x"], tensors=[{"tensor": "a", "operation": "scale", "height": 2, "starts": [True], "length": 1}]),
        r'the edit of "a": starts is \[true\]',
    ),
    "an edit of no tensor": (corrupted(tensors=[{}]), "the edit of null: tensor is absent"),
    "weights that are a list": (corrupted(weight_files=["a"]), "weight_files is .*; it must be null or "),
    "no identity": (corrupted(identity=[]), r"identity is \[\]"),
    "an identity of numbers": (corrupted(identity={"settings": {"a": 1}, "weights": ""}), "settings is"),
    "runtimes that are none": (corrupted(runtimes=3), "runtimes is 3"),
    "runtimes that are lists": (corrupted(runtimes=[[0] * 3000]), r"runtimes is \[\[0, 0"),
    "a factor that is a long list": (
        corrupted(tables={"full_attention": [{"up_to": None, "attention_factor": [0] * 3000, "inv_freq": [1.0]}]}),
        r"attention_factor is \[0, 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN_PLANS)
def test_what_is_no_plan_is_refused(case: str, tmp_path: Path) -> None:
    change, message = BROKEN_PLANS[case]
    data = ropetool.plan(llama(tmp_path), "yarn", factor=4).to_json()
    assert Plan.from_json(data, "plan.json").to_json() == data
    change(data)
    with pytest.raises(ConfigError, match=rf"not a valid ropetool plan \(.*{message}.*\)") as refusal:
        Plan.from_json(data, "plan.json")
    assert refusal.value.where == "plan.json"
    assert len(refusal.value.message) < 400


# --- the name of the output


@pytest.mark.parametrize(
    ("method", "options", "name"),
    [
        ("yarn", {"factor": 4}, "model-yarn-4x"), ("yarn", {"factor": 2.5}, "model-yarn-2.5x"),
        ("pi", {"factor": 8}, "model-linear-8x"), ("yarn", {"target_length": 2048}, "model-yarn-2048"),
        ("abf", {"factor": 4, "params": {"rope_theta": 1e6}}, "model-abf-1e6"),
        ("abf", {"target_length": 2048, "params": {"rope_theta": "500000"}}, "model-abf-500000"),
        ("ntk-by-parts", {"factor": 2}, "model-ntk-by-parts-2x"),
    ],
)  # fmt: skip
def test_the_output_stands_beside_the_source(method: str, options: dict[str, Any], name: str, tmp_path: Path) -> None:
    source = llama(tmp_path)
    plan = ropetool.plan(source, method, **options)
    assert plan.output_beside(source) == tmp_path / name
    assert plan.output_beside(Path(f"{source}/")) == tmp_path / name


@pytest.mark.parametrize(
    ("given", "reading", "name"),
    [
        ("model-yarn-4x", "original", "model-linear-2x"), ("model-yarn-4x", "current", "model-yarn-4x-linear-2x"),
        ("model-yarn-4x-v2", "original", "model-v2-linear-2x"), ("mine", "original", "mine-linear-2x"),
        ("model-yarn-4xl", "original", "model-yarn-4xl-linear-2x"), ("-yarn-4x", "original", "-yarn-4x-linear-2x"),
    ],
)  # fmt: skip
def test_the_name_of_a_replaced_extension_goes(given: str, reading: str, name: str, tmp_path: Path) -> None:
    source = llama(tmp_path)
    made = ropetool.apply(ropetool.plan(source, "yarn", factor=4), source, tmp_path / given).output
    plan = ropetool.plan(made, "linear", factor=2, reading=reading)
    assert plan.output_beside(made) == tmp_path / name


@pytest.mark.parametrize("shards", [1, 2])
def test_the_name_of_a_replaced_extension_goes_from_a_gguf_too(shards: int, tmp_path: Path) -> None:
    source = gguf_files.model(tmp_path / "m.gguf", shards=shards)
    first = ropetool.apply(ropetool.plan(source, "yarn", factor=4), source, tmp_path / "m-yarn-4x.gguf").output
    plan = ropetool.plan(first, "yarn", factor=2, reading="original")
    assert plan.output_beside(first) == tmp_path / "m-yarn-2x.gguf"


def test_a_link_to_the_source_has_its_output_beside_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = llama(tmp_path / "far")
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "latest").symlink_to(source)
    plan = ropetool.plan(source, "yarn", factor=4)
    assert plan.output_beside(tmp_path / "near" / "latest") == tmp_path / "near" / "latest-yarn-4x"
    monkeypatch.chdir(source)
    assert plan.output_beside(Path(".")) == tmp_path / "far" / "model-yarn-4x"


GPT_OSS = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 512,
}  # fmt: skip


def test_parameters_that_the_source_was_trained_with_hold_on(tmp_path: Path) -> None:
    """gpt-oss's ramp is not rounded to whole pairs; vLLM stops without its betas, though they are the usual ones."""
    source = scaled(tmp_path, GPT_OSS, 32 * 512)
    plan = ropetool.plan(source, "yarn", factor=64, reading="original", for_runtimes=["transformers", "vllm"])
    assert edits(plan) == {"rope_scaling.factor": 64.0, "max_position_embeddings": 64 * 512}
    assert plan.params["truncate"] is False
    other = ropetool.plan(source, "yarn", factor=64, reading="original", params={"truncate": True})
    assert "rope_scaling.truncate" in edits(other)
    output = tmp_path / "out"
    ropetool.apply(ropetool.plan(source, "yarn", factor=64, reading="original"), source, output)
    again = ropetool.plan(output, "yarn", factor=8, reading="original")  # of ours: replaced whole
    assert "truncate" not in again.params


def test_a_runtime_that_would_compute_something_else_is_no_unknown_one(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", {**configs.config("mistral", "v4"), "sliding_window": 128})
    with pytest.raises(
        InvalidRope, match=r"llama\.cpp does not compute the rotation of this config: llama\.cpp ignores the sl"
    ):
        ropetool.plan(source, "yarn", factor=4, for_runtimes=["llama.cpp"])


# --- commands in errors


def test_a_whole_command_keeps_lists_of_divisors(tmp_path: Path) -> None:
    lists = {"long_factor": [4.0] * 16, "short_factor": [1.0] * 16}
    source = write_config(tmp_path / "m", configs.config("llama", "v5"))
    with pytest.raises(LossyExport) as refusal:
        ropetool.plan(source, "longrope", factor=4, params=lists, for_runtimes=("transformers", "transformers-v4"))
    assert refusal.value.try_ is not None
    parts = shlex.split(refusal.value.try_)
    assert [json.loads(parts[at + 2]) for at, part in enumerate(parts) if part == "-p"] == list(lists.values())
    assert run(*parts[1:], "--dry-run").code == 0


def test_the_original_length_is_the_context_divided_by_the_factor(tmp_path: Path) -> None:
    source = scaled(tmp_path, {"rope_type": "linear", "factor": 2.5}, context=10240)
    with pytest.raises(InvalidRope, match="does not store the length before its linear scaling") as refusal:
        ropetool.plan(source, "yarn", factor=4, reading="original")
    assert refusal.value.try_ is not None
    assert "--original-length 4096" in refusal.value.try_


def test_a_table_that_follows_the_text_offers_no_second_way(tmp_path: Path) -> None:
    source = scaled(tmp_path, {"rope_type": "dynamic", "factor": 2.0}, context=2048)
    with pytest.raises(AmbiguousRope, match="its table depends on the text length") as refusal:
        ropetool.plan(source, "yarn", factor=4)
    assert "on top of it" not in refusal.value.message


def test_the_proposed_reading_extends_the_context(tmp_path: Path) -> None:
    source = scaled(tmp_path, YARN, context=4096)
    with pytest.raises(AmbiguousRope) as refusal:
        ropetool.plan(source, "ntk", target_length=4096)
    assert refusal.value.try_ is not None
    assert run(*shlex.split(refusal.value.try_)[1:], "--dry-run").code == 0


def test_the_share_of_a_proportional_table_is_not_partial_rotation(tmp_path: Path) -> None:
    keys = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e4}
    source = write_config(tmp_path / "m", {**configs.config("llama", "v5"), "rope_parameters": keys})
    assert ropetool.plan(source, "length", target_length=8192).max_position_embeddings == 8192


def test_a_runtime_that_does_not_load_the_source_is_said_to_load_neither(tmp_path: Path) -> None:
    config = configs.config("qwen3", "v4")
    del config["head_dim"]
    plan = ropetool.plan(write_config(tmp_path / "m", config), "yarn", factor=4)
    (note,) = [note for note in plan.notes if note.startswith("mlx-lm ")]
    assert note == (
        "mlx-lm cannot load the source or the output: TypeError: the model file needs head_dim at the top level of the config"
    )
