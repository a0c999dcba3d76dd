"""`ropetool extend --verify --export`: what is written, in which order, and where the chain stops.

The verification is a stand-in with a verdict of the test's choice that leaves a real certificate.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_files import model as gguf_model
from models import config_of
from running import COST_AT_4, run, snapshot

import ropetool
from ropetool.checkpoint import certificate, fingerprints, provenance
from ropetool.checkpoint.certificate import Certificate
from ropetool.cli import runs
from ropetool.cli.runs import ResultOptions
from ropetool.errors import ConfigError
from ropetool.report import verdict
from ropetool.verification.gate import Limits
from ropetool.verification.options import VerifyOptions
from ropetool.verification.readback.terms import Terms

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
YARN = ("extend", "model", "--method", "yarn", "--factor", "4")
OUTPUT = Path("model-yarn-4x")
COST = f"Note: {COST_AT_4}\n"
VOUCHED = "certificate of the checkpoint: it passed the quick suite up to 1024 tokens at grade research"
EXIT = {"pass": 0, "fail": 3, "partial": 1, "undecided": 1}
CHECK = {"pass": "pass", "fail": "fail", "partial": "not run", "undecided": "undecided"}


@dataclass
class Result:
    """What the command asks of a result."""

    verdict: str
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, "verdict": self.verdict}


@dataclass
class Verifier:
    """A verification that measures nothing; `asked` are the checkpoint and the suite of each call."""

    verdict: str = "pass"
    longest: int = 1024
    exit_code: int | None = None
    error: BaseException | None = None
    grade: str | None = None
    asked: list[tuple[Path, str]] = field(default_factory=list)

    def run_verify(self, target: Path, options: VerifyOptions, *, again: str, line: Sequence[str]) -> Result:
        result = self.measured(target, options, None, ResultOptions(), again=again, line=line)
        print("THE TABLES")  # noqa: T201  # as the real one prints its report
        return result

    def measured(
        self, target: Path, options: VerifyOptions, served: None, printing: ResultOptions,
        *, again: str, line: Sequence[str],
    ) -> Result:  # fmt: skip
        suite = str(options.suite)
        expected = ["verify", str(target), "--suite", suite, *([] if self.grade is None else ["--grade", self.grade])]
        assert (line, again) == (expected, f"`{shlex.join(['ropetool', *expected, '--resume'])}`")
        limits = None if self.grade is None else Limits(self.grade)
        assert options.command.startswith("ropetool extend ")
        asked = replace(options, command="")
        assert (asked, served) == (VerifyOptions(suite=suite, limits=limits, terms=Terms()), None)
        self.asked.append((target, suite))
        if self.error is not None:
            raise self.error
        check = {"name": "ratio", "figure": 1.2, "limit": 1.5, "verdict": CHECK[self.verdict], "detail": ""}
        found = Certificate(
            self.verdict, suite, self.longest, (check,), "", {}, "ropetool extend", certificate.now(),
            fingerprints.of(target), True,
        )  # fmt: skip
        certificate.write(target, found)
        return Result(self.verdict, EXIT[self.verdict] if self.exit_code is None else self.exit_code)


@pytest.fixture(autouse=True)
def verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_rows: None) -> Verifier:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DEMO, tmp_path / "model")
    stand_in = Verifier()
    monkeypatch.setattr(runs, "run_verify", stand_in.run_verify)
    monkeypatch.setattr(runs, "measured", stand_in.measured)
    monkeypatch.setattr(verdict, "summary", lambda result: f"{result.verdict}, in words")
    return stand_in


def names() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def state(path: Path) -> str:
    return certificate.state(path).name


# --- the three in a row


def test_the_grade_is_passed_on(verifier: Verifier) -> None:
    verifier.grade = "research"
    assert run(*YARN, "--verify", "--grade", "research").code == 0
    assert verifier.asked[0][1] == "quick"
    refused = run(*YARN, "-o", "other", "--grade", "research")
    assert (refused.code, "--grade requires --verify or --export" in refused.err) == (2, True)


def test_a_pass_goes_all_the_way(tmp_path: Path, verifier: Verifier) -> None:
    done = run(*YARN, "--copy", "--verify", "--export", "x.gguf")
    assert (done.code, done.err) == (0, f"{COST}Note: {VOUCHED}\n")
    lines = done.out.splitlines()
    line = f"ropetool verify {tmp_path / OUTPUT}"
    assert (lines[0], lines[9:13]) == (
        str(tmp_path / OUTPUT), ["", "next", "  KV cache    2.00 MiB for one sequence of 1024 tokens", f"  measure it  {line}"],
    )  # fmt: skip
    assert lines[13:18] == ["", "THE TABLES", "", "x.gguf", "  architecture  llama"]
    assert verifier.asked == [(tmp_path / OUTPUT, "quick")]
    assert state(OUTPUT) == "passed"
    stated = gguf.GGUFReader("x.gguf").fields
    assert stated["llama.context_length"].contents() == 1024
    made = provenance.read(Path("x.gguf"))
    assert made is not None
    assert (made.kind, made.source, made.trained_length) == ("export", str((tmp_path / OUTPUT).resolve()), 256)
    beside = [f"x.gguf.{name}" for name in ("Modelfile", "README.md", "ropetool.json")]
    assert names() == ["model", "model-yarn-4x", "x.gguf", *beside]


def test_json_is_one_object(tmp_path: Path) -> None:
    plain = run(*YARN, "--copy", "--json", "-o", "plain").json
    done = run(*YARN, "--copy", "--verify", "--export", "x.gguf", "--json", "-o", "out")
    assert (done.code, done.err) == (0, "")
    found = done.json
    assert found.pop("verification") == {"schema": 1, "verdict": "pass", "summary": "pass, in words"}
    exported = found.pop("export")
    assert (exported["output"], exported["context_length"], exported["notes"]) == ("x.gguf", 1024, [VOUCHED])
    assert found.pop("serving") == [line.replace(" plain ", " out ") for line in plain.pop("serving")]
    assert found.pop("verify") == plain.pop("verify").replace(" plain", " out")
    assert (found.pop("sidecars"), plain.pop("sidecars")) == (["out/README.md"], ["plain/README.md"])
    assert found == {**plain, "output": "out"}


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("verdict", ["fail", "partial", "undecided"])
def test_what_does_not_pass_stays_and_is_not_exported(verdict: str, as_json: bool, verifier: Verifier) -> None:
    verifier.verdict = verdict
    done = run(*YARN, "--verify", "--export", "x.gguf", *(["--json"] if as_json else []))
    cost = "" if as_json else COST  # which the plan of the JSON carries
    assert (done.code, done.err) == (
        EXIT[verdict],
        f"{cost}Note: x.gguf was not written, because the output did not pass its verification\n",
    )
    assert names() == ["model", "model-yarn-4x"]
    assert config_of(OUTPUT)["max_position_embeddings"] == 1024
    assert state(OUTPUT) == {"fail": "failed"}.get(verdict, verdict)
    if as_json:
        assert (done.json["written"], done.json["verification"]["verdict"], done.json["export"]) == (
            True,
            verdict,
            None,
        )
    else:
        assert done.out.endswith("THE TABLES\n")


@pytest.mark.parametrize("verdict", EXIT)
def test_verification_alone(verdict: str, verifier: Verifier) -> None:
    verifier.verdict = verdict
    done = run(*YARN, "--verify", "--suite", "standard", "--json")
    assert (done.code, done.err) == (EXIT[verdict], "")
    assert done.json["verification"]["verdict"] == verdict
    assert "export" not in done.json
    assert verifier.asked == [(Path.cwd() / OUTPUT, "standard")]


def test_without_the_options_nothing_follows(verifier: Verifier) -> None:
    done = run(*YARN, "--json")
    assert (done.code, verifier.asked) == (0, [])
    assert {"verification", "export"}.isdisjoint(done.json)


def test_to_export_is_to_verify(verifier: Verifier) -> None:
    verifier.verdict = "fail"
    assert run(*YARN, "--export", "x.gguf").code == 3
    assert verifier.asked == [(Path.cwd() / OUTPUT, "quick")]
    assert not Path("x.gguf").exists()


def test_unless_that_is_waived(verifier: Verifier) -> None:
    done = run(*YARN, "--export", "x.gguf", "--allow-unverified")
    assert (done.code, verifier.asked) == (0, [])
    assert (
        done.err
        == f"{COST}Note: exported without a certificate (--allow-unverified): `ropetool verify` measures the checkpoint\n"
    )
    assert Path("x.gguf").is_file()
    assert state(OUTPUT) == "none"


def test_force_reaches_both(verifier: Verifier) -> None:
    assert run(*YARN, "--export", "x.gguf").code == 0
    again = ("extend", "model", "--method", "yarn", "--factor", "2", "-o", OUTPUT, "--export", "x.gguf")
    before = snapshot(Path())
    assert run(*again).code == 1
    assert snapshot(Path()) == before
    assert run(*again, "--force").code == 0
    assert gguf.GGUFReader("x.gguf").fields["llama.context_length"].contents() == 512


def test_the_gguf_output_of_a_gguf_is_verified(verifier: Verifier) -> None:
    gguf_model(Path("m.gguf"))
    done = run("extend", "m.gguf", "--method", "yarn", "--factor", "4", "--verify")
    assert (done.code, verifier.asked) == (0, [(Path.cwd() / "m-yarn-4x.gguf", "quick")])
    assert state(Path("m-yarn-4x.gguf")) == "passed"


# --- where it stops


def test_a_certificate_that_ends_too_early_is_told(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropetool.gguf_export.vouching.seconds", lambda source: 3600.0)
    verifier.longest = 512
    done = run(*YARN, "--export", "x.gguf")
    assert done.code == 0
    lacking = "it passed the quick suite up to 512 tokens at grade research, but its context length is 1024"
    assert f"not measured: {lacking}" in done.err


def test_the_gate_does_not_believe_the_exit_code(verifier: Verifier) -> None:
    """Planted: a verification that fails and says that all is well."""
    verifier.verdict, verifier.exit_code = "fail", 0
    done = run(*YARN, "--export", "x.gguf")
    assert (done.code, Path("x.gguf").exists()) == (1, False)
    assert "it failed the quick suite up to 1024 tokens at grade research: ratio" in done.err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [(ConfigError("texts too short", where="--text"), 1, "Error: --text: texts too short"), (KeyboardInterrupt(), 130, "")],
    ids=["refused", "interrupted"],
)  # fmt: skip
def test_an_end_without_a_verdict_leaves_output_and_plan(
    error: BaseException, code: int, line: str, verifier: Verifier
) -> None:
    verifier.error = error
    done = run(*YARN, "--export", "x.gguf", "--plan-out", "plan.json")
    assert done.code == code
    assert line in done.err
    assert names() == ["model", "model-yarn-4x", "plan.json"]
    assert state(OUTPUT) == "none"


def test_what_cannot_be_exported_is_told_before_the_verification(verifier: Verifier) -> None:
    (Path("model") / "tokenizer.json").unlink()
    done = run(*YARN, "--export", "x.gguf")
    assert (done.code, verifier.asked) == (1, [])
    assert "tokenizer.json" in done.err
    assert names() == ["model", "model-yarn-4x"]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("mine.gguf", "exists already and is not listed in a ropetool record\nTry: pass another FILE, or move the existing output away"),
        ("model/x.gguf", "is inside the source, model; ropetool never writes to the source\nTry: pass another FILE"),
        ("model-yarn-4x/x.gguf", "is inside the output, {output}\nTry: pass another FILE"),
        ("model-yarn-4x", "is inside the output, {output}\nTry: pass another FILE"),
        ("nowhere/x.gguf", "the directory nowhere does not exist\nTry: mkdir -p nowhere"),
    ],
)  # fmt: skip
def test_a_file_that_may_not_be_written_stops_everything(file: str, message: str, verifier: Verifier) -> None:
    Path("mine.gguf").write_text("mine")
    before = snapshot(Path())
    done = run(*YARN, "--export", file)
    assert (done.code, done.out, verifier.asked) == (1, "", [])
    assert done.err == f"Error: --export {file}: {message.format(output=Path.cwd() / OUTPUT)}\n"
    assert snapshot(Path()) == before


def test_a_file_inside_a_named_output_is_told_at_once(verifier: Verifier) -> None:
    (Path("model") / "config.json").write_text("not read")
    done = run(*YARN, "-o", "out", "--export", "out/x.gguf")
    assert (done.code, done.out, verifier.asked) == (1, "", [])
    assert done.err == "Error: --export out/x.gguf: is inside the output, out\nTry: pass another FILE\n"


def test_a_gguf_source_has_nothing_to_export(verifier: Verifier) -> None:
    gguf_model(Path("m.gguf"))
    before = snapshot(Path())
    done = run("extend", "m.gguf", "--method", "yarn", "--factor", "4", "--export", "x.gguf")
    assert (done.code, done.out, verifier.asked) == (1, "", [])
    assert done.err.splitlines() == [
        "Error: --export x.gguf: the source is a GGUF file, so the output is one too: there is nothing to export",
        "Try: leave out --export, and name the output with -o",
    ]
    assert snapshot(Path()) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dry-run", "--verify"), "--verify and --export need an output"),
        (("--dry-run", "--export", "x.gguf"), "--verify and --export need an output"),
        (("--dry-run", "--export", "x.gguf", "--allow-unverified"), "--verify and --export need an output"),
        (("--allow-unverified",), "--allow-unverified requires --export"),
        (("--allow-unverified", "--verify", "--export", "x.gguf"), "excludes --verify"),
        (("--suite", "full"), "--suite requires --verify or --export"),
        (("--suite", "full", "--export", "x.gguf", "--allow-unverified"), "--suite requires"),
        (("--verify", "--suite", "fast"), "'fast'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_options_that_make_no_sense_together(options: tuple[str, ...], message: str, verifier: Verifier) -> None:
    before = snapshot(Path())
    done = run(*YARN, *options)
    assert (done.code, done.out, verifier.asked) == (2, "", [])
    assert message in done.err
    assert json.loads(run(*YARN, *options, "--json").out)["error"]["message"].find(message) >= 0
    assert snapshot(Path()) == before
