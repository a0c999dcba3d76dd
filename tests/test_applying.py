"""Carrying out a plan: what arrives in the output, what stays behind, and what stops it before anything is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configs
import gguf
import gguf_files
import pytest
from models import config_of, set_config, write_config, write_model
from running import snapshot

import ropetool
from ropetool.checkpoint import provenance
from ropetool.errors import CheckpointError, MissingFile, OutputError, PlanMismatch
from ropetool.plans.plan import Plan

SHARD = "model-00001-of-00002.safetensors"
CARRIED = {
    "config.json", "tokenizer_config.json", "tokenizer.json", "README.md", "assets", "assets/license.txt", SHARD,
    "model-00002-of-00002.safetensors", "model.safetensors.index.json",
}  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", configs.config("llama", "v4"))


def extended(source: Path, target: Path, **options: Any) -> Any:
    return ropetool.apply(ropetool.plan(source, "yarn", factor=4), source, target, **options)


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


# --- what arrives


def test_the_output_is_the_source_but_for_the_planned_lines(source: Path, tmp_path: Path) -> None:
    extended(source, tmp_path / "out")
    out = tmp_path / "out"
    assert files(out) == CARRIED | {"ropetool.json"}
    for name in CARRIED - {"config.json", "tokenizer_config.json", "assets", "README.md"}:
        assert (out / name).read_bytes() == (source / name).read_bytes(), name
    text = (source / "config.json").read_text()
    scaling = '{\n    "rope_type": "yarn",\n    "factor": 4.0,\n    "original_max_position_embeddings": 512\n  }'
    expected = text.replace('"rope_scaling": null', f'"rope_scaling": {scaling}')
    expected = expected.replace('"max_position_embeddings": 512', '"max_position_embeddings": 2048')
    assert (out / "config.json").read_text() == expected
    tokenizer = (source / "tokenizer_config.json").read_text()
    assert (out / "tokenizer_config.json").read_text() == tokenizer.replace("512", "2048")


def test_the_source_is_untouched(source: Path, tmp_path: Path) -> None:
    before = snapshot(source)
    extended(source, tmp_path / "out")
    extended(source, tmp_path / "copy", copy=True)
    assert snapshot(source) == before


def test_weights_are_linked_and_all_else_is_copied(source: Path, tmp_path: Path) -> None:
    """A tokenizer is rewritten in place by `save_pretrained`, which through a link would change the source."""
    copied = extended(source, tmp_path / "copied", copy=True)
    assert copied.placed == {"copied": 5}
    assert (tmp_path / "copied" / SHARD).stat().st_ino != (source / SHARD).stat().st_ino
    linked = extended(source, tmp_path / "linked")
    assert linked.placed["copied"] in (3, 5)  # five where the file system links nothing
    assert sum(linked.placed.values()) == 5
    shared = {name for name in files(source) & CARRIED if (source / name).samefile(tmp_path / "linked" / name)}
    assert shared == ({SHARD, "model-00002-of-00002.safetensors"} if "hard-linked" in linked.placed else set())
    assert set(linked.placed) <= {"hard-linked", "reflinked", "copied"}
    assert linked.edited == ("config.json", "tokenizer_config.json")
    before = snapshot(source)
    for name in CARRIED - shared - {"assets"}:
        (tmp_path / "linked" / name).write_text("rewritten in place")
    assert snapshot(source) == before


def test_an_edited_file_is_never_linked(source: Path, tmp_path: Path) -> None:
    """A write through a link would change the source."""
    os.link(source / "config.json", tmp_path / "second-name.json")
    extended(source, tmp_path / "out")
    for name in ("config.json", "tokenizer_config.json", "ropetool.json", "README.md"):
        assert (tmp_path / "out" / name).stat().st_nlink == 1


def test_progress_names_every_file_that_is_placed(source: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    extended(source, tmp_path / "out", progress=lambda *now: told.append(now), copy=True)
    assert told.pop() == ("flushing to disk", 0, 0)
    names = list(dict.fromkeys(name for name, _, _ in told))
    assert sorted(names) == sorted(CARRIED - {"config.json", "tokenizer_config.json", "assets", "README.md"})
    done = [done for _, done, _ in told]
    assert done == sorted(done)
    assert {total for _, _, total in told} == {done[-1]}


def test_the_bytes_of_a_copy_are_counted_as_they_are_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropetool.files.copying.RANGE", 16)
    for kernel in (True, False):
        if not kernel:
            monkeypatch.delattr("os.copy_file_range")
            monkeypatch.setattr("ropetool.files.linking._BUFFER", 16)
        for copy in (True, False):
            told: list[int] = []
            extended(
                source, tmp_path / f"out{kernel}{copy}", copy=copy,
                progress=lambda name, done, _, told=told: told.append(done) if name == SHARD else None,
            )  # fmt: skip
            size = (source / SHARD).stat().st_size
            assert [done - told[0] for done in told] == ([*range(0, size, 16), size] if copy else [0])


def test_a_config_alone_gives_a_config_alone(tmp_path: Path) -> None:
    source = write_config(tmp_path / "model", configs.config("qwen2", "v5"))
    extended(source, tmp_path / "out")
    assert files(tmp_path / "out") == {"config.json", "ropetool.json", "README.md"}


# --- what stays behind


def test_pickles_tools_and_dead_links_stay_behind_and_are_named(source: Path, tmp_path: Path) -> None:
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    (source / "pytorch_model.bin.index.json").write_text("{}")
    (source / "original").mkdir()
    (source / "original" / "consolidated.00.pth").write_bytes(b"pickle")
    (source / "original" / "params.json").write_text("{}")
    (source / ".git").mkdir()
    (source / ".git" / "HEAD").write_text("ref")
    (source / ".cache").mkdir()
    (source / "dead.txt").symlink_to(source / "nowhere")
    (source / "folder").symlink_to(tmp_path)
    (source / "linked.txt").symlink_to(source / "README.md")
    written = extended(source, tmp_path / "out")
    assert set(written.left) == {
        "pytorch_model.bin", "pytorch_model.bin.index.json", "original/consolidated.00.pth", ".git", ".cache",
        "dead.txt", "folder",
    }  # fmt: skip
    out = files(tmp_path / "out")
    assert out == CARRIED | {"ropetool.json", "original", "original/params.json", "linked.txt"}
    assert (tmp_path / "out" / "linked.txt").read_text() == "# A model\n"
    assert not (tmp_path / "out" / "linked.txt").is_symlink()


def test_pipes_and_devices_stay_behind_and_nothing_waits_for_them(source: Path, tmp_path: Path) -> None:
    os.mkfifo(source / "pipe.json")
    (source / "null").symlink_to(os.devnull)
    written = extended(source, tmp_path / "out")
    assert written.left == ("null", "pipe.json")
    assert files(tmp_path / "out") == CARRIED | {"ropetool.json"}


def in_a_cache(source: Path, *names: str) -> Path:
    """Move a checkpoint into a cache of the hub, these files as links to blobs, and return its new place."""
    repository = source.parent / "hub" / "models--acme--model"
    snapshot_of = repository / "snapshots" / "0123456789"
    (repository / "blobs").mkdir(parents=True)
    snapshot_of.parent.mkdir()
    source.rename(snapshot_of)
    for name in names:
        (snapshot_of / name).rename(repository / "blobs" / f"sha-{name}")
        (snapshot_of / name).symlink_to(Path("..", "..", "blobs", f"sha-{name}"))
    return snapshot_of


def test_links_into_a_cache_become_files(source: Path, tmp_path: Path) -> None:
    inside = in_a_cache(source, SHARD, "config.json", "tokenizer.json")
    before = snapshot(inside.parent.parent)
    extended(inside, tmp_path / "out")
    for name in (SHARD, "config.json", "tokenizer.json"):
        assert not (tmp_path / "out" / name).is_symlink()
    assert (tmp_path / "out" / SHARD).read_bytes() == (inside / SHARD).read_bytes()
    (tmp_path / "out" / "tokenizer.json").write_text("rewritten in place")
    assert snapshot(inside.parent.parent) == before


def outward(source: Path, private: Path) -> Path:
    (source / "NOTICE.txt").symlink_to(private)
    return source / "NOTICE.txt"


def chained(source: Path, private: Path) -> Path:
    (source / "NOTICE.txt").symlink_to("assets/inner.txt")
    (source / "assets" / "inner.txt").symlink_to(private)
    return source / "NOTICE.txt"


def of_weights(source: Path, private: Path) -> Path:
    (source / "model-00003-of-00003.safetensors").symlink_to(private)
    return source / "model-00003-of-00003.safetensors"


def of_the_card(source: Path, private: Path) -> Path:
    (source / "README.md").unlink()
    (source / "README.md").symlink_to(private)
    return source / "README.md"


@pytest.mark.parametrize("arranged", [outward, chained, of_weights, of_the_card])
@pytest.mark.parametrize("cached", [False, True], ids=["folder", "cache"])
def test_a_link_that_leads_out_is_refused_by_name(
    arranged: Callable[[Path, Path], Path], cached: bool, source: Path, tmp_path: Path
) -> None:
    private = tmp_path / "id_ed25519"
    private.write_text("secret")
    inside = in_a_cache(source, SHARD) if cached else source
    plan = ropetool.plan(inside, "yarn", factor=4)
    link = arranged(inside, private)
    with pytest.raises(CheckpointError) as refused:
        ropetool.apply(plan, inside, tmp_path / "out")
    assert refused.value.message == f"is a link to a file outside the checkpoint, {private}"
    assert refused.value.where == str(link)
    assert not (tmp_path / "out").exists()
    assert private.stat().st_nlink == 1


@pytest.mark.parametrize("arranged", ["the folder of blobs", "a folder in it"])
def test_a_link_in_place_of_a_folder_of_blobs_is_no_way_out(arranged: str, source: Path, tmp_path: Path) -> None:
    """Anybody can lay out a tree as a cache of the hub is laid out, and have its blobs be a link to any folder."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "id_ed25519").write_text("secret")
    inside = in_a_cache(source)
    blobs = inside.parent.parent / "blobs"
    if arranged == "the folder of blobs":
        blobs.rmdir()
        blobs.symlink_to(private)
        (inside / "NOTICE.txt").symlink_to("../../blobs/id_ed25519")
    else:
        (blobs / "more").symlink_to(private)
        (inside / "NOTICE.txt").symlink_to("../../blobs/more/id_ed25519")
    plan = ropetool.plan(inside, "yarn", factor=4)
    with pytest.raises(CheckpointError, match=r"is a link to a file outside the checkpoint, .*/private/id_ed25519"):
        ropetool.apply(plan, inside, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_cache_that_lies_on_another_disk_is_followed(source: Path, tmp_path: Path) -> None:
    inside = in_a_cache(source, "tokenizer.json")
    (tmp_path / "hub").rename(tmp_path / "disk")
    (tmp_path / "hub").symlink_to("disk")
    extended(inside, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_a_link_through_another_place_back_into_the_checkpoint_is_carried(source: Path, tmp_path: Path) -> None:
    (tmp_path / "detour").symlink_to(source / "README.md")
    (source / "NOTICE.txt").symlink_to(tmp_path / "detour")
    extended(source, tmp_path / "out")
    assert (tmp_path / "out" / "NOTICE.txt").read_text() == "# A model\n"


def test_a_folder_that_is_itself_a_link_is_a_checkpoint(source: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(source)
    (source / "NOTICE.txt").symlink_to("README.md")
    extended(tmp_path / "alias", tmp_path / "out")
    assert (tmp_path / "out" / "NOTICE.txt").read_text() == "# A model\n"


# --- provenance


def test_the_provenance_says_where_from_and_how(source: Path, tmp_path: Path) -> None:
    plan = ropetool.plan(source, "yarn", factor=4)
    ropetool.apply(plan, source, tmp_path / "out")
    made = provenance.read(tmp_path / "out")
    assert made is not None
    assert (made.source, made.trained_length) == (str(source), 512)
    assert made.source_fingerprint == provenance.fingerprint(source)
    read = Plan.from_json(made.plan, "here")
    assert read == plan
    assert read.to_json() == plan.to_json() == made.plan
    assert read.target is not None
    assert plan.target is not None
    assert read.target.differences(plan.target) == ()
    data = json.loads((tmp_path / "out" / "ropetool.json").read_text())
    assert (data["schema"], data["ropetool"]) == (1, ropetool.__version__)


def test_the_provenance_of_a_source_of_ours_is_replaced(source: Path, tmp_path: Path) -> None:
    extended(source, tmp_path / "first")
    again = ropetool.plan(tmp_path / "first", "yarn", factor=2, reading="current")
    written = ropetool.apply(again, tmp_path / "first", tmp_path / "second")
    made = provenance.read(tmp_path / "second")
    assert made is not None
    assert (made.source, made.trained_length, made.plan["method"]) == (str(tmp_path / "first"), 512, "yarn")
    assert written.left == ()


# --- force


def test_force_replaces_what_is_ours(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    extended(source, out)
    with pytest.raises(OutputError, match="exists already"):
        extended(source, out)
    ropetool.apply(ropetool.plan(source, "linear", factor=2), source, out, force=True)
    assert config_of(out)["rope_scaling"]["rope_type"] == "linear"
    assert files(out) == CARRIED | {"ropetool.json"}


def test_force_replaces_nothing_by_a_record_without_a_list(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    extended(source, out)
    record = json.loads((out / "ropetool.json").read_text())
    del record["files"]
    (out / "ropetool.json").write_text(json.dumps(record))
    with pytest.raises(
        OutputError, match=r"contains files that its record does not list: README.md, assets/license.txt, config"
    ):
        extended(source, out, force=True)


def test_force_replaces_what_a_record_lists_and_nothing_else(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    extended(source, out)
    extended(source, out, force=True)
    (out / "assets" / "deep").mkdir()
    for name in ("thesis.tex", "assets/deep/notes.txt"):
        (out / name).write_text("years of work")
    before = snapshot(tmp_path)
    with pytest.raises(OutputError) as refused:
        extended(source, out, force=True)
    extra = "assets/deep/notes.txt, thesis.tex"
    assert refused.value.message == (
        f"exists already and contains files that its record does not list: {extra}; --force does not replace it"
    )
    assert snapshot(tmp_path) == before
    for number in range(9):
        (out / f"run-{number}").mkdir()
    with pytest.raises(OutputError, match="run-2, run-3 and 6 more;"):
        extended(source, out, force=True)


def longer(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"more")


def trained(file: Path) -> None:
    """Change every tensor of a weight file, whose size and header stay."""
    data = bytearray(file.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    data[begin:] = bytes(byte ^ 1 for byte in data[begin:])
    file.write_bytes(data)


@pytest.mark.parametrize("change", [longer, trained])
def test_force_does_not_replace_weights_that_were_trained_since(
    change: Callable[[Path], None], source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ropetool.apply(ropetool.plan(source, "yarn", factor=4), source, out, copy=True)
    plain = (out / SHARD).read_bytes()
    change(out / SHARD)
    before = snapshot(tmp_path)
    with pytest.raises(OutputError) as refused:
        extended(source, out, force=True)
    assert refused.value.message.startswith(
        f"exists already and contains files that do not match its record: {SHARD} (it "
    )
    assert snapshot(tmp_path) == before
    (out / SHARD).write_bytes(plain)
    extended(source, out, force=True)


@pytest.mark.parametrize("text", ["{}", "", "[1]", '{"files": []}'])
def test_a_folder_with_a_ropetool_json_of_others_is_never_replaced(text: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "ropetool.json").write_text(text)
    (tmp_path / "theirs" / "config.json").write_text("years of work")
    before = snapshot(tmp_path)
    with pytest.raises(
        OutputError, match=r"did not write \(a different program wrote its ropetool.json\); force does not"
    ):
        extended(source, tmp_path / "theirs", force=True)
    assert snapshot(tmp_path) == before


def test_a_record_that_lists_what_lies_elsewhere_removes_nothing_there(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    extended(source, out)
    (tmp_path / "thesis.tex").write_text("years of work")
    record = json.loads((out / "ropetool.json").read_text())
    record["files"] += [{"name": "../thesis.tex"}, {"name": str(tmp_path / "thesis.tex")}]
    (out / "ropetool.json").write_text(json.dumps(record))
    extended(source, out, force=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_record_lists_all_files_of_the_output(source: Path, tmp_path: Path) -> None:
    extended(source, tmp_path / "out")
    made = provenance.read(tmp_path / "out")
    assert made is not None
    sizes = {entry["name"]: entry.get("size") for entry in made.files}
    assert set(sizes) == CARRIED - {"assets"} | {"ropetool.json"}
    assert (sizes.pop("README.md"), sizes.pop("ropetool.json")) == (None, None)
    assert sizes == {name: (tmp_path / "out" / name).stat().st_size for name in sizes}


def test_a_verification_that_was_killed_is_no_obstacle(source: Path, tmp_path: Path) -> None:
    """It leaves a hidden folder of its own inside the output."""
    out = tmp_path / "out"
    extended(source, out)
    left = out / ".ropetool.json.ropetool-abcdef"
    (left / "new").mkdir(parents=True)
    (left / "lock").touch()
    extended(source, out, force=True)
    assert files(out) == CARRIED | {"ropetool.json"}


def test_what_a_killed_process_left_is_removed_and_named(source: Path, tmp_path: Path) -> None:
    left = tmp_path / ".out.ropetool-abcdef"
    (left / "new").mkdir(parents=True)
    (left / "lock").touch()
    written = extended(source, tmp_path / "out")
    assert written.notes == (f"removed {left}, which an interrupted command had left",)
    left.mkdir()
    with pytest.raises(OutputError, match="exists already") as refused:
        extended(source, tmp_path / "out")
    assert refused.value.notes == written.notes
    assert not left.exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_others_is_never_replaced(force: bool, source: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").write_text("years of work")
    before = snapshot(tmp_path)
    with pytest.raises(OutputError, match="a directory that ropetool did not write"):
        extended(source, tmp_path / "theirs", force=force)
    assert snapshot(tmp_path) == before


# --- a source that is not the plan's


def changed(**changes: Any) -> Callable[[Path], object]:
    return lambda source: set_config(source, **changes)


def without_tokenizer(source: Path) -> None:
    (source / "tokenizer_config.json").unlink()


def trained(source: Path) -> None:
    path = next(source.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


STALE = {
    "an edited value": (changed(max_position_embeddings=1024), "is 1024, but the plan was made for 512"),
    "a value that was absent": (changed(rope_scaling={"rope_type": "linear", "factor": 2.0}), "the plan was made for null"),
    "another family": (changed(model_type="mistral"), 'the plan is for llama, but the source is "mistral"'),
    "no family": (changed(model_type=None), "the plan is for llama, but the source is null"),
    # no edit names these two, but they change what the edited file says
    "another base": (changed(rope_theta=500000.0), r"a key outside the plan has changed: .* \(table: 15 of 16 pairs differ: "),
    "another head": (changed(head_dim=64), r"a key outside the plan has changed: .* \(32 rotary pairs instead of 16: "),
    # nor these, and no table shows them
    "another norm": (changed(rms_norm_eps=1e-3), "rms_norm_eps changed since the plan was made"),
    "several settings": (
        changed(hidden_act="gelu", intermediate_size=80, vocab_size=97, mlp_bias=True, attention_bias=True, head_scale=2),
        "attention_bias, head_scale, hidden_act, intermediate_size and 2 more settings changed since the plan was made",
    ),
    "other weights": (trained, "weights changed since the plan was made"),
    "a file that is gone": (without_tokenizer, "the plan edits tokenizer_config.json, which does not exist"),
}  # fmt: skip


@pytest.mark.parametrize("case", STALE)
def test_a_source_that_has_changed_is_refused(case: str, source: Path, tmp_path: Path) -> None:
    change, message = STALE[case]
    plan = ropetool.plan(source, "yarn", factor=4)
    change(source)
    before = snapshot(tmp_path)
    with pytest.raises(PlanMismatch, match=message):
        ropetool.apply(plan, source, tmp_path / "out")
    assert snapshot(tmp_path) == before


def test_a_change_that_concerns_nothing_is_accepted(source: Path, tmp_path: Path) -> None:
    plan = ropetool.plan(source, "yarn", factor=4)
    changed(torch_dtype="bfloat16", transformers_version="9", use_cache=False)(source)
    ropetool.apply(plan, source, tmp_path / "out")
    assert config_of(tmp_path / "out")["use_cache"] is False
    assert config_of(tmp_path / "out")["rope_scaling"]["factor"] == 4.0


def test_a_window_that_is_switched_on_afterwards_is_refused(tmp_path: Path) -> None:
    """No edit names it and no table shows it: the layers would look back 1024 tokens instead of 2048."""
    switched_off = {"use_sliding_window": False, "sliding_window": 1024, "max_window_layers": 0}
    source = write_config(tmp_path / "m", {**configs.config("qwen2", "v4"), **switched_off})
    plan = ropetool.plan(source, "yarn", factor=4)
    changed(max_window_layers=1)(source)  # of a window that is off
    ropetool.apply(plan, source, tmp_path / "out")
    changed(use_sliding_window=True)(source)
    words = r"a key outside the plan has changed: .* \(.*sliding.*\)"
    with pytest.raises(PlanMismatch, match=words):
        ropetool.apply(Plan.from_json(plan.to_json(), "here"), source, tmp_path / "out", force=True)


def test_a_plan_of_an_earlier_version_is_read_and_not_carried_out(source: Path, tmp_path: Path) -> None:
    """It states tables and lengths alone, so nothing tells whether the source is still what it was."""
    data = ropetool.plan(source, "yarn", factor=4).to_json()
    early = Plan.from_json({k: v for k, v in {**data, "schema": 1}.items() if k not in ("target", "identity")}, "here")
    assert early.rope_tables().keys() == {"full_attention"}
    assert early.to_json()["schema"] == 1
    with pytest.raises(PlanMismatch, match="an earlier version wrote the plan") as refused:
        ropetool.apply(early, source, tmp_path / "out")
    assert refused.value.try_ == "make a new plan with ropetool extend ... --dry-run --plan-out FILE"


def test_a_gguf_of_other_settings_or_weights_is_refused(tmp_path: Path) -> None:
    source = gguf_files.model(tmp_path / "m.gguf")
    plan = Plan.from_json(ropetool.plan(source, "yarn", factor=4).to_json(), "here")
    kept = source.read_bytes()
    gguf_files.model(source, keys={"logit_scale": (gguf.GGUFValueType.FLOAT32, 2.0)})
    with pytest.raises(PlanMismatch, match="logit_scale changed since the plan was made"):
        ropetool.apply(plan, source, tmp_path / "out.gguf")
    source.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(PlanMismatch, match="weights changed since the plan was made"):
        ropetool.apply(plan, source, tmp_path / "out.gguf")
    source.write_bytes(kept)
    ropetool.apply(plan, source, tmp_path / "out.gguf")


def test_another_multiplier_of_the_whole_score_is_refused(tmp_path: Path) -> None:
    """Only MLA has it, and no table shows it."""
    scaling = {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "mscale": 0.7, "mscale_all_dim": 0.7,
        "beta_fast": 32, "beta_slow": 1,
    }  # fmt: skip
    data = {**configs.config("deepseek_v3", "v4"), "rope_scaling": scaling, "max_position_embeddings": 2048}
    source = write_config(tmp_path / "model", data)
    plan = ropetool.plan(source, "yarn", factor=8, reading="original")
    assert {edit.path[-1] for edit in plan.edits} == {"factor", "max_position_embeddings"}
    changed(rope_scaling={**scaling, "mscale_all_dim": 0.9, "mscale": 0.9})(source)
    with pytest.raises(PlanMismatch, match="a key outside the plan has changed"):
        ropetool.apply(plan, source, tmp_path / "out")


# --- failure


def test_a_failure_leaves_nothing(source: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path)

    def stop(name: str, done: int, total: int) -> None:
        if name.endswith(".safetensors"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extended(source, tmp_path / "out", progress=stop)
    assert snapshot(tmp_path) == before


def test_a_shard_that_is_gone_is_refused(source: Path, tmp_path: Path) -> None:
    plan = ropetool.plan(source, "yarn", factor=4)
    (source / SHARD).unlink()
    before = snapshot(tmp_path)
    with pytest.raises(MissingFile, match=f"in {SHARD}, which does not exist"):
        ropetool.apply(plan, source, tmp_path / "out")
    assert snapshot(tmp_path) == before
