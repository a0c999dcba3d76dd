"""`ropetool extend` and `ropetool apply` as a user sees them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import configs
import pytest
from models import config_of, set_config, write_config, write_model
from running import COST_AT_4, run, snapshot
from terminals import on_terminal

import ropetool
from ropetool.plans.plan import Plan

YARN = ("--method", "yarn", "--factor", "4")


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_model(tmp_path / "model", configs.config("llama", "v4"))


PLAN = """\
plan for llama
  method    yarn, factor 4
  lengths   trained 512, new context 2048
  from      the unscaled table
  runtimes  transformers
  output    {here}/model-yarn-4x

encodings
  yarn keys  kept: decodes to the requested table

edits
  config.json            rope_scaling             null -> {{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}}
  config.json            max_position_embeddings  512 -> 2048
  tokenizer_config.json  model_max_length         512 -> 2048

the same without writing a file
  vllm: vllm serve model --max-model-len 2048 --hf-overrides '{override}'
  sglang: python -m sglang.launch_server --model-path model --context-length 2048 --json-model-override-args '{override}'
  llama.cpp: llama-server -m EXPORTED.gguf -c 2048 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 512
  KoboldCpp, LM Studio: not possible with flags: they accept only a base and a scale
"""
OVERRIDE = (
    '{"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "yarn", "factor": 4.0, '
    '"original_max_position_embeddings": 512, "rope_theta": 10000.0}}'
)


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    done = run("extend", "model", *YARN, "--dry-run")
    assert (done.code, done.err) == (0, f"Note: {COST_AT_4}\n")
    assert done.out == PLAN.format(here=tmp_path, override=OVERRIDE)
    assert snapshot(tmp_path) == before


def test_a_dry_run_says_why_an_encoding_was_rejected(tmp_path: Path) -> None:
    out = run("extend", "model", "-m", "pi", "--factor", "4", "--attention-factor", "1.2", "--dry-run").out
    assert "  method    linear, factor 4, attention_factor 1.2\n" in out
    why = "attention factor 1 instead of 1.2: scores of the rotated channels times 0.694444"
    assert f"  linear keys                     rejected: transformers: {why}\n" in out
    assert "  a full table as longrope lists  kept: decodes to the requested table\n" in out
    shown = next(line for line in out.splitlines() if " rope_scaling " in line)
    new = run("extend", "model", "-m", "pi", "--factor", "4", "--attention-factor", "1.2", "--dry-run", "--json").json
    (edit,) = [e for e in new["plan"]["edits"] if e["path"] == ["rope_scaling"]]
    assert shown.endswith(f"null -> {json.dumps(edit['new'])}")
    assert len(shown) > 300  # both lists, to the last number


def test_a_dry_run_prints_what_was_asked_for_in_full() -> None:
    divisors = [1 + i / 7 for i in range(16)]
    done = run(
        "extend",
        "model",
        "-m",
        "longrope",
        "--factor",
        "3.4133333333",
        "-p",
        "long_factor",
        json.dumps(divisors),
        "--dry-run",
    )
    assert f"  method    longrope, factor 3.4133333333, long_factor {json.dumps(divisors)}\n" in done.out
    assert "..." not in done.out
    done = run("extend", "model", *YARN, "-p", "beta_fast", "16", "-p", "beta_slow", "1.25", "--dry-run")
    assert "  method    yarn, factor 4, beta_fast 16, beta_slow 1.25\n" in done.out


def test_on_a_terminal_lines_keep_its_width_but_for_what_is_copied() -> None:
    shown = on_terminal(
        "extend", "model", "-m", "pi", "--factor", "4", "--attention-factor", "1.2", "--dry-run", columns=60
    )
    assert shown.code == 0, shown.written
    lines = shown.written.replace("\r", "").splitlines()
    commands = [line for line in lines if len(line) > 60]
    assert all(
        "llama-server" in line
        or "serve" in line
        or "launch_server" in line
        or "koboldcpp" in line
        or "/model-pi" in line
        or "linear-4x" in line
        for line in commands
    ), commands
    piped = run("extend", "model", "-m", "pi", "--factor", "4", "--attention-factor", "1.2", "--dry-run")
    assert shown.written.split() == (piped.out + piped.err).split()
    assert max(map(len, piped.out.splitlines())) > 300


def test_extend_says_what_it_wrote(tmp_path: Path) -> None:
    done = run("extend", "model", *YARN, "--copy")
    assert (done.code, done.err) == (0, f"Note: {COST_AT_4}\n")
    assert done.out == (
        f"{tmp_path}/model-yarn-4x\n  context      512 -> 2048 tokens, yarn factor 4\n"
        "  edited       config.json, tokenizer_config.json\n  other files  5 copied\n  sidecars     README.md\n\nserved by\n"
        f"  sglang: python -m sglang.launch_server --model-path {tmp_path}/model-yarn-4x --context-length 2048\n"
        f"  vllm: vllm serve {tmp_path}/model-yarn-4x --max-model-len 2048\n\n"
        "next\n  KV cache    2.00 MiB for one sequence of 2048 tokens\n"
        f"  measure it  ropetool verify {tmp_path}/model-yarn-4x\n"
    )
    assert config_of(tmp_path / "model-yarn-4x")["rope_scaling"]["factor"] == 4.0


def test_linked_weights_are_said_to_be_those_of_the_source() -> None:
    out = run("extend", "model", *YARN).out
    shared = Path("model-yarn-4x", "model-00001-of-00002.safetensors").stat().st_nlink > 1
    assert (
        "  storage      hard-linked: an edit in place changes the weights of the source too; pass --copy for separate "
        "files\n" in out
    ) == shared


def test_what_stays_behind_is_named(source: Path) -> None:
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    done = run("extend", "model", *YARN, "--copy")
    assert "  other files  5 copied\n  left behind  pytorch_model.bin\n" in done.out
    assert done.err == f"Note: pickle files are not copied: pytorch_model.bin\nNote: {COST_AT_4}\n"


def test_json_carries_the_plan_and_what_happened(tmp_path: Path, source: Path) -> None:
    (source / ".git").mkdir()
    planned = run("extend", "model", *YARN, "--dry-run", "--json")
    assert planned.err == ""
    assert set(planned.json) == {"schema", "plan", "output", "written", "flags"}
    assert planned.json["flags"] == [line.strip() for line in PLAN.format(here="", override=OVERRIDE).splitlines()[-4:]]
    assert (planned.json["output"], planned.json["written"]) == (f"{tmp_path}/model-yarn-4x", False)
    assert Plan.from_json(planned.json["plan"], "stdout") == ropetool.plan(source, "yarn", factor=4)
    done = run("extend", "model", *YARN, "--json", "--copy", "-o", "out")
    assert done.json == {
        "schema": 1, "plan": planned.json["plan"], "output": "out", "written": True, "placed": {"copied": 5},
        "edited": ["config.json", "tokenizer_config.json"], "left": [".git"], "baked": [],
        "serving": [
            "sglang: python -m sglang.launch_server --model-path out --context-length 2048",
            "vllm: vllm serve out --max-model-len 2048",
        ],
        "sidecars": ["out/README.md"],
        "notes": [],
        "kv_cache_bytes": 2 << 20, "verify": "ropetool verify out",
    }  # fmt: skip
    assert COST_AT_4 in planned.json["plan"]["notes"]


def test_a_plan_file_is_carried_out_by_apply(tmp_path: Path, source: Path) -> None:
    run("extend", "model", *YARN, "--dry-run", "--plan-out", "plan.json")
    before = snapshot(source)
    done = run("apply", "model", "plan.json", "--copy")
    assert (done.code, done.err) == (0, f"Note: {COST_AT_4}\n")
    assert done.out == run("extend", "model", *YARN, "--copy", "--force").out
    run("apply", "model", "plan.json", "-o", "again", "--json")
    for name in ("config.json", "tokenizer_config.json"):
        assert Path("again", name).read_bytes() == Path("model-yarn-4x", name).read_bytes()
    records = [json.loads(Path(output, "ropetool.json").read_bytes()) for output in ("again", "model-yarn-4x")]
    for record in records:
        # One output is a copy and the other is linked, at another time.
        record["files"] = [(listed["name"], listed.get("size")) for listed in record["files"]]
    assert records[0] == records[1]
    assert run("apply", "model", "plan.json", "-o", "third", "--json").json["output"] == "third"
    assert snapshot(source) == before


def test_apply_prints_the_notes_of_the_plan(tmp_path: Path) -> None:
    write_config(tmp_path / "alone", configs.config("llama", "v4"))
    planned = run("extend", "alone", *YARN, "--plan-out", "plan.json", "-o", "first")
    applied = run("apply", "alone", "plan.json", "-o", "second")
    alone = "Note: the source has no weights, so the output has none either\n"
    assert planned.err == applied.err == f"{alone}Note: {COST_AT_4}\n"


def test_the_options_reach_the_method(source: Path) -> None:
    """Each everyday option against the same parameter given by name."""

    def scaling(*options: str) -> Any:
        done = run("extend", "model", "--factor", "4", "--dry-run", "--json", *options)
        return {tuple(e["path"]): e.get("new") for e in done.json["plan"]["edits"]}

    fast = scaling("-m", "yarn", "--beta-fast", "8", "--beta-slow", "2")
    assert fast == scaling("-m", "yarn", "-p", "beta_fast", "8", "-p", "beta_slow", "2")
    assert (fast["rope_scaling",]["beta_fast"], fast["rope_scaling",]["beta_slow"]) == (8.0, 2.0)
    assert scaling("-m", "abf", "--rope-theta", "1e6")["rope_theta",] == 1e6
    assert scaling("-m", "yarn", "--attention-factor", "none")["rope_scaling",]["attention_factor"] == 1.0
    assert scaling("-m", "yarn", "--original-length", "256")["max_position_embeddings",] == 1024
    assert scaling("-m", "yarn", "--attention-factor", "1.5")["rope_scaling",]["attention_factor"] == 1.5


@pytest.mark.parametrize("form", ["text", "file", "object"])
def test_a_list_comes_from_text_or_a_file(form: str, tmp_path: Path) -> None:
    divisors = [1.0 + i for i in range(16)]
    value = json.dumps(divisors)
    if form != "text":
        (tmp_path / "lists.json").write_text(value if form == "file" else json.dumps({"long_factor": divisors}))
        value = "lists.json"
    done = run("extend", "model", "-m", "longrope", "--factor", "4", "-p", "long_factor", value, "--dry-run", "--json")
    assert done.json["plan"]["params"] == {"long_factor": divisors}


def test_a_plan_file_is_not_left_by_a_run_that_fails(tmp_path: Path) -> None:
    run("extend", "model", *YARN)
    before = snapshot(tmp_path)
    done = run("extend", "model", *YARN, "--plan-out", "plan.json")
    assert (done.code, done.err.splitlines()[0]) == (1, f"Error: {tmp_path}/model-yarn-4x: exists already")
    assert snapshot(tmp_path) == before


def test_a_plan_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("mine")
    done = run("extend", "model", *YARN, "--plan-out", "plan.json")
    assert done.code == 1
    assert done.err == "Error: --plan-out plan.json: exists already\nTry: pass another name, or remove the file\n"
    assert (tmp_path / "plan.json").read_text() == "mine"
    assert not (tmp_path / "model-yarn-4x").exists()


def test_a_stale_plan_is_refused(tmp_path: Path, source: Path) -> None:
    run("extend", "model", *YARN, "--dry-run", "--plan-out", "plan.json")
    set_config(source, max_position_embeddings=600)
    done = run("apply", "model", "plan.json")
    assert done.code == 1
    assert done.err == (
        "Error: model/config.json: max_position_embeddings: is 600, but the plan was made for 512\n"
        "Try: make the plan again from this file\n"
    )


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_the_source_is_never_the_output(force: tuple[str, ...], source: Path) -> None:
    before = snapshot(source)
    for output in ("model", "model/", "model/sub", "."):
        done = run("extend", "model", *YARN, "-o", output, *force)
        assert done.code == 1, output
    assert snapshot(source) == before


def draft(folder: Path, **changes: Any) -> Path:
    """Write a model of one layer that states a shorter context, as drafts do."""
    config = configs.config("llama", "v4")
    return write_model(folder, {**config, "num_hidden_layers": 1, "max_position_embeddings": 128, **changes})


def test_a_companion_gets_the_table_of_its_model(tmp_path: Path) -> None:
    draft(tmp_path / "eagle")
    done = run("extend", "model", *YARN, "--companion", "eagle")
    assert done.code == 0, done.err
    assert "Note: --companion eagle was trained for 128 tokens, the model for 512: " in done.err
    assert f"draft model, with the same table: {tmp_path}/eagle-yarn-4x" in done.out
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    tables = []
    for name in ("model-yarn-4x", "eagle-yarn-4x"):
        config = AutoConfig.from_pretrained(tmp_path / name)
        tables.append(ROPE_INIT_FUNCTIONS["yarn"](config, "cpu"))
    (inv_freq, factor), (theirs, their_factor) = tables
    assert inv_freq.tolist() == theirs.tolist()
    assert factor == their_factor
    assert config_of(tmp_path / "eagle-yarn-4x")["max_position_embeddings"] == 2048


def test_a_companion_is_planned_too_and_told_in_json(tmp_path: Path) -> None:
    draft(tmp_path / "eagle", auto_map={"AutoModel": "eagle.Eagle"})
    before = snapshot(tmp_path)
    done = run("extend", "model", *YARN, "--companion", "eagle", "--dry-run", "--json")
    assert json.loads(done.out)["companion"]["output"] == f"{tmp_path}/eagle-yarn-4x"
    planned = run("extend", "model", *YARN, "--companion", "eagle", "--dry-run")
    assert "eagle-yarn-4x" in planned.out
    assert "Note: auto_map names remote code" in planned.err  # which the model does not
    assert snapshot(tmp_path) == before
    done = run("extend", "model", *YARN, "--companion", "eagle", "--json")
    assert json.loads(done.out)["companion"]["written"] is True


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_theta": 500000.0}, "it has base 500000, but the model has 10000, so the model's table does not fit it"),
        ({"head_dim": 64}, "it has 32 rotary pairs, but the model has 16, so the model's table does not fit it"),
    ],
)
def test_a_companion_of_another_table_is_refused_and_nothing_written(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    draft(tmp_path / "eagle", **changes)
    before = snapshot(tmp_path)
    done = run("extend", "model", *YARN, "--companion", "eagle")
    assert (done.code, done.out) == (1, "")
    assert f"Error: --companion eagle: {words}" in done.err
    assert snapshot(tmp_path) == before


def test_a_companion_of_the_same_length_needs_no_word(tmp_path: Path) -> None:
    draft(tmp_path / "eagle", max_position_embeddings=512)
    done = run("extend", "model", *YARN, "--companion", "eagle")
    assert (done.code, done.err) == (0, f"Note: {COST_AT_4}\n")  # once for both


def test_a_scaled_companion_is_refused_with_the_answer_that_serves_both(tmp_path: Path) -> None:
    draft(tmp_path / "eagle", max_position_embeddings=512)
    assert run("extend", "eagle", "--method", "linear", "--factor", "2", "-o", "scaled").code == 0
    before = snapshot(tmp_path)
    done = run("extend", "model", *YARN, "--companion", "scaled")
    assert (done.code, done.out, snapshot(tmp_path)) == (1, "", before)
    said, told = done.err.splitlines()
    assert said.startswith(
        "Error: --companion scaled/config.json: already scaled (linear by ropetool, factor 2, original 512"
    )
    assert told.startswith("Try: add --from original, ")
    done = run("extend", "model", *YARN, "--companion", "scaled", "--from", "original")
    assert done.code == 0, done.err
    assert (
        config_of(tmp_path / "scaled-yarn-4x")["rope_scaling"] == config_of(tmp_path / "model-yarn-4x")["rope_scaling"]
    )


def test_half_a_pair_is_never_written(tmp_path: Path) -> None:
    draft(tmp_path / "eagle")
    (tmp_path / "eagle-yarn-4x").mkdir()
    before = snapshot(tmp_path)
    done = run("extend", "model", *YARN, "--companion", "eagle")
    assert (done.code, done.out) == (1, "")
    assert f"Error: {tmp_path}/eagle-yarn-4x: the draft model cannot be written here: it exists already" in done.err
    done = run("extend", "model", *YARN, "--companion", "model")
    assert "Error: --companion model: is the model itself, not its draft model" in done.err
    done = run("extend", "model", *YARN, "--companion", "eagel")
    assert "Error: --companion eagel: does not exist" in done.err
    done = run("extend", "model", *YARN, "--companion", "eagle", "--plan-out", "plan.json")
    assert (done.code, snapshot(tmp_path)) == (2, before)


def test_a_companion_replaces_neither_model_nor_output_nor_what_others_wrote(tmp_path: Path) -> None:
    draft(tmp_path / "eagle")
    (tmp_path / "here").symlink_to(tmp_path)
    place = tmp_path / "eagle-yarn-4x"

    def refused(*words: str) -> str:
        before = snapshot(tmp_path)
        done = run("extend", *words, *YARN, "--companion", "eagle", "--force")
        assert (done.code, done.out) == (1, "")
        assert snapshot(tmp_path) == before
        return done.err

    for output in ("eagle-yarn-4x", "here/eagle-yarn-4x", "model/../eagle-yarn-4x"):
        assert f"Error: {place}: the draft model cannot be written here, because the model is written to " in refused(
            "model", "-o", output
        )
    assert "is the source, eagle" in refused("model", "-o", "eagle")
    place.symlink_to("nowhere")
    assert "the draft model cannot be written here: it exists already and is a symbolic link" in refused("model")
    place.unlink()
    place.mkdir()
    (place / "thesis.txt").write_text("of somebody else")
    assert "the draft model cannot be written here: it exists already and " in refused("model")
    shutil.rmtree(place)
    assert run("extend", "model", *YARN, "-o", "eagle-yarn-4x").code == 0  # an output of ours, and now the model
    assert "the draft model cannot be written here: it is the source, " in refused(
        "eagle-yarn-4x", "-o", "q", "--from", "original"
    )


def test_a_companion_may_have_one_kind_of_layer_of_several(tmp_path: Path) -> None:
    """Of Cohere 2 the full layers do not rotate: a draft of full layers has the table of the sliding ones."""
    config = configs.config("cohere2", "v4")
    write_model(tmp_path / "several", {**config, "rope_theta": 10000.0})
    same = {key: config[key] for key in ("hidden_size", "num_attention_heads", "head_dim") if key in config}
    draft(tmp_path / "eagle", **same, max_position_embeddings=config["max_position_embeddings"])
    done = run("extend", "several", "--method", "linear", "--factor", "2", "--companion", "eagle")
    assert done.code == 0, done.err
    assert (tmp_path / "eagle-linear-2x").is_dir()


def test_a_parameter_may_be_joined_to_its_name(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m", configs.config("llama", "v4"))
    line = ("extend", source, "--method", "yarn", "--factor", "4", "--dry-run", "--json")
    apart, joined = (run(*line, *words) for words in (("-p", "beta_fast", "16"), ("-p", "beta_fast=16")))
    assert joined.json["plan"]["params"] == apart.json["plan"]["params"] == {"beta_fast": 16}
