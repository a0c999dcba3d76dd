"""Readback of outputs in both formats: an untouched one passes, and each planted defect turns its own check red."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configs
import gguf
import models
import numpy as np
import pytest
from gguf_files import TRAINED, Tiny, model
from models import write_config
from safetensors.numpy import load_file, save_file

import ropetool
from ropetool.checkpoint import tensor_bytes
from ropetool.verification.measures.rotary import check_rotation
from ropetool.verification.readback.comparing import read_back, same_tables
from ropetool.verification.results import Check

HEADS, HEAD_DIM, HIDDEN = 4, 32, 128
LAYER_0, LAYER_1 = "model.layers.0.self_attn", "model.layers.1.self_attn"
VOCABULARY = {"<bos>": 0, "the": 1, "of": 2}
VERDICTS = ("tables", "weights", "files")


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    found = {"model.embed_tokens.weight": rng.normal(size=(96, HIDDEN)), "model.norm.weight": rng.normal(size=HIDDEN)}
    for layer in range(2):
        for name, rows in (("q", HIDDEN), ("k", 64), ("v", 64)):
            found[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = rng.normal(size=(rows, HIDDEN))
    return {name: tensor.astype(np.float32) for name, tensor in found.items()}


def write_source(folder: Path) -> Path:
    """Write a checkpoint in two shards, with a tokenizer, a model card and a folder of its own."""
    write_config(folder, configs.config("llama", "v4"))
    every = tensors()
    parts = [{n: t for n, t in every.items() if ("layers.1" in n) == second} for second in (False, True)]
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, part in zip(files, parts, strict=True):
        save_file(part, folder / name)
    index = {tensor: name for name, part in zip(files, parts, strict=True) for tensor in part}
    others: dict[str, Any] = {
        "model.safetensors.index.json": {"metadata": {}, "weight_map": index},
        "tokenizer_config.json": {"model_max_length": 512},
        "tokenizer.json": {"model": {"vocab": VOCABULARY}},
        "generation_config.json": {"eos_token_id": 2},
    }
    for name, content in others.items():
        (folder / name).write_text(json.dumps(content, indent=2))
    (folder / "README.md").write_text("# A model\n")
    (folder / "original").mkdir()
    (folder / "original" / "params.json").write_text("{}")
    (folder / "original" / "consolidated.00.pth").write_text("a pickle")
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source")


@pytest.fixture
def output(source: Path) -> Path:
    target = source.with_name("output")
    ropetool.apply(ropetool.plan(source, "yarn", factor=8), source, target)
    return target


def verdicts(checks: list[Check]) -> dict[str, str]:
    assert [check.name for check in checks] == list(VERDICTS)
    return {check.name: check.verdict for check in checks}


def only_red(checks: list[Check], name: str) -> Check:
    """Return the check of this name, the only one that is not passed."""
    assert verdicts(checks) == {**dict.fromkeys(VERDICTS, "pass"), name: "fail"}
    return next(check for check in checks if check.name == name)


# --- directories


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("method", ["yarn", "ntk", "linear", "llama3", "dynamic"])
def test_an_untouched_output_passes(method: str, copy: bool, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "output"
    ropetool.apply(ropetool.plan(source, method, factor=8), source, target, copy=copy)
    (target / "README.md").write_text("# Rewritten by hand\n")
    checks = read_back(target)
    assert verdicts(checks) == dict.fromkeys(VERDICTS, "pass")
    assert [check.figure for check in checks] == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)
    assert [check.limit for check in checks] == [1e-6, 0.0, 0.0]
    assert checks[1].detail == "8 of 8 tensors equal the source"
    assert checks[2].detail == "6 of 6 files equal the source, except for the plan's edits"


def rewrite(shard: int, change: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Path], None]:
    """Return a defect that writes one shard of an output anew; the source keeps its own file."""

    def defect(folder: Path) -> None:
        path = folder / f"model-0000{shard}-of-00002.safetensors"
        held = {name: tensor.copy() for name, tensor in load_file(path).items()}
        change(held)
        path.unlink()
        save_file(held, path)
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        kept = {name: file for name, file in index["weight_map"].items() if file != path.name}
        weight_map = {**kept, **dict.fromkeys(held, path.name)}
        if weight_map != index["weight_map"]:
            replace(folder / "model.safetensors.index.json", json.dumps({**index, "weight_map": weight_map}))

    return defect


def replace(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def one_row(held: dict[str, np.ndarray]) -> None:
    held[f"{LAYER_1}.q_proj.weight"][3] *= 1.5


def one_head(held: dict[str, np.ndarray]) -> None:
    held[f"{LAYER_1}.k_proj.weight"][HEAD_DIM:] *= -1


def narrower(held: dict[str, np.ndarray]) -> None:
    held["model.norm.weight"] = held["model.norm.weight"].astype(np.float16)


def swapped_layers(folder: Path) -> None:
    first, second = (load_file(folder / f"model-0000{number}-of-00002.safetensors") for number in (1, 2))
    names = [name for name in second if name.startswith(LAYER_1)]
    moved = {name.replace(LAYER_1, LAYER_0): second[name] for name in names}
    back = {name: first[name.replace(LAYER_1, LAYER_0)] for name in names}
    rewrite(1, lambda held: held.update(moved))(folder)
    rewrite(2, lambda held: held.update(back))(folder)


def truncated(folder: Path) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-100])


WRONG_WEIGHTS: dict[str, tuple[Callable[[Path], None], float | None, str]] = {
    "one q row": (
        rewrite(2, one_row), 1.0,
        "7 of 8 tensors equal the source; model.layers.1.self_attn.q_proj.weight differs in 128 of 16384 values, "
        "first in row 3",
    ),
    "one k head": (
        rewrite(2, one_head), 1.0,
        "7 of 8 tensors equal the source; model.layers.1.self_attn.k_proj.weight differs in 4096 of 8192 values, "
        "first in row 32",
    ),
    "swapped layers": (swapped_layers, 6.0, "; 5 more differ"),
    "one value of a vector": (
        rewrite(1, lambda held: held["model.norm.weight"].__setitem__(17, 9)), 1.0,
        "model.norm.weight differs in 1 of 128 values, first in place 17",
    ),
    "another type": (rewrite(1, narrower), 1.0, "model.norm.weight is F16 [128] instead of F32 [128]"),
    "a truncated shard": (truncated, None, "model-00002-of-00002.safetensors: "),
}  # fmt: skip


@pytest.mark.parametrize("defect", WRONG_WEIGHTS)
def test_wrong_weights(defect: str, output: Path) -> None:
    plant, figure, detail = WRONG_WEIGHTS[defect]
    plant(output)
    check = only_red(read_back(output), "weights")
    assert check.figure == figure
    assert detail in check.detail


def test_missing_and_additional_tensors_are_named(output: Path) -> None:
    rewrite(2, lambda held: held.pop(f"{LAYER_1}.v_proj.weight"))(output)
    rewrite(1, lambda held: held.update(extra=np.zeros(4, np.float32)))(output)
    _, weights, files = read_back(output)
    assert weights.detail == f"7 of 9 tensors equal the source; {LAYER_1}.v_proj.weight is missing; 1 more differs"
    assert files.verdict == "fail"  # the index names other tensors


def edit(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def defect(folder: Path) -> None:
        data = json.loads((folder / name).read_text())
        change(data)
        replace(folder / name, json.dumps(data, indent=2))

    return defect


def scaling(**keys: Any) -> Callable[[Path], None]:
    return edit("config.json", lambda data: data["rope_scaling"].update(keys))


WRONG_TABLES: dict[str, tuple[Callable[[Path], None], str]] = {
    "theta +10 %": (edit("config.json", lambda data: data.update(rope_theta=11000.0)), "table: 15 of 16 pairs differ"),
    "factor 7 for 8": (scaling(factor=7.0), "attention factor 1.19459 instead of 1.20794"),
    "truncate": (scaling(truncate=False), "pairs differ: distances look"),
    "dropped attention factor": (scaling(attention_factor=1.0), "attention factor 1 instead of 1.20794"),
    "original length doubled": (scaling(original_max_position_embeddings=1024), "pairs differ: distances look"),
    "no scaling": (edit("config.json", lambda data: data.update(rope_scaling=None)), "attention factor 1 instead"),
    "a rule": (
        scaling(rope_type="dynamic"), "fixed tables for [] instead of ['full_attention']",
    ),
    "a shorter context": (
        edit("config.json", lambda data: data.update(max_position_embeddings=2048)), "context 2048 instead of 4096",
    ),
    "another head_dim": (edit("config.json", lambda data: data.update(head_dim=64)), "32 rotary pairs instead of 16"),
    "an impossible factor": (scaling(factor=-1.0), "rope_scaling.factor"),
}  # fmt: skip


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("defect", WRONG_TABLES)
def test_wrong_tables(defect: str, gone: bool, source: Path, output: Path) -> None:
    plant, detail = WRONG_TABLES[defect]
    plant(output)
    if gone:
        shutil.rmtree(source)
    tables, _, files = read_back(output)
    assert tables.verdict == "fail"
    assert detail in tables.detail
    assert tables.figure is None or tables.figure > 20 * 1e-6 or "context" in detail
    assert files.verdict == ("-" if gone else "fail")


def test_a_rule_that_follows_the_length_is_compared_with_the_source(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "output"
    ropetool.apply(ropetool.plan(source, "dynamic", factor=4), source, target)
    edit("config.json", lambda data: data.update(rope_theta=11000.0))(target)
    tables = read_back(target)[0]
    assert (tables.verdict, tables.detail) == (
        "fail",
        "transformers: table: 15 of 16 pairs differ: distances look up to 1.09x shorter",
    )
    shutil.rmtree(source)
    assert "its numbers need the source for comparison" in read_back(target)[0].detail


WRONG_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "two ids exchanged": (
        edit("tokenizer.json", lambda data: data["model"]["vocab"].update({"the": 2, "of": 1})),
        "5 of 6 files equal the source, except for the plan's edits; tokenizer.json differs",
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "more tokens": (lambda folder: (folder / "added_tokens.json").write_text("{}"), "added_tokens.json is additional"),
    "the tokenizer's limit": (
        edit("tokenizer_config.json", lambda data: data.update(model_max_length=512)),
        "tokenizer_config.json: model_max_length is 512 instead of 4096",
    ),
    "another epsilon": (
        edit("config.json", lambda data: data.update(rms_norm_eps=1e-2)),
        "config.json: rms_norm_eps is 0.01 instead of absent",
    ),
    "a file of a folder": (lambda folder: replace(folder / "original" / "params.json", "[]"), "original/params.json differs"),
}  # fmt: skip


@pytest.mark.parametrize("defect", WRONG_FILES)
def test_wrong_files(defect: str, output: Path) -> None:
    plant, detail = WRONG_FILES[defect]
    plant(output)
    check = only_red(read_back(output), "files")
    assert check.detail.endswith(detail)
    assert check.figure == 1.0


@pytest.mark.parametrize("broken", ["source", "output"])
def test_what_cannot_be_read_is_named_without_its_folder(broken: str, source: Path, output: Path) -> None:
    """Details go into records and cards, which travel."""
    (source.with_name(broken) / "tokenizer_config.json").write_text("{")
    details = [check.detail for check in (*read_back(output), check_rotation(output))]
    assert any("tokenizer_config.json: is not valid JSON" in detail for detail in details)
    assert not [detail for detail in details if str(source.parent) in detail]


def test_indentation_and_notes_beside_the_model_are_no_difference(output: Path) -> None:
    edit("config.json", lambda data: None)(output)
    (output / "notes.txt").write_text("mine")
    assert verdicts(read_back(output)) == dict.fromkeys(VERDICTS, "pass")


# --- what it is compared with


def test_without_provenance_the_baseline_made_longer_again_is_the_measure(source: Path, output: Path) -> None:
    (output / "ropetool.json").unlink()
    assert verdicts(read_back(output)) == dict.fromkeys(VERDICTS, "-")
    assert verdicts(read_back(output, source)) == dict.fromkeys(VERDICTS, "pass")
    rewrite(2, one_row)(output)
    WRONG_FILES["two ids exchanged"][0](output)
    _, weights, files = read_back(output, source)
    assert (weights.verdict, weights.figure) == ("fail", 1.0)
    assert "7 of 8 tensors equal the baseline; " in weights.detail
    assert (files.verdict, files.figure) == ("fail", 1.0)
    assert "tokenizer.json: model.vocab.the is 2 instead of 1" in files.detail


def test_a_baseline_stands_in_for_a_source_that_is_gone(source: Path, output: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    source.rename(moved)
    _, weights, files = read_back(output)
    assert (weights.verdict, files.verdict) == ("-", "-")
    assert weights.detail == f"the source {source.name} no longer exists"
    assert verdicts(read_back(output, moved)) == dict.fromkeys(VERDICTS, "pass")
    rewrite(2, one_row)(output)
    check = only_red(read_back(output, moved), "weights")
    assert f"tensors equal the baseline, because the source {source.name} no longer exists; " in check.detail


def test_a_changed_source_is_not_compared(source: Path, output: Path) -> None:
    os.utime(source / "model-00001-of-00002.safetensors", (1, 1))
    _, weights, _ = read_back(output)
    assert (weights.verdict, weights.detail) == ("-", f"the source {source.name} has changed")


def test_a_directory_is_not_made_of_a_file_but_a_file_is_of_a_directory(output: Path, tmp_path: Path) -> None:
    other = model(tmp_path / "model.gguf")
    (output / "ropetool.json").unlink()
    assert verdicts(read_back(output, other)) == dict.fromkeys(VERDICTS, "-")
    checks = read_back(other, output)
    assert verdicts(checks) == dict.fromkeys(VERDICTS, "fail")
    assert (
        checks[2].detail
        == "output: no weight file contains model.layers.0.input_layernorm.weight, which the config requires"
    )


def test_values_are_counted_across_pieces(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(2, one_head)(output)
    whole = read_back(output)[1].detail
    monkeypatch.setattr(tensor_bytes, "BUFFER", 1000)
    assert read_back(output)[1].detail == whole


def test_linked_weights_are_not_read(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise AssertionError("read")

    monkeypatch.setattr(tensor_bytes, "_read_at", refuse)
    assert read_back(output)[1].verdict == "pass"
    rewrite(2, lambda held: None)(output)
    with pytest.raises(AssertionError, match="read"):
        read_back(output)


# --- GGUF


TOKENS = ("<s>", *(f"t{number}" for number in range(95)))


def write_gguf(path: Path, quantised: bool = True, tokens: tuple[str, ...] = TOKENS, **keys: Any) -> Path:
    stated = {"context_length": TRAINED, "rope.freq_base": 10000.0, **keys}
    return Tiny("llama", stated, tokens=tokens, merges=("t 0",)).write(path, quantised)


def extended(source: Path, method: str = "yarn", **options: Any) -> Path:
    target = source.with_name("output.gguf")
    return ropetool.apply(ropetool.plan(source, method, factor=4, **options), source, target).output


def poke(path: Path, tensor: str, at: int) -> None:
    """Change one byte of a tensor in place."""
    reader = gguf.GGUFReader(path, "r+")
    found = next(t for t in reader.tensors if t.name == tensor)
    found.data.reshape(-1).view(np.uint8)[at] ^= 1
    reader.data.flush()


def set_number(path: Path, key: str, value: float) -> None:
    reader = gguf.GGUFReader(path, "r+")
    field = reader.fields[key]
    field.parts[field.data[0]][0] = value
    reader.data.flush()


@pytest.mark.parametrize("method", ["yarn", "linear", "llama3", "longrope"])
def test_an_untouched_gguf_passes(method: str, tmp_path: Path) -> None:
    params = {"params": {"long_factor": [1.0 + 0.1 * i for i in range(32)]}} if method == "longrope" else {}
    checks = read_back(extended(write_gguf(tmp_path / "model.gguf"), method, **params))
    assert verdicts(checks) == dict.fromkeys(VERDICTS, "pass")
    count = {"yarn": 12, "linear": 12, "llama3": 13, "longrope": 13}[method]
    assert checks[1].detail == f"{count} of {count} tensors equal the source"


def test_a_wrong_block_of_a_quantised_tensor(tmp_path: Path) -> None:
    target = extended(write_gguf(tmp_path / "model.gguf"))
    poke(target, "blk.0.attn_q.weight", at=34 * (4 * 5 + 1) + 7)  # row 5: four blocks of 34 bytes in a row of 128
    check = only_red(read_back(target), "weights")
    assert check.detail == (
        "11 of 12 tensors equal the source; blk.0.attn_q.weight differs in 1 of 512 blocks of 32 values, first in row 5"
    )


def test_tensors_quantised_again(tmp_path: Path) -> None:
    target = extended(write_gguf(tmp_path / "model.gguf", quantised=False))
    reader = gguf.GGUFReader(target)
    stated = {key: float(reader.fields[f"llama.{key}"].contents()) for key in ("rope.scaling.factor", "rope.freq_base")}
    write_gguf(
        target, True, **stated, **{"rope.scaling.type": "yarn", "rope.scaling.original_context_length": TRAINED},
        context_length=4 * TRAINED,
    )  # fmt: skip
    check = only_red(read_back(target), "weights")
    assert "token_embd.weight is Q8_0 [96, 128] instead of F32 [96, 128]" in check.detail


def test_a_planned_vector_that_was_changed(tmp_path: Path) -> None:
    target = extended(write_gguf(tmp_path / "model.gguf"), "llama3")
    poke(target, "rope_freqs.weight", at=0)  # a low bit: within the tolerance of the tables
    check = only_red(read_back(target), "weights")
    assert check.detail.endswith("12 of 13 tensors equal the source; rope_freqs.weight differs from the plan")


def test_a_base_that_was_changed(tmp_path: Path) -> None:
    target = extended(write_gguf(tmp_path / "model.gguf"))
    set_number(target, "llama.rope.freq_base", 10100.0)
    tables, weights, files = read_back(target)
    assert (tables.verdict, weights.verdict, files.verdict) == ("fail", "pass", "fail")
    assert tables.figure == pytest.approx(1 - 1.01 ** -(62 / 64), rel=1e-3)
    assert files.detail.endswith("'llama.rope.freq_base' differs")


def test_two_tokens_exchanged_in_a_gguf(tmp_path: Path) -> None:
    target = extended(write_gguf(tmp_path / "model.gguf"))
    exchanged = write_gguf(tmp_path / "other.gguf", tokens=("<s>", "t1", "t0", *TOKENS[3:]))
    record = Path(f"{target}.ropetool.json")
    kept = record.read_text()
    ropetool.apply(ropetool.plan(exchanged, "yarn", factor=4), exchanged, target, force=True)
    record.write_text(kept)
    check = only_red(read_back(target), "files")
    assert check.detail.endswith("except for the plan's edits; 'tokenizer.ggml.tokens' differs")


def test_a_model_in_several_files(tmp_path: Path) -> None:
    source = model(tmp_path / "model.gguf", shards=2)
    target = ropetool.apply(ropetool.plan(source, "ntk", factor=4), source, tmp_path / "output.gguf").output
    assert verdicts(read_back(target)) == dict.fromkeys(VERDICTS, "pass")
    second = target.with_name(target.name.replace("00001-of", "00002-of"))
    assert verdicts(read_back(second)) == dict.fromkeys(VERDICTS, "pass")
    content = second.read_bytes()
    second.unlink()
    second.write_bytes(content)
    poke(second, gguf.GGUFReader(second).tensors[-1].name, at=0)
    only_red(read_back(target), "weights")
    second.write_bytes(content[:-64])
    weights = read_back(target)[1]
    assert weights.verdict == "fail"
    assert "the file ends at byte" in weights.detail


# --- exports, and two files against each other


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the demo model extended by yarn, and its export."""
    folder = tmp_path_factory.mktemp("demo")
    source = Path(ropetool.__file__).parent / "demo" / "model"
    ropetool.apply(ropetool.plan(source, "yarn", factor=8), source, folder / "extended", copy=True)
    models.export(folder / "extended", folder / "extended.gguf", outtype="f32", allow_unverified=True)
    return folder


def copied(folder: Path, to: Path) -> tuple[Path, Path]:
    """Return copies of the demo's two forms; the export's record names the first."""
    shutil.copytree(folder / "extended", to / "extended")
    shutil.copy(folder / "extended.gguf", to / "extended.gguf")
    return to / "extended", to / "extended.gguf"


def test_an_export_computes_the_tables_of_its_source(demo: Path) -> None:
    target = demo / "extended.gguf"
    checks = read_back(target)
    assert verdicts(checks) == dict.fromkeys(VERDICTS, "pass")
    record = Path(f"{target}.ropetool.json")
    kept, content = record.read_text(), target.read_bytes()
    try:
        set_number(target, "llama.rope.scaling.factor", 7.0)
        assert read_back(target)[0].verdict == "fail"
        record.write_text(json.dumps({**json.loads(kept), "source": "/gone"}))
        assert "attention factor 1.19459 instead of 1.20794" in read_back(target)[0].detail  # the plan's table
    finally:
        record.write_text(kept)
        target.write_bytes(content)


AGAINST: dict[str, Callable[[Path], None]] = {
    "theta +10 %": edit("config.json", lambda data: data.update(rope_theta=11000.0)),
    "factor 7 for 8": scaling(factor=7.0),
    "truncate": scaling(truncate=False),
    "dropped attention factor": scaling(attention_factor=1.0),
    "original length doubled": scaling(original_max_position_embeddings=512),
}


@pytest.mark.parametrize("defect", AGAINST)
def test_a_defect_is_seen_between_formats(defect: str, demo: Path, tmp_path: Path) -> None:
    directory, file = copied(demo, tmp_path)
    assert (same_tables(directory, file).verdict, same_tables(file, directory).verdict) == ("pass", "pass")
    AGAINST[defect](directory)
    for check in (same_tables(directory, file), same_tables(file, directory)):
        assert check.verdict == "fail"
        assert check.figure is not None
        assert check.figure > 1e-3


@pytest.mark.parametrize("key", ["rope.freq_base", "rope.scaling.factor", "rope.scaling.attn_factor"])
def test_a_defect_is_seen_in_a_quantised_file(key: str, tmp_path: Path) -> None:
    keys = {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": TRAINED,
        "rope.scaling.attn_factor": 1.0,
    }  # fmt: skip
    whole, narrow = (write_gguf(tmp_path / f"{q}.gguf", q, **keys) for q in (False, True))
    assert same_tables(narrow, whole).verdict == "pass"
    set_number(narrow, f"llama.{key}", {"rope.freq_base": 11000.0, "rope.scaling.factor": 7.0}.get(key, 0.9))
    assert same_tables(narrow, whole).verdict == "fail"


def test_what_has_no_table_is_not_compared(tmp_path: Path) -> None:
    known = write_config(tmp_path / "known", configs.config("llama", "v4"))
    unknown = write_config(tmp_path / "unknown", {**configs.config("llama", "v4"), "model_type": "nobody"})
    check = same_tables(unknown, known)
    assert (check.verdict, check.detail) == ("not run", "unknown: the RoPE settings of a nobody cannot be decoded")


def test_kinds_of_layers_are_matched_by_their_index(tmp_path: Path) -> None:
    data = configs.config("gemma3_text", "v5")
    first = write_config(tmp_path / "first", data)
    same = write_config(tmp_path / "same", data)
    other = write_config(tmp_path / "other", {**data, "layer_types": data["layer_types"][::-1]})
    assert same_tables(first, same).verdict == "pass"
    assert same_tables(first, other).detail.startswith("layer 0: ")


def test_a_file_edited_in_place_is_held_against_its_record(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    shutil.copy(path, tmp_path / "before.gguf")
    ropetool.apply_in_place(ropetool.plan(path, method="yarn", factor=4), path)
    tables, weights, files = read_back(path)
    assert tables.verdict == "pass"
    edited = "the file was edited in place, so its original is gone"
    assert [check.detail for check in (weights, files)] == [
        f"{edited}; pass a copy of the original file as --baseline"
    ] * 2
    assert {check.verdict for check in (weights, files)} == {"-"}
    tables, weights, files = read_back(path, tmp_path / "before.gguf")
    assert {check.verdict for check in (tables, weights, files)} == {"pass"}
    assert f"the baseline, because {edited}" in weights.detail
