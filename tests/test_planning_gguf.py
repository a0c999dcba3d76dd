"""Extending GGUF models: which keys and vectors change, what stays byte for byte, readings, refusals, plans as files.

What a file holds is read by the gguf package.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shlex
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import FREQS, llama3_divisors, model, tensors, values, vector
from running import run, snapshot

import ropetool
from ropetool import names
from ropetool.checkpoint import listings
from ropetool.errors import (
    AmbiguousRope,
    ConfigError,
    InvalidRope,
    LossyExport,
    PlanMismatch,
    UnknownRuntime,
)  # fmt: skip
from ropetool.plans import gguf_output, model_card
from ropetool.plans.plan import Plan
from ropetool.runtimes import inspection

pytestmark = pytest.mark.usefixtures("here")

ARCHS = ("llama", "qwen2", "qwen3")
SCALING = "rope.scaling"


def extended(source: Path, method: str, output: str = "out.gguf", **options: Any) -> Path:
    """Extend the model and return the first file of the result."""
    return ropetool.apply(ropetool.plan(source, method, **options), source, output).output


def changed(before: Path, after: Path) -> dict[str, Any]:
    """Return the keys that differ, with type and value afterwards, without the architecture; None for a removed one."""
    old, new = values(before), values(after)
    return {k.partition(".")[2]: new.get(k) for k in {**old, **new} if old.get(k) != new.get(k)}


def test_the_makers_model_has_the_types_of_the_converter() -> None:
    found = values(model(Path("m.gguf")))
    assert found["llama.context_length"] == ("UINT32", 512)
    assert found["llama.rope.freq_base"] == ("FLOAT32", 10000.0)


# --- what is written


@pytest.mark.parametrize("arch", ARCHS)
def test_yarn_writes_four_keys_and_nothing_else(arch: str) -> None:
    source = model(Path("m.gguf"), arch)
    before = source.read_bytes()
    output = extended(source, "yarn", factor=4)
    assert changed(source, output) == {
        "context_length": ("UINT32", 2048),
        f"{SCALING}.type": ("STRING", "yarn"),
        f"{SCALING}.factor": ("FLOAT32", 4.0),
        f"{SCALING}.original_context_length": ("UINT32", 512),
    }
    assert tensors(output) == tensors(source)
    assert list(values(output))[: len(values(source))] == list(values(source))  # the order of the file stays
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    ("asked", "attn"), [(1.0, 1 / (1 + 0.1 * math.log(4))), (1.7, 1.7 / (1 + 0.1 * math.log(4))), ("yarn", None)]
)
def test_an_explicit_attention_factor_is_a_key_where_it_is_not_the_default(asked: Any, attn: float | None) -> None:
    source = model(Path("m.gguf"))
    found = changed(source, extended(source, "yarn", factor=4, attention_factor=asked)).get(f"{SCALING}.attn_factor")
    if attn is None:
        assert found is None
    else:
        assert found[0] == "FLOAT32"
        assert found[1] == np.float32(attn)


def test_a_vector_is_appended_behind_all_tensors() -> None:
    source = model(Path("m.gguf"))
    output = extended(source, "llama3", factor=8)
    assert changed(source, output) == {
        "context_length": ("UINT32", 4096),
        f"{SCALING}.type": ("STRING", "none"),
        f"{SCALING}.original_context_length": ("UINT32", 512),
    }
    assert [*tensors(source), FREQS] == list(tensors(output))
    assert tensors(output) | tensors(source) == tensors(output)
    assert (tensors(output)[FREQS][:2], vector(output)[[0, -1]].tolist()) == (("F32", (32,)), [1.0, 8.0])


def test_a_vector_that_is_there_is_overwritten_in_its_place() -> None:
    source = model(Path("m.gguf"), divisors=llama3_divisors())
    output = extended(source, "llama3", factor=16, reading="original", original_length=512)
    assert list(tensors(output)) == list(tensors(source))
    assert vector(output)[[0, -1]].tolist() == [1.0, 16.0]
    assert vector(source)[-1] == 8


def test_a_vector_that_is_not_needed_becomes_ones() -> None:
    source = model(Path("m.gguf"), divisors=llama3_divisors())
    output = extended(source, "yarn", factor=4, reading="original", original_length=512)
    assert vector(output).tolist() == [1.0] * 32
    assert {k: v for k, v in tensors(output).items() if k != FREQS} == {
        k: v for k, v in tensors(source).items() if k != FREQS
    }
    plain = extended(model(Path("plain.gguf")), "yarn", "plain-out.gguf", factor=4)
    tables = [inspection.inspect(path).rope for path in (output, plain)]
    assert tables[0].disagreement(tables[1]) == ""


def test_keys_that_would_scale_beside_the_new_ones_are_removed() -> None:
    keys = {"rope.scaling.factor": 2.0, "rope.scaling.type": "linear", "rope.scaling.yarn_beta_fast": float("nan")}
    source = model(Path("m.gguf"), keys=keys)
    plan = ropetool.plan(source, "ntk", factor=4, reading="original", original_length=512)
    json.dumps(plan.to_json(), allow_nan=False)
    found = changed(source, ropetool.apply(plan, source, "out.gguf").output)
    assert (found[f"{SCALING}.factor"], found[f"{SCALING}.yarn_beta_fast"]) == (None, None)


# --- readings


def test_a_table_without_its_length_leaves_two_readings() -> None:
    source = model(Path("m.gguf"), keys={"context_length": 4096}, divisors=llama3_divisors())
    with pytest.raises(AmbiguousRope) as refused:
        ropetool.plan(source, "yarn", factor=2)
    for part in ("original not stored", "--original-length", "4096 -> 8192"):
        assert part in refused.value.message
    assert refused.value.try_.endswith("--from current")
    with pytest.raises(InvalidRope, match="does not store the length before its") as needed:
        ropetool.plan(source, "yarn", factor=2, reading="original")
    assert "--original-length" in needed.value.try_
    current = ropetool.plan(source, "yarn", factor=2, reading="current")
    assert (current.trained_length, current.max_position_embeddings) == (4096, 8192)
    original = ropetool.plan(source, "yarn", factor=2, reading="original", original_length=512)
    assert (original.trained_length, original.max_position_embeddings) == (512, 1024)


@pytest.mark.parametrize("method", ["yarn", "llama3", "ntk"])
def test_an_output_of_ours_knows_its_trained_length(method: str) -> None:
    output = extended(model(Path("m.gguf")), method, factor=4)
    beside = json.loads(Path("out.gguf.ropetool.json").read_text())
    assert (beside["trained_length"], beside["plan"]["method"]) == (512, method)
    assert inspection.inspect(output).trained_length == 512
    with pytest.raises(
        AmbiguousRope,
        match=rf"{method} by ropetool.*512 -> 1024 \(reading=\"original\": .*\) or 2048 -> 4096 \(reading=\"current\"",
    ):
        ropetool.plan(output, "yarn", factor=2)
    Path("out.gguf.ropetool.json").unlink()
    # NTK is another base and nothing more: without its provenance it cannot be told from a trained one.
    assert inspection.inspect(output).trained_length == (2048 if method == "ntk" else 512)


def test_qwen3_counts_from_what_it_was_trained_on() -> None:
    source = model(Path("m.gguf"), "qwen3", {"context_length": 40960})
    plan = ropetool.plan(source, "yarn", factor=4)
    assert (plan.trained_length, plan.max_position_embeddings) == (32768, 131072)
    assert any("32768" in note and "--original-length 40960" in note for note in plan.notes)


# --- refusals


def run_try(error: LossyExport) -> int:
    """Run the command that the refusal names and return its exit code."""
    program, *arguments = shlex.split(error.try_)
    assert program == "ropetool"
    return run(*arguments, "--dry-run").code


NO_KEY = "llama.cpp has no key for it and does not read rope_freqs for this architecture"
LOSSY: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "beta_fast": (
        "yarn", {"params": {"beta_fast": 16}}, "beta_fast 16: llama.cpp reads neither yarn_beta_fast nor rope_freqs for this "
        "architecture", "--method yarn --factor 4",
    ),
    "a beta of many digits": (
        "yarn", {"params": {"beta_fast": 16.0000001}}, "beta_fast 16.0000001: llama.cpp reads neither yarn_beta_fast nor "
        "rope_freqs for this architecture", "--method yarn --factor 4",
    ),
    "both betas": (
        "yarn", {"params": {"beta_fast": 16, "beta_slow": 2}}, "beta_fast 16, beta_slow 2: llama.cpp reads neither "
        "yarn_beta_fast nor yarn_beta_slow nor rope_freqs for this architecture", "--method yarn --factor 4",
    ),
    "truncate": (
        "ntk-by-parts", {"params": {"truncate": False}}, f"truncate false: {NO_KEY}", "--method ntk-by-parts --factor 4",
    ),
    "llama3": ("llama3", {}, f"llama3: {NO_KEY}", "--method yarn --factor 4"),
    "mixed-ntk": ("mixed-ntk", {}, f"mixed-ntk: {NO_KEY}", "--method yarn --factor 4"),
    "longrope": (
        "longrope", {"params": {"long_factor": [1.0 + i for i in range(32)]}}, f"long_factor of 32 divisors: {NO_KEY}",
        "--method yarn --factor 4",
    ),
    "dynamic": (
        "dynamic", {}, "a table that depends on the text length: llama.cpp uses one table for the whole context",
        "--method dynamic --factor 4 -p freeze 2048",
    ),
}  # fmt: skip


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
@pytest.mark.parametrize("case", LOSSY)
def test_what_an_architecture_cannot_hold_names_what_would_work(case: str, arch: str) -> None:
    method, options, reason, command = LOSSY[case]
    source = model(Path("m.gguf"), arch)
    with pytest.raises(LossyExport) as refused:
        ropetool.plan(source, method, factor=4, **options)
    assert refused.value.sentence == f"m.gguf: {arch} files cannot store {reason}"
    assert refused.value.try_ == f"ropetool extend m.gguf {command}"
    assert run_try(refused.value) == 0


def test_llama_holds_all_of_these_but_the_rule() -> None:
    source = model(Path("m.gguf"))
    for case, (method, options, _, _) in LOSSY.items():
        if case != "dynamic":
            assert ropetool.plan(source, method, factor=4, **options).candidates[-1].rejected == ""
    with pytest.raises(
        LossyExport, match="llama files cannot store a table that depends on the text length"
    ) as refused:
        ropetool.plan(source, "dynamic", factor=4)
    assert run_try(refused.value) == 0


def test_a_table_on_top_of_another_needs_a_vector() -> None:
    source = extended(model(Path("m.gguf"), "qwen2"), "yarn", factor=2)
    with pytest.raises(LossyExport, match="qwen2 files cannot store yarn on top of the present table") as refused:
        ropetool.plan(source, "yarn", factor=2, reading="current")
    assert refused.value.try_ == "ropetool extend out.gguf --method yarn --target-length 2048 --from original"
    assert run_try(refused.value) == 0


def test_options_of_the_other_format_are_refused_by_name() -> None:
    source = model(Path("m.gguf"))
    with pytest.raises(InvalidRope, match="GGUF files have no config style") as style:
        ropetool.plan(source, "yarn", factor=4, config_style="v4")
    assert style.value.where == "--config-style"
    with pytest.raises(
        UnknownRuntime, match="transformers does not read GGUF files; it reads the Hugging Face"
    ) as reader:
        ropetool.plan(source, "yarn", factor=4, for_runtimes=["transformers"])
    assert reader.value.try_ == "ropetool import m.gguf -o m, and extend m"


def test_an_architecture_that_no_family_is_named_after_is_extended() -> None:
    source = model(Path("m.gguf"), "gemma3")
    output = extended(source, "yarn", factor=4)
    assert changed(source, output)[f"{SCALING}.type"] == ("STRING", "yarn")
    assert json.loads(Path("out.gguf.ropetool.json").read_text())["plan"]["family"] == "gemma3"
    card = Path("out.gguf.README.md").read_text()
    assert "yarn" in card


# --- plans as files


def test_a_plan_survives_its_file_and_is_applied_from_it() -> None:
    source = model(Path("m.gguf"), divisors=llama3_divisors())
    plan = ropetool.plan(source, "llama3", factor=16, reading="original", original_length=512)
    text = json.dumps(plan.to_json(), allow_nan=False)
    again = Plan.from_json(json.loads(text), "plan.json")
    assert again == plan
    Path("plan.json").write_text(text)
    direct = ropetool.apply(plan, source, "direct.gguf").output
    assert run("apply", source, "plan.json").code == 0
    assert Path("m-llama3-16x.gguf").read_bytes() == direct.read_bytes()


def test_a_source_that_has_changed_is_refused() -> None:
    source = model(Path("m.gguf"))
    plan = ropetool.plan(source, "yarn", factor=4)
    for keys in ({"context_length": 1024}, {"rope.freq_base": 2e4}, {"rope.scaling.factor": 3.0}):
        other = model(Path("other.gguf"), keys=keys)
        before = snapshot(Path())
        with pytest.raises(PlanMismatch):
            ropetool.apply(plan, other, "out.gguf")
        assert snapshot(Path()) == before


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ([1.0] * 31 + ["a"], "does not contain a list of finite numbers"), (None, "does not contain a list of finite numbers"),
        ([1e300] * 32, "contains numbers that do not fit f32"),
    ],
)  # fmt: skip
def test_a_plan_with_a_broken_vector_is_refused(new: Any, message: str) -> None:
    source = model(Path("m.gguf"))
    data = ropetool.plan(source, "llama3", factor=4).to_json()
    data["edits"][-1]["new"] = new
    with pytest.raises(ConfigError, match=message):
        ropetool.apply(Plan.from_json(data, "plan.json"), source, "out.gguf")


def test_a_plan_for_both_formats_is_refused() -> None:
    source = model(Path("m.gguf"))
    data = ropetool.plan(source, "yarn", factor=4).to_json()
    data["edits"].append({"file": names.CONFIG_JSON, "path": ["a"], "new": 1})
    with pytest.raises(ConfigError, match="which a GGUF model does not have"):
        ropetool.apply(Plan.from_json(data, "plan.json"), source, "out.gguf")


# --- outputs


def test_a_split_model_changes_in_its_first_file_alone() -> None:
    source = model(Path("m.gguf"), shards=2)
    second = source.with_name("m-00002-of-00002.gguf")
    assert second.is_file()
    done = run("extend", second, "--method", "llama3", "--factor", "4")  # any file names the model
    first = Path("m-llama3-4x-00001-of-00002.gguf")
    assert (done.code, done.out.splitlines()[0]) == (0, str(Path.cwd() / first))
    assert sorted(p.name for p in Path().iterdir()) == sorted([
        source.name, second.name, first.name, f"{first.name}.README.md", f"{first.name}.ropetool.json", "m-llama3-4x-00002-of-00002.gguf",
    ])  # fmt: skip
    assert Path("m-llama3-4x-00002-of-00002.gguf").read_bytes() == second.read_bytes()
    assert values(first)["split.tensors.count"][1] == values(source)["split.tensors.count"][1] + 1
    assert list(tensors(first)) == [*tensors(source), FREQS]
    assert inspection.inspect(Path("m-llama3-4x-00002-of-00002.gguf")).trained_length == 512


def test_a_failure_at_the_last_file_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = model(Path("m.gguf"), shards=2)
    plan = ropetool.plan(source, "yarn", factor=4)
    before = snapshot(Path())

    def broken(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for function in ("gguf_applying.write_weights", "gguf_applying.linking.place", "gguf_output.provenance.write"):
        with monkeypatch.context() as patch:
            patch.setattr(f"ropetool.plans.{function}", broken)
            with pytest.raises(KeyboardInterrupt):
                ropetool.apply(plan, source, "out.gguf")
        assert snapshot(Path()) == before


def test_an_earlier_card_is_read_while_no_process_renames_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def watched(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            folder = os.open(".", os.O_RDONLY)
            with pytest.raises(BlockingIOError):  # as for a process that is about to rename
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(folder)
            read.append(function.__name__)
            return function(*arguments)

        return call

    read: list[str] = []
    source = model(Path("m.gguf"))
    extended(source, "yarn", factor=2)
    for place, name in ((model_card, "read_card"), (gguf_output.GgufOutput, "_objection"), (listings, "leftovers")):
        monkeypatch.setattr(place, name, watched(getattr(place, name)))
    plan = ropetool.plan(source, "yarn", factor=4)
    ropetool.apply(plan, source, "out.gguf", force=True)
    assert read == ["read_card", "read_card", "_objection", "_objection", "leftovers"]


def test_our_values_are_what_the_gguf_package_calls_them() -> None:
    assert values(extended(model(Path("m.gguf")), "linear", factor=2))["llama.rope.scaling.type"] == (
        "STRING", gguf.RopeScalingType.LINEAR.value,
    )  # fmt: skip
