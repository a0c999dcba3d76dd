"""What an export is held against before it gets its name: tokens, tables and logits, on the demo checkpoint.

The figures come from transformers and llama.cpp; a defect is planted in each step that they must see.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import configs
import models
import pytest
from running import run

import ropetool
from ropetool.errors import CheckpointError, LossyExport, VerificationFailed
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.gguf_export import Exported, comparing, export_checkpoint
from ropetool.gguf_model import contents
from ropetool.gguf_model.outtypes import OUTTYPES
from ropetool.gguf_model.shapes.orders import Permutation
from ropetool.verification import floors, short_divergence
from ropetool.verification.readback.comparing import same_tables
from ropetool.verification.results import FAIL, NOT_RUN, PASS, Check
from ropetool.verification.runners.llama_library import piece_of
from ropetool.verification.runners.llama_runner import LlamaRunner

llama_cpp = pytest.importorskip("llama_cpp")

DEMO = Path(ropetool.__file__).parent / "demo" / "model"


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the demo with eight times its context, whose attention factor is 1.21."""
    folder = tmp_path_factory.mktemp("demo")
    shutil.copytree(DEMO, folder / "model")
    plan = ropetool.plan(folder / "model", "yarn", factor=8)
    return ropetool.apply(plan, folder / "model", folder / "model-yarn-8x").output


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


OF_LOGITS = ["KL", "KL p99", "KL window", "KL rare tokens"]


def found_in(made: Exported, name: str) -> Check:
    (check,) = [check for check in made.checks if check.name == name]
    return check


# By type: a bound of the demo's own, from what was measured (docs/judging.md).
MEASURED = {"f32": 1e-8, "bf16": 2e-5, "f16": 3e-7, "q8_0": 6e-4, "q4_0": 0.06, "q4_k_m": 0.016, "q6_k": 0.003}


@pytest.mark.parametrize("outtype", MEASURED)
def test_the_demo_passes_in_every_type(outtype: str, extended: Path, tmp_path: Path) -> None:
    made = export_checkpoint(extended, tmp_path / "x.gguf", outtype=outtype, allow_unverified=True)
    before = [f"{name} before quantising" for name in OF_LOGITS] if OUTTYPES[outtype].by_libllama else []
    assert [check.name for check in made.checks] == ["tokens", *before, "same tables", *OF_LOGITS]
    assert {check.verdict for check in made.checks} == {PASS}
    divergence, allowed = found_in(made, "KL"), floors.limit([outtype], 4)
    assert divergence.figure is not None
    assert allowed is not None
    assert 0 < divergence.figure < MEASURED[outtype] < allowed.text.mean == divergence.limit
    assert "the larger mean within or beyond the trained length" in divergence.detail
    record = json.loads((tmp_path / "x.gguf.ropetool.json").read_text())
    assert record["export"]["checks"] == [vars(check) for check in made.checks]


@pytest.mark.parametrize("outtype", ["q8_0", "q4_k_m"])
def test_a_quantised_demo_goes_on_in_english(outtype: str, extended: Path, tmp_path: Path) -> None:
    made = export_checkpoint(extended, tmp_path / "x.gguf", outtype=outtype, allow_unverified=True, check=False)
    text = written_by(made.output, "The old man looked at the", 24)
    words = [word.strip(".,;:!?'\"-").lower() for word in text.split()]
    common = {"the", "and", "of", "a", "to", "in", "he", "she", "it", "was", "had", "his", "her", "that", "with"}
    assert len(words) > 8
    assert sum(word in common for word in words) >= len(words) / 5


def written_by(path: Path, prompt: str, count: int) -> str:
    """Return what llama.cpp writes behind the prompt, always the likeliest token."""
    runner = LlamaRunner(path, device="cpu")
    ids = [*runner.prefix, *runner.tokenize(prompt)]
    start = len(ids)
    for _ in range(count):
        (likeliest,) = runner.predict([ids], [[0]]).top
        ids.append(int(likeliest))
    pieces = (piece_of(llama_cpp, runner._vocabulary, token) for token in ids[start:])
    return b"".join(pieces).decode("utf-8", "replace")


def test_rows_in_the_wrong_order_are_not_kept(extended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Permutation, "apply", lambda turn, elements: elements)
    with pytest.raises(
        VerificationFailed, match=r"was deleted: KL is [0-9.]+, at most [4-9]\.\d+e-05 is allowed"
    ) as caught:
        export_checkpoint(extended, tmp_path / "x.gguf", allow_unverified=True)
    assert caught.value.where == str(tmp_path / "x.gguf")
    assert leftovers(tmp_path) == []
    made = export_checkpoint(extended, tmp_path / "x.gguf", allow_unverified=True, check=False)
    assert made.checks == ()
    assert made.output.is_file()


def test_what_a_small_type_would_hide_is_seen_before_quantising(
    extended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Permutation, "apply", lambda turn, elements: elements)
    monkeypatch.setattr(short_divergence, "MOST", 512)
    with pytest.raises(VerificationFailed, match=r"KL is [0-9.]+, at most [4-9]\.\d+e-05 is allowed") as caught:
        export_checkpoint(extended, tmp_path / "x.gguf", outtype="q2_k", allow_unverified=True)
    assert caught.value.where == str(tmp_path / "x.gguf")
    assert leftovers(tmp_path) == []


def test_a_name_that_llama_cpp_takes_for_phi_3_is_written_otherwise(extended: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(extended, tmp_path / "my-phi3-tune"))
    made = export_checkpoint(source, tmp_path / "x.gguf", allow_unverified=True)
    note = "general.name is 'My Phi 3 Tune', because llama.cpp requires Phi-3 tokens for the name 'My Phi3 Tune'"
    assert note in made.notes
    assert found_in(made, "KL").verdict == PASS
    header = read_header(made.output)
    write_patched(header, Patch(set={"general.name": Value.of(ValueType.STR, "My Phi3 Tune")}), tmp_path / "y.gguf")
    with pytest.raises(CheckpointError, match=r"llama\.cpp cannot load the file"):
        LlamaRunner(tmp_path / "y.gguf", device="cpu")


def test_verify_knows_the_limit_of_the_type_and_the_first_part(extended: Path, tmp_path: Path) -> None:
    made = export_checkpoint(extended, tmp_path / "x.gguf", outtype="q4_0", allow_unverified=True, split_max_tensors=20)
    second = tmp_path / "x-00002-of-00002.gguf"
    assert second.is_file()
    found = ropetool.verify(second, against=extended, lengths=[256, 512], suite="quick", segments=8)
    assert found.target == made.output.name
    allowed = floors.limit(["q4_0"], 4)
    assert allowed is not None
    (divergence,) = [check for check in found.checks if check.name == "KL"]
    assert (divergence.verdict, divergence.limit) == (PASS, allowed.text.mean)
    assert not Path(f"{second}.ropetool.json").exists()


def test_a_factor_that_is_not_the_model_s_is_not_kept(
    extended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = contents.exported.encode

    def with_another_factor(*given: object) -> object:
        encoding, notes = whole(*given)  # type: ignore[arg-type]
        other = {**encoding.keys, "llama.rope.scaling.attn_factor": Value.of(ValueType.F32, 1.1)}
        return replace(encoding, keys=other), notes

    monkeypatch.setattr(contents.exported, "encode", with_another_factor)
    with pytest.raises(VerificationFailed, match=r"same tables is 0\.0909.*attention factor 1\.3287"):
        export_checkpoint(extended, tmp_path / "x.gguf", allow_unverified=True)
    assert leftovers(tmp_path) == []


def test_tokens_of_another_kind_are_refused_before_anything_is_written(
    extended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = contents.tokenizer_values

    def otherwise(*given: object) -> object:
        values, notes = whole(*given)  # type: ignore[arg-type]
        return {**values, "tokenizer.ggml.pre": Value.of(ValueType.STR, "qwen2")}, notes

    monkeypatch.setattr(contents, "tokenizer_values", otherwise)
    with pytest.raises(LossyExport, match="texts get different tokens in llama"):
        export_checkpoint(extended, tmp_path / "x.gguf", allow_unverified=True)
    assert leftovers(tmp_path) == []


def test_the_command_ends_with_3_and_leaves_nothing(
    extended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Permutation, "apply", lambda turn, elements: elements)
    monkeypatch.chdir(tmp_path)
    done = run("export", str(extended), "--allow-unverified", "-o", "x.gguf", "--split-max-size", "2M")
    assert done.code == 3
    assert done.err.startswith("Error: x-00001-of-0000")
    assert "\nTry: --no-check, which keeps the file" in done.err
    assert leftovers(tmp_path) == []
    kept = run("export", str(extended), "--allow-unverified", "--no-check", "-o", "x.gguf")
    assert kept.code == 0
    assert "checked" not in kept.out


@pytest.mark.parametrize("family", configs.EXPORTED)
def test_tables_are_compared_under_one_division_into_kinds_of_layer(family: str, tmp_path: Path) -> None:
    """transformers and llama.cpp name sliding and unrotated layers differently; the layers are the same."""
    source = models.write(tmp_path / "model", family)
    file = models.export(source, tmp_path / "x.gguf").output
    assert same_tables(file, source).verdict == same_tables(source, file).verdict == PASS
    header = read_header(file)
    bases = [key for key in header.values if key.endswith(".rope.freq_base")]
    slower = {key: Value.of(ValueType.F32, 1.001 * header.get(key, ValueType.F32)) for key in bases}
    write_patched(header, Patch(set=slower), tmp_path / "y.gguf")
    assert same_tables(tmp_path / "y.gguf", source).verdict == FAIL


@pytest.mark.parametrize(
    ("tokens", "trained", "context", "window", "rows"),
    [
        (10**9, 256, 2048, None, (1024, 4)), (10**9, 2048, 16384, None, (1024, 4)), (10**9, 1024, 8192, None, (1365, 3)),
        (125, 8192, 32768, None, (64, 2)), (300, 8192, 32768, None, (75, 4)), (10**9, 256, 2048, 512, (512, 4)),
        (10**9, 512, 512, None, (512, 4)),
    ],
)  # fmt: skip
def test_rows_are_several_and_go_beyond_where_tokens_suffice(
    tokens: int, trained: int, context: int, window: int | None, rows: tuple[int, int]
) -> None:
    length, count = short_divergence.rows_of(tokens, short_divergence.ModelLengths(trained, context, window))
    assert (length, count) == rows
    assert length * count <= max(128, min(tokens, short_divergence.MOST))


def test_what_cannot_be_compared_is_said(extended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason() -> tuple[str, str]:
        made = export_checkpoint(extended, tmp_path / "x.gguf", allow_unverified=True, force=True)
        return made.checks[-1].verdict, made.checks[-1].detail

    monkeypatch.setattr(short_divergence, "MEMORY_SHARE", 1e-9)
    verdict, detail = reason()
    assert (verdict, " MiB of memory, " in detail) == (NOT_RUN, True)
    monkeypatch.undo()
    monkeypatch.setitem(short_divergence.PACKAGES, "gguf", ("no_such_package",))
    assert reason() == (NOT_RUN, "no_such_package is not installed")
    monkeypatch.undo()
    monkeypatch.setattr(comparing, "same_tables", lambda file, source, **more: reason_for_tables(file))
    assert reason()[0] == PASS


def test_a_checkpoint_that_computes_nan_is_exported_where_that_is_allowed(extended: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(extended, tmp_path / "model"))
    weights = source / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2:] = b"\xc0\x7f"  # a bfloat16 NaN in the last tensor
    weights.unlink()
    weights.write_bytes(content)
    made = export_checkpoint(source, tmp_path / "x.gguf", allow_unverified=True, allow_nan=True)
    assert (made.checks[-1].verdict, made.checks[-1].detail[:39]) == (
        NOT_RUN,
        "the reference computes the logit nan at",
    )


def reason_for_tables(file: Path) -> object:
    assert file.name == "x.gguf"  # the name that it is going to have, under which llama.cpp finds its parts
    return Check("same tables", None, None, PASS, "")


def test_a_checkpoint_that_transformers_cannot_run_is_exported_all_the_same(
    extended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **more: object) -> None:
        raise CheckpointError("transformers cannot load the checkpoint: no such kernel")

    monkeypatch.setattr(short_divergence, "TorchRunner", refuse)
    made = export_checkpoint(extended, tmp_path / "x.gguf", allow_unverified=True)
    assert (made.checks[-1].verdict, made.checks[-1].detail) == (
        NOT_RUN,
        "transformers cannot load the checkpoint: no such kernel",
    )
    assert made.output.is_file()
