"""`ropetool bake` as a user sees it, on the embedded checkpoint extended eight times."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import refused, run, snapshot
from verifying import remember

import ropetool
from ropetool.checkpoint.provenance import lineage
from ropetool.errors import PlanMismatch
from ropetool.plans.plan import Plan
from ropetool.verification.checkpoints import verify_checkpoint
from ropetool.verification.gate import Limits
from ropetool.verification.readback.comparing import read_back

RESEARCH = Limits(grade="research")
DEMO = Path(ropetool.__file__).parent / "demo" / "model"
pytestmark = pytest.mark.usefixtures("short_texts", "few_rows")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("bake")
    ropetool.apply(ropetool.plan(DEMO, "yarn", factor=8), DEMO, made / "extended")
    ropetool.apply(ropetool.bake(made / "extended", "attention-factor"), made / "extended", made / "baked")
    with pytest.MonkeyPatch.context() as patch:
        remember(patch, [DEMO])
        yield made


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


PLAN = """\
plan for llama
  method    bake attention-factor, side "q"
  context   2048, unchanged
  runtimes  transformers
  output    {here}/extended-baked

edits
  config.json  rope_scaling.attention_factor  (absent) -> 1.0

baked into the weights
  attention factor 1.20794 of full_attention: model.layers.*.self_attn.q_proj.weight (4)
"""


def test_a_dry_run_prints_the_plan_and_writes_nothing(folder: Path) -> None:
    before = snapshot(folder)
    done = run("bake", "extended", "attention-factor", "--side", "q", "--dry-run")
    assert done.code == 0
    assert done.err.startswith(
        "Note: mlx-lm, mlx-vlm, sglang, vllm 0.25 to 0.29 read the source like transformers, but not the output"
    )
    assert done.out == PLAN.format(here=folder)
    assert snapshot(folder) == before


def test_it_writes_and_says_what_the_rounding_cost(folder: Path) -> None:
    done = run("bake", "extended", "attention-factor", "--check", "-o", "checked")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == f"{folder / 'checked'}" or lines[0] == "checked"
    assert any("512 rows of 4 tensors in BF16: relative error at most 0.003" in line for line in lines)
    scores = [line.split() for line in lines[lines.index("scores on random activations, before and after") + 2 :]]
    assert [row[0] for row in scores] == ["0", "1", "2", "3"]
    for _, _, largest, difference, without in scores:
        assert float(difference) < 0.01 * float(largest) < 0.05 * float(without)


def test_wider_storage_leaves_only_the_rounding_of_float32(folder: Path) -> None:
    done = run("bake", "extended", "attention-factor", "--bake-dtype", "f32", "-o", "wide", "--json", "--check")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert max(tensor["max_error"] for tensor in data["baked"]) < 2**-24
    assert {tensor["dtype"] for tensor in data["baked"]} == {"F32"}
    assert all(check["difference"] < 1e-5 * check["largest"] < check["unbaked"] for check in data["checks"])


def test_a_plan_file_is_carried_out_later(folder: Path) -> None:
    assert run("bake", "extended", "attention-factor", "--dry-run", "--plan-out", "plan.json").code == 0
    assert run("apply", "extended", "plan.json", "-o", "applied").code == 0
    same = [(folder / name / "model.safetensors").read_bytes() for name in ("baked", "applied")]
    assert same[0] == same[1] != (folder / "extended" / "model.safetensors").read_bytes()


def test_the_export_of_the_baked_one_has_the_perplexities_of_the_other(folder: Path) -> None:
    losses = []
    for name in ("extended", "baked"):
        ropetool.export(folder / name, folder / f"{name}.gguf", allow_unverified=True, check=False)
        found = verify_checkpoint(
            folder / f"{name}.gguf", baseline=DEMO, measures=["last-segment"], segments=8, lengths=[256, 512]
        )
        losses.append([entry.target.mean for entry in found.lengths])
    assert max(abs(a - b) for a, b in zip(*losses, strict=True)) < 5e-4
    assert losses[0] != losses[1]


def test_the_certificate_of_a_baked_one_is_against_the_original(folder: Path) -> None:
    found = verify_checkpoint(folder / "baked", suite="quick", segments=8, lengths=[64, 256, 2048], limits=RESEARCH)
    assert found.verdict == "pass"
    assert found.baseline is not None
    assert Path(found.baseline).name == DEMO.name  # and not that of the extended one, which it was baked from


def test_a_gguf_file_is_baked_for_context_shifts_and_verified(folder: Path) -> None:
    ropetool.export(folder / "extended", folder / "x.gguf", allow_unverified=True, check=False)
    done = run("bake", "x.gguf", "shift-safe", "--check")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].endswith("x-baked.gguf")
    assert "attention factor 1.20794 of full_attention: blk.*.attn_k.weight (4)" in done.out
    scores = [line.split() for line in done.out.splitlines()[-4:]]
    assert all(float(away) < 0.01 * float(most) < float(without) for *_, most, away, without in scores)
    assert "llama.cpp can shift cached keys without changing their size" in done.err
    checks = {check.name: check for check in read_back(folder / "x-baked.gguf")}
    assert {name: check.verdict for name, check in checks.items()} == dict.fromkeys(checks, "pass")
    assert "with the plan's changes" in checks["weights"].detail
    entry = ropetool.inspect(folder / "x-baked.gguf").rope.entries["full_attention"]
    assert entry.attention_factor == pytest.approx(1, rel=1e-6)
    data = bytearray((folder / "x-baked.gguf").read_bytes())
    data[-100] ^= 1
    (folder / "x-baked.gguf").write_bytes(data)
    assert {c.name: c.verdict for c in read_back(folder / "x-baked.gguf")}["weights"] == "fail"
    refused(
        folder,
        ("x.gguf: llama.cpp always rotates the channels of these files in the interleaved order; it would misread "
"the half order"),
        "ropetool bake FILE rearch --to llama, for qwen2 files", "bake", "x.gguf", "layout", "--to", "half",
    )  # fmt: skip
    refused(folder, "extended: shift-safe works only on GGUF files", "", "bake", "extended", "shift-safe")


def test_a_plan_that_names_a_tensor_that_is_not_there_is_refused(folder: Path) -> None:
    """One of four in the same file, so that the file's own mark still holds."""
    ropetool.export(folder / "extended", folder / "named.gguf", allow_unverified=True)
    data = ropetool.bake(folder / "named.gguf", "attention-factor").to_json()
    data["tensors"][0]["tensor"] = "blk.9.attn_k.weight"
    with pytest.raises(PlanMismatch, match=r"the weights have no blk\.9\.attn_k\.weight"):
        ropetool.apply(Plan.from_json(data, "plan.json"), folder / "named.gguf", folder / "named-out.gguf")
    assert not (folder / "named-out.gguf").exists()


def test_a_record_that_names_itself_as_its_source_ends_there(folder: Path) -> None:
    ropetool.apply(ropetool.bake(folder / "extended", "attention-factor"), folder / "extended", folder / "circle")
    record = folder / "circle" / "ropetool.json"
    record.write_text(record.read_text().replace('"../extended"', '"../circle"'))
    assert [made.source for made in lineage(folder / "circle")] == [str(folder / "circle")]
    plan = ropetool.bake(folder / "circle", "pair-gain", gains=[2.0] * 32)
    assert plan.tensors


def test_a_baked_one_against_the_other_is_judged_by_its_logits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropetool.verification.run.DIVERGENCE_TOKENS", 4096)
    found = verify_checkpoint(
        folder / "baked", against=folder / "extended", suite="quick", segments=8, lengths=[64, 256, 2048],
        certificate_file=folder / "against.json", limits=RESEARCH,
    )  # fmt: skip
    checks = {check.name: check for check in found.checks}
    assert found.verdict == "pass"
    assert checks["same tables"].verdict == "-"
    assert "because the weights contain the rest" in checks["same tables"].detail
    assert checks["KL"].verdict == "pass"


def test_a_check_that_cannot_be_made_is_refused_before_anything_is_written(folder: Path) -> None:
    error = "--check: the check needs scores that stay the same, but score changes them"
    refused(folder, error, "without --check", "bake", "extended", "score", "--multiplier", "2", "--check")


def test_refusals_say_what_to_do(folder: Path) -> None:
    refused(
        folder,
        f"baked: attention-factor is baked in already: its ropetool.json lists this bake of {folder / 'extended'}",
        f"ropetool diff {folder / 'extended'} baked, which shows the differences", "bake", "baked", "attention-factor",
    )  # fmt: skip
    refused(
        folder,
        "--pairs: 'x' is not a list of pairs; write 0,60-63",
        "",
        "bake",
        "extended",
        "drop-pairs",
        "--pairs",
        "x",
    )
    for pairs in ("0-9999999999", "0-65535,1", f"1-{10**30}"):
        error = f"--pairs: '{pairs}' contains more than 65536 pairs; no head has that many"
        refused(folder, error, "", "bake", "extended", "drop-pairs", "--pairs", pairs, "--mode", "still")
    refused(folder, "ropetool bake: pair-gain needs --gain", "ropetool bake --help", "bake", "extended", "pair-gain")
    refused(folder, "--gain 3: is neither a JSON list nor a file of at most 4,194,304 bytes", "", "bake", "extended",
            "pair-gain", "--gain", "3")  # fmt: skip


def test_a_dry_run_needs_no_weights(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((folder / "extended" / "config.json").read_bytes())
    done = run("bake", str(bare), "attention-factor", "--dry-run")
    assert done.code == 0
    assert done.out.endswith(
        "edits\n  config.json  rope_scaling.attention_factor  (absent) -> 1.0\n\nbaked into the weights\n"
        "  attention factor 1.20794 of full_attention: model.layers.*.self_attn.k_proj.weight (4), all 128 rows of each\n"
    )
    assert "Note: the source has no weights, so config.json gives the list of tensors" in done.err
    line = f"ropetool bake {bare} attention-factor --side both --dry-run"
    for options in ((), ("--dry-run", "--plan-out", str(tmp_path / "plan.json")), ("--dry-run", "--check")):
        refused(
            folder,
            f"{bare}: the source has no weights to bake into",
            f"{line}, which shows the changes; --check and --plan-out need the weights",
            "bake",
            str(bare),
            "attention-factor",
            "--side",
            "both",
            *options,
        )
    assert not (tmp_path / "plan.json").exists()
    assert run(*line.split()[1:]).code == 0


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("pair-gain", ["--gain", json.dumps([1.0, 0.1 + 0.2] * 16)]),
        ("score", ["--multiplier", "1.1"]),
        ("drop-pairs", ["--pairs", "0,30-31", "--mode", "mute"]),
    ],
)
def test_the_dry_run_of_a_config_alone_is_suggested_with_every_option(
    folder: Path, tmp_path: Path, what: str, options: list[str]
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((folder / "extended" / "config.json").read_bytes())
    error = run("bake", bare, what, *options).err
    program, *words = shlex.split(error.splitlines()[1].removeprefix("Try: ").partition(", which shows")[0])
    assert (program, words[-1]) == ("ropetool", "--dry-run")
    suggested, asked = run(*words), run("bake", bare, what, *options, "--dry-run")
    assert suggested.code == 0
    assert suggested == asked


def test_pairs_that_stand_still_are_written(folder: Path) -> None:
    """Through the command and the checks of what is read, which hold a divisor to another limit than a factor."""
    done = run("bake", "extended", "drop-pairs", "--pairs", "30-31", "--mode", "still", "-o", "still")
    assert done.code == 0, done.err
    scaling = json.loads((folder / "still" / "config.json").read_text())["rope_scaling"]
    assert scaling["long_factor"][29] < 1e6 < 1e29 < scaling["long_factor"][30]
    rope = ropetool.inspect(folder / "still").rope
    assert rope is not None
    table = rope.entries["full_attention"].table
    assert table is not None
    assert table.regimes[-1].inv_freq[30:].max() < 1e-30
    assert table.regimes[-1].inv_freq[29] > 1e-6
