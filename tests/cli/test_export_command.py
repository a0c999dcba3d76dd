"""ropetool export from the command line: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from models import set_config
from running import run

import ropetool
from ropetool.checkpoint import certificate, fingerprints, provenance
from ropetool.checkpoint.certificate import Certificate
from ropetool.gguf_export import vouching
from ropetool.plans.serving import gguf_lines

DEMO = Path(ropetool.__file__).parent / "demo" / "model"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


@pytest.fixture
def extended(model: Path, few_rows: None) -> Path:
    """Return an output of ropetool that states 1024 tokens, not verified."""
    return ropetool.apply(ropetool.plan("model", "yarn", factor=4), "model", "model-yarn-4x").output


def certify(path: Path, verdict: str = "pass", longest: int = 1024) -> None:
    """Give the output a certificate of one check with this verdict."""
    check = {"name": "ratio", "figure": 1.2, "limit": 1.5, "verdict": verdict, "detail": ""}
    overall = "partial" if verdict == "not run" else verdict
    print_ = fingerprints.of(path)
    certificate.write(
        path,
        Certificate(overall, "quick", longest, (check,), "", {}, "ropetool verify", certificate.now(), print_, True),
    )


def types(path: Path) -> set[str]:
    """Return the types of the matrices, as the gguf package reads them."""
    return {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) == 2}


CHECKED = [
    "  checked       tokens: 508 texts get the same tokens in tokenizers and llama.cpp",
    "  checked       same tables: 0 of at most 1e-06, llama.cpp and transformers compute the same table, context 256",
    "  checked       KL: # of at most #, nats per token, all within the trained length",
    "  checked       KL p99: # of at most #, nats; one token in a hundred has more",
    "  checked       KL window: # of at most #, nats per token in the worst window of 32 positions, from position #",
    "  checked       KL rare tokens: # of at most #, nats per token, over # tokens that do not occur in the texts",
]


def test_the_file_goes_beside_the_source(model: Path) -> None:
    done = run("export", "model")
    output = model.with_name("model-BF16.gguf")
    assert (done.code, done.err) == (0, "")
    tensors, size = len(gguf.GGUFReader(output).tensors), output.stat().st_size / 2**20
    figures = re.compile(r"(?<=: )\S+(?= of at)|(?<=most )[^\s,]+|(?<=position )\d+|\d+(?= tokens that do not)")
    lines = [figures.sub("#", line) if "  KL" in line else line for line in done.out.splitlines()]
    assert lines == [
        str(output),
        "  architecture  llama",
        "  context       256 tokens, base frequency",
        f"  tensors       {tensors}, matrices in bf16, {size:.2f} MiB",
        *CHECKED,
        "  sidecars      model-BF16.gguf.README.md, model-BF16.gguf.Modelfile",
        "",
        "served by",
        *(f"  {line}" for line in gguf_lines(str(output), 256, Path(f"{output}.Modelfile"))),
    ]
    assert types(output) == {"BF16"}


@pytest.mark.parametrize(("outtype", "stored"), [("auto", "BF16"), ("f32", "F32"), ("f16", "F16"), ("bf16", "BF16")])
def test_types_and_names(model: Path, outtype: str, stored: str) -> None:
    done = run("export", "model", "-o", "out.gguf", "--outtype", outtype, "--json")
    assert (done.code, done.err) == (0, "")
    result = done.json
    checks = result.pop("checks")
    assert [check["name"] for check in checks] == [
        "tokens", "same tables", "KL", "KL p99", "KL window", "KL rare tokens",
    ]  # fmt: skip
    assert {check["verdict"] for check in checks} == {"pass"}
    assert all(0 < check["figure"] <= check["limit"] for check in checks[2:])
    assert result == {
        "schema": 1, "output": "out.gguf", "arch": "llama", "outtype": stored.lower(), "encoding": "base frequency",
        "tensors": len(gguf.GGUFReader("out.gguf").tensors), "nbytes": Path("out.gguf").stat().st_size,
        "context_length": 256, "serving": gguf_lines("out.gguf", 256, Path("out.gguf.Modelfile")),
        "bakes": [], "sidecars": ["out.gguf.README.md", "out.gguf.Modelfile"], "deviation": None,
        "notes": ["matrices in BF16 are rounded to f16"] if stored == "F16" else [],
    }  # fmt: skip
    assert types(Path("out.gguf")) == {stored}


def test_an_existing_file_is_replaced_only_by_force(model: Path, few_rows: None) -> None:
    Path("out.gguf").write_text("mine")
    done = run("export", "model", "-o", "out.gguf")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[0] == "Error: out.gguf: exists already and is not listed in a ropetool record"
    assert run("export", "model", "-o", "out.gguf", "--force").code == 1
    assert Path("out.gguf").read_text() == "mine"
    Path("out.gguf").unlink()
    assert run("export", "model", "-o", "out.gguf", "--outtype", "f32").code == 0
    assert run("export", "model", "-o", "out.gguf").err.splitlines()[0] == "Error: out.gguf: exists already"
    assert run("export", "model", "-o", "out.gguf", "--force").code == 0
    assert types(Path("out.gguf")) == {"BF16"}


def test_a_sliding_window_must_be_accepted_and_is_then_a_note(model: Path, few_rows: None) -> None:
    set_config(model, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=64)
    refused = run("export", "model")
    assert (refused.code, refused.out) == (1, "")
    assert "llama.cpp ignores the sliding window of 64 tokens" in refused.err
    assert "Try: --allow-full-attention" in refused.err
    assert not list(model.parent.glob("*.gguf"))
    done = run("export", "model", "--allow-full-attention")
    assert done.code == 0
    assert done.err.startswith("Note: llama.cpp ignores the sliding window of 64 tokens")
    assert "KL: " in done.out  # of 64 tokens, within which the window makes no difference


def test_an_unknown_type_is_a_matter_of_usage(model: Path) -> None:
    done = run("export", "model", "--outtype", "q9_0", "--json")
    assert done.code == 2
    assert "'q9_0'" in done.json["error"]["message"]


def test_the_function_is_public(model: Path, few_rows: None) -> None:
    assert ropetool.export("model").output == model.with_name("model-BF16.gguf")


# --- the gate

VERIFY = "Try: ropetool verify model-yarn-4x --suite quick"
LACKING = {
    "none": "no verification of it is recorded",
    "stale": "its config, tokenizer, templates or weights have changed since its certificate was written",
    "partial": "the quick suite up to 1024 tokens at grade research ran only in part: ratio did not run",
    "short": "it passed the quick suite up to 512 tokens at grade research, but its context length is 1024",
    "undecided": "the quick suite up to 1024 tokens at grade research could not decide ratio",
}


def lacking(extended: Path, case: str) -> None:
    if case == "stale":
        certify(extended)
        config = extended / "config.json"
        config.write_text(config.read_text() + "\n")
    elif case != "none":
        verdict = {"partial": "not run", "short": "pass", "undecided": "undecided"}[case]
        certify(extended, verdict, 512 if case == "short" else 1024)


@pytest.fixture
def too_long_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vouching, "seconds", lambda source: 3600.0)


@pytest.mark.parametrize("case", LACKING)
def test_what_nobody_measured_is_exported_and_says_so(case: str, extended: Path, too_long_to_measure: None) -> None:
    lacking(extended, case)
    done = run("export", "model-yarn-4x")
    assert done.code == 0
    assert done.err == f"Note: not measured: {LACKING[case]}; `ropetool verify model-yarn-4x` measures it\n"
    refused = run("export", "model-yarn-4x", "--require", "research", "-o", "b.gguf", "--json").json["error"]
    assert (refused["type"], refused["where"]) == ("CheckpointError", "model-yarn-4x")
    assert refused["message"] == f"--require needs grade research, but {LACKING[case]}"
    assert refused["try"] == "ropetool verify model-yarn-4x --suite standard --grade research"
    assert not Path("b.gguf").exists()


def test_what_takes_no_two_minutes_is_measured(extended: Path, short_texts: None) -> None:
    done = run("export", "model-yarn-4x")
    found = certificate.read(extended)
    assert found is not None
    assert (done.code, found.suite, found.verdict) == (0, certificate.DEFAULT, "pass")
    assert done.err == (
        "Note: certificate of the checkpoint: it passed the default verification up to 1024 tokens at grade research, with the "
        "verdict works\n"
    )


def test_a_failed_verification_is_refused(extended: Path) -> None:
    certify(extended, "fail")
    before = sorted(Path().iterdir())
    done = run("export", "model-yarn-4x")
    assert (done.code, done.out) == (1, "")
    failed = "it failed the quick suite up to 1024 tokens at grade research: ratio"
    assert done.err.splitlines() == [
        f"Error: model-yarn-4x: is an output of ropetool, and {failed}",
        f"{VERIFY} --grade research",
    ]
    assert sorted(Path().iterdir()) == before
    waived = run("export", "model-yarn-4x", "--allow-unverified")
    assert waived.code == 0
    assert (
        waived.err
        == "Note: exported without a certificate (--allow-unverified): `ropetool verify` measures the checkpoint\n"
    )


def test_what_is_not_what_its_record_says_is_refused(extended: Path, too_long_to_measure: None) -> None:
    config = json.loads((extended / "config.json").read_text())
    (config.get("rope_parameters") or config["rope_scaling"])["factor"] = 5.0
    (extended / "config.json").write_text(json.dumps(config))
    done = run("export", "model-yarn-4x")
    assert (done.code, "differs from its record: tables" in done.err) == (1, True)
    assert "Try: extend its source again, or pass --allow-unverified" in done.err
    assert not list(Path().glob("*.gguf"))


@pytest.mark.parametrize("refusal", ["_refuse_failed", "_refuse_changed"])
def test_without_its_refusals_the_gate_lets_everything_through(
    refusal: str, extended: Path, too_long_to_measure: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: each of them alone stands in the way of what is refused above."""
    if refusal == "_refuse_failed":
        certify(extended, "fail")
    else:
        config = json.loads((extended / "config.json").read_text())
        (config.get("rope_parameters") or config["rope_scaling"])["factor"] = 5.0
        (extended / "config.json").write_text(json.dumps(config))
    assert run("export", "model-yarn-4x", "--no-check").code == 1
    monkeypatch.setattr(vouching, refusal, lambda _: None)
    assert run("export", "model-yarn-4x", "--no-check").code == 0


def test_a_grade_that_there_is_not_is_refused(extended: Path) -> None:
    done = run("export", "model-yarn-4x", "--require", "useable")
    assert "'useable' is not one of research, usable, publishable (did you mean" in done.err
    certify(extended)
    missed = run("export", "model-yarn-4x", "--require", "usable")
    assert (
        "--require needs grade usable, but it passed the quick suite up to 1024 tokens at grade research" in missed.err
    )


def test_a_grade_of_a_later_version_is_below_all_grades(extended: Path) -> None:
    certify(extended)
    record = extended / "ropetool.json"
    record.write_text(record.read_text().replace('"grade": "research"', '"grade": "gold"'))
    missed = run("export", "model-yarn-4x", "--require", "research", "-o", "x.gguf")
    assert missed.code == 1
    assert "--require needs grade research, but it passed the quick suite up to 1024 tokens at grade gold" in missed.err
    assert "--grade gold" not in certificate.remedy(extended)


def test_a_certificate_opens_the_gate(extended: Path) -> None:
    certify(extended)
    done = run("export", "model-yarn-4x")
    note = "Note: certificate of the checkpoint: it passed the quick suite up to 1024 tokens at grade research\n"
    assert (done.code, done.err) == (0, note)
    assert types(Path("model-yarn-4x-BF16.gguf")) == {"BF16"}


def test_an_edited_certificate_is_refused(extended: Path) -> None:
    certify(extended, "fail")
    record = extended / "ropetool.json"
    record.write_text(record.read_text().replace('"verdict": "fail",\n    "suite"', '"verdict": "pass",\n    "suite"'))
    done = run("export", "model-yarn-4x")
    assert (done.code, done.err.splitlines()) == (
        1,
        [
            "Error: model-yarn-4x/ropetool.json: certificate: not a valid ropetool certificate "
            '(verdict is "pass", but its checks result in fail)', VERIFY,
        ],
    )  # fmt: skip


# --- the provenance of the file


def test_the_file_says_what_it_was_made_of(extended: Path) -> None:
    certify(extended)
    output = ropetool.export("model-yarn-4x", "x.gguf").output
    source, made = provenance.read(extended), provenance.read(output)
    assert source is not None
    assert made is not None
    assert made.export is not None
    assert [check["verdict"] for check in made.export["checks"]] == ["pass"] * 6
    assert replace(made, files=()) == provenance.Provenance(
        str(extended.resolve()), provenance.fingerprint(extended), 256, source.plan,
        {"outtype": "bf16", "encoding": "yarn keys", "checks": made.export["checks"]},
    )  # fmt: skip
    assert made.kind == "export"
    made = provenance.record(ropetool.export("model", "y.gguf", check=False).output)
    assert made is not None
    assert replace(made, files=()) == provenance.Provenance(
        str(Path("model").resolve()), provenance.fingerprint(Path("model")), 256, {},
        {"outtype": "bf16", "encoding": "base frequency"},
    )  # fmt: skip


def test_an_exported_extension_is_read_as_one(extended: Path) -> None:
    ropetool.export("model-yarn-4x", "x.gguf", allow_unverified=True, check=False)
    assert run("inspect", "x.gguf", "--json").json["trained_length"] == 256
    refused = run("extend", "x.gguf", "--method", "yarn", "--factor", "8")
    assert refused.code == 1
    assert "already scaled (yarn by ropetool, factor 4, original 256, context 1024)" in refused.err
    done = run("extend", "x.gguf", "--method", "yarn", "--factor", "8", "--from", "original", "--json")
    assert (done.code, done.json["plan"]["max_position_embeddings"]) == (0, 2048)


def test_a_table_that_the_file_does_not_show_is_still_known_as_scaled(model: Path) -> None:
    """NTK is another base and nothing more. Without its provenance, the keys of the export still have the trained length."""
    ropetool.apply(ropetool.plan("model", "ntk", factor=4), "model", "model-ntk-4x")
    ropetool.export("model-ntk-4x", "x.gguf", allow_unverified=True, check=False)
    assert run("inspect", "x.gguf", "--json").json["trained_length"] == 256
    assert "already scaled (ntk by ropetool" in run("extend", "x.gguf", "--method", "yarn", "--factor", "2").err
    Path("x.gguf.ropetool.json").unlink()
    assert run("inspect", "x.gguf", "--json").json["trained_length"] == 256
    refused = run("extend", "x.gguf", "--method", "yarn", "--factor", "2")
    assert "already scaled (ntk by ropetool, original 256, context 1024)" in refused.err
    original = run("extend", "x.gguf", "--method", "yarn", "--factor", "8", "--from", "original")
    assert "its original table is not in this file, which ropetool made with ntk" in original.err
    assert original.err.endswith("Try: extend the source that this file was made from\n")


def test_a_file_without_its_record_counts_from_its_trained_length(model: Path) -> None:
    ropetool.apply(ropetool.plan("model", "yarn", factor=8), "model", "model-yarn-8x")
    ropetool.export("model-yarn-8x", "x.gguf", allow_unverified=True, check=False)
    Path("x.gguf.ropetool.json").unlink()
    line = ("extend", "x.gguf", "--method", "yarn", "--dry-run")
    too_far = run(*line, "--target-length", "16k", "--from", "original")
    assert "--force-factor: 64 times the trained length" in too_far.err
    doubtful = run(*line, "--factor", "32", "--from", "original")
    assert "beyond 8 times the trained length expect a broken model" in doubtful.err
    ambiguous = run(*line, "--factor", "2")
    assert "already scaled (yarn by ropetool, factor 8, original 256, context 2048)" in ambiguous.err
    assert "--target-length 4096 --from original" in ambiguous.err


def test_an_export_as_it_came_extends_like_the_checkpoint(model: Path) -> None:
    ropetool.export("model", "x.gguf", check=False)
    assert run("inspect", "x.gguf", "--json").json["trained_length"] == 256
    done = run("extend", "x.gguf", "--method", "yarn", "--factor", "4", "--json")
    assert (done.code, done.json["plan"]["reading"], done.json["plan"]["trained_length"]) == (0, "unscaled", 256)


def test_force_replaces_the_record_too(extended: Path) -> None:
    ropetool.export("model", "x.gguf", check=False)
    assert run("export", "model-yarn-4x", "-o", "x.gguf", "--allow-unverified").code == 1
    made = provenance.record(Path("x.gguf"))
    assert made is not None
    assert Path(made.source).name == "model"
    assert run("export", "model-yarn-4x", "-o", "x.gguf", "--allow-unverified", "--force").code == 0
    made = provenance.record(Path("x.gguf"))
    assert made is not None
    assert Path(made.source).name == "model-yarn-4x"


def test_a_record_of_a_file_that_is_gone_is_no_obstacle(model: Path, few_rows: None) -> None:
    ropetool.export("model", "x.gguf", check=False)
    Path("x.gguf").unlink()
    assert run("export", "model", "-o", "x.gguf").code == 0


def test_a_refusal_says_what_to_do_instead(model: Path) -> None:
    """A file that is GGUF already, by its record and without; a checkpoint without weights, a tokenizer, or sound ones."""
    assert run("export", "model", "-o", "x.gguf", "--no-check", "--no-sidecars").code == 0
    first = "Error: x.gguf: is already a GGUF file; export reads Hugging Face directories"
    done = run("export", "x.gguf")
    assert (done.code, done.err.splitlines()) == (
        1,
        [first, f"Try: ropetool export {model.resolve()}, the checkpoint of this file"],
    )
    Path("x.gguf.ropetool.json").unlink()
    done = run("export", "x.gguf")
    assert done.err.splitlines()[0] == first
    assert done.err.splitlines()[1].startswith("Try: ropetool extend x.gguf --method yarn --factor 4 to extend it,")

    tokenizer = (model / "tokenizer.json").read_text()
    (model / "tokenizer.json").unlink()
    done = run("export", "model")
    assert "is missing, and so is tokenizer.model; a GGUF file needs a tokenizer" in done.err
    assert "Try: copy tokenizer.json and tokenizer_config.json of the original model into model" in done.err

    (model / "tokenizer.json").write_text(json.dumps({**json.loads(tokenizer), "model": {"type": "WordPiece"}}))
    assert "Try: run the checkpoint with transformers or vLLM" in run("export", "model").err
    (model / "tokenizer.json").write_text("{")
    assert "Try: download the file again" in run("export", "model").err
    (model / "model.safetensors").unlink()
    assert "Try: pass a directory with weights" in run("export", "model").err
