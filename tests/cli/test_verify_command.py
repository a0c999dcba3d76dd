"""ropetool verify as a user calls it: the suites' exit codes, the certificate, interruption, reports, bad input."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest
from forks import COMMAND, Forked
from running import run
from verifying import with_these_texts

import ropetool
from ropetool.files.hf import read_object
from ropetool.verification.journal import Journal

ROOT = Path(ropetool.__file__).parents[1]
DEMO = ROOT / "ropetool" / "demo" / "model"
QUICK = ["--suite", "quick", "--segments", "8", "--grade", "research"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo checkpoint, and that extended twice, so that 512 tokens are all of its context."""
    made = tmp_path_factory.mktemp("verify")
    shutil.copytree(DEMO, made / "model")
    ropetool.apply(ropetool.plan(made / "model", "yarn", factor=2), made / "model", made / "extended")
    return made


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch, short_texts: None) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ROPETOOL_CACHE", str(folder / "cache"))


def test_a_passing_suite_is_certified_and_a_failing_one_too(folder: Path) -> None:
    found = run("verify", "extended", *QUICK, "--lengths", "256,512")
    assert found.code == 0, found.err
    assert found.out.startswith(
        "pass: extended (yarn, factor 2), measured up to 512 tokens against model, is good enough for grade research; "
    )
    assert "in nats per token, paired, ± 95 % interval" not in found.out
    made = read_object(folder / "extended" / "ropetool.json")[1]["certificate"]
    assert (made["verdict"], made["suite"], made["longest"], made["grade"]) == ("pass", "quick", 512, "research")
    assert made["command"] == "ropetool verify extended --suite quick --segments 8 --grade research --lengths 256,512"
    assert not list((folder / "cache" / "verify").glob("*.sqlite"))  # a complete run leaves nothing behind

    found = run("verify", "extended", *QUICK, "--lengths", "256,512", "--require-useful", "--explain")
    assert found.code == 3
    assert found.out.splitlines()[0].endswith(
        "a context beyond 256 tokens does not help at every length; next: a smaller factor."
    )
    assert "in nats per token, paired, ± 95 % interval" in found.out
    assert read_object(folder / "extended" / "ropetool.json")[1]["certificate"]["verdict"] == "fail"


def test_a_checkpoint_of_others_is_certified_where_it_is_asked(folder: Path) -> None:
    found = run("verify", "model", *QUICK, "--lengths", "64,256", "--certificate", "model.json", "--json")
    assert found.code == 1, found.err
    assert json.loads(found.out)["verdict"] == "partial"  # it is compared with itself
    assert json.loads(found.out)["summary"].startswith(
        "partial: model, measured up to 256 tokens without a baseline, cannot be "
    )
    assert json.loads(found.out)["extension"] is None
    assert json.loads((folder / "model.json").read_text())["certificate"]["longest"] == 256
    assert not (folder / "model" / "ropetool.json").exists()
    found = run("verify", "extended", *QUICK, "--lengths", "64,256", "--certificate", "model.json")
    assert found.code == 1
    assert "another" in found.err
    found = run("verify", "model", "--measure", "last-segment", "--certificate", "other.json")
    assert found.code == 1
    assert "Try: --suite quick" in found.err


def test_a_narrower_run_leaves_a_wider_certificate_and_card_but_a_failing_one_does_not(folder: Path) -> None:
    ropetool.apply(ropetool.plan("model", "yarn", factor=2), "model", "wide")
    first = run("verify", "wide", *QUICK, "--lengths", "64,256,512", "--json").json
    assert first["certificate"] == {"file": "wide/ropetool.json", "written": True, "kept": ""}
    assert first["extension"] == {"method": "yarn", "factor": 2.0, "params": {}}
    record, card = (folder / "wide" / name for name in ("ropetool.json", "README.md"))
    before = record.read_bytes(), card.read_bytes()

    done = run("verify", "wide", *QUICK, "--lengths", "64,256", "--json")
    assert (done.code, done.json["certificate"]["written"]) == (1, False)
    why = done.json["certificate"]["kept"]
    assert (
        "it covers more: all its checks ran, also lengths 512; to replace it, run "
        "`ropetool verify wide --suite quick --grade research --lengths 64,256,512`" in why
    )
    assert f"Note: {why}" in done.err.splitlines()
    assert (record.read_bytes(), card.read_bytes()) == before

    assert run("verify", "wide", *QUICK, "--lengths", "256,512", "--require-useful").code == 3
    made = read_object(record)[1]["certificate"]
    assert (made["verdict"], made["lengths"], made["baseline"]) == ("fail", [256, 512], "model")
    assert ": **failed**" in card.read_text()


def kept_rows(journal: Path) -> int:
    """Return how many rows a journal holds; none where it is being made."""
    with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as base:
        try:
            return int(base.execute("select count(*) from found where length(key) = 32").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def test_an_interrupted_run_goes_on(folder: Path) -> None:
    arguments = [
        "extended",
        "--suite",
        "quick",
        "--lengths",
        "64,256,512",
        "--segments",
        "8",
        "--json",
        "--grade",
        "research",
    ]
    printed = [folder / "interrupted.out", folder / "interrupted.err"]
    for file in printed:
        file.touch()
    running = Forked({
        "program": with_these_texts(COMMAND), "arguments": ["verify", *arguments], "output": [*map(str, printed)], "folder": str(folder),
        "environment": {**os.environ},
    })  # fmt: skip
    cache = folder / "cache" / "verify"
    while not running.has_ended and not any(map(kept_rows, cache.glob("*.sqlite"))):
        time.sleep(0.02)  # until something is kept, however long that takes
    running.interrupt()
    code, (out, err) = running.wait(), (file.read_text(encoding="utf-8") for file in printed)
    assert (code, out) == (130, ""), err
    assert "run the same command with --resume" in err

    found = run("verify", *arguments, "--resume")
    assert found.code == 0, found.err
    resumed = json.loads(found.out)
    kept = int(resumed["notes"][0].split()[0])
    assert kept >= 1
    whole = json.loads(run("verify", *arguments).out)
    assert resumed["lengths"] == whole["lengths"]


def test_a_journal_that_cannot_serve_is_no_reason_to_stop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged one is begun anew, one that cannot be had is in memory alone; both are said."""
    arguments = ["verify", "extended", *QUICK, "--lengths", "256,512", "--seed", "7", "--resume", "--json"]
    places: list[Path] = []
    begun = Journal._begun

    def spoilt(journal: Journal, resume: bool) -> sqlite3.Connection | None:
        places.append(journal.path)
        if len(places) == 1:
            journal.path.write_bytes(b"no database" * 100)
        return begun(journal, resume)

    monkeypatch.setattr(Journal, "_begun", spoilt)
    damaged = run(*arguments)
    assert (damaged.code, damaged.err.count("Error")) == (0, 0), damaged.err
    assert "the run starts from the beginning: the saved results are damaged (" in " ".join(damaged.json["notes"])
    assert not places[0].exists()  # the run is complete

    (folder / "no folder").write_text("")
    monkeypatch.setenv("ROPETOOL_CACHE", str(folder / "no folder"))
    unkept = run(*arguments)
    assert unkept.code == 0, unkept.err
    for part in ("the run starts from the beginning: ", "they were not saved", "cannot write to ", "(Not a directory)"):
        assert part in " ".join(unkept.json["notes"])
    assert unkept.json["lengths"] == damaged.json["lengths"]


def test_a_report_is_written_beside_the_result(folder: Path) -> None:
    found = run("verify", "extended", *QUICK, "--lengths", "64,512", "--report", "report")
    assert found.code == 0, found.err
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "extended (yarn, factor 2), measured up to 512 tokens against model, is good enough" in page
    assert (folder / "report" / "loss.png").read_bytes().startswith(b"\x89PNG")
    found = run("verify", "extended", *QUICK, "--report", "model")
    assert found.code == 1
    assert "model" in found.err
    assert "ppl" not in found.out  # refused before anything is measured


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["extended", "--suite", "huge"], 1, "--suite: 'huge' is not one of quick, standard, full"),
        (["extended", "--measure", "iq"], 1, "--measure: 'iq' is not one of last-segment"),
        (["extended", "--max-ratio", "1.5"], 2, "--grade research is nearest to the old limits"),
        (["extended", "--max-tax", "0.1"], 2, "--max-ratio, --max-tax and --min-retrieval were removed"),
        (["extended", "--grade", "usefull"], 1, "--grade: 'usefull' is not one of publishable, usable, research"),
        (["extended", "--max-kl", "0"], 1, "--max-kl: the limit must be finite and above 0, not 0.0"),
        (["extended", "--min-retrieval", "0.8"], 2, "0.05, 0.10 or 0.20 of the answers lost"),
        (["extended", "--trials", "0"], 1, "--trials: must be a whole number of at least 1, not 0"),
        (
            ["extended", "--judge", "extended", "--measure", "key-tokens"],
            1,
            "--judge: the judge must not be the target itself",
        ),
        (
            ["extended", "--judge", "model", "--suite", "quick"],
            1,
            "--judge: the judge selects key tokens, but they are not measured",
        ),
        (["extended", "--device", "cuda:77"], 1, "--device: torch does not find cuda:77 on this machine"),
        (["extended", "--lengths", "512,256"], 1, "--lengths: lengths must increase, but 256 follows 512"),
        (["extended", "--segments", "3"], 1, "segments: must be a whole number of at least 8, not 3"),
        (["extended", "--text", "nowhere.txt"], 1, "nowhere.txt: no such file or folder"),
        (["extended", "--text", "blob"], 1, "blob: is binary"),
        (["extended", "--text", "short.txt"], 1, "the texts are too short"),
        (["extended", "--against", "nowhere"], 1, "nowhere"),
        (["extended", "--cache-type", "q8_0"], 1, "--cache-type: only GGUF files accept a cache type"),
        (["extended", "--cache-type", "int8"], 1, "--cache-type: 'int8' is not one of f32, f16"),
        (["extended", "--cache-type", "q8_0", "--server", "x:1"], 2, "--cache-type does not apply to a served model"),
        (["no-tokenizer", *QUICK], 1, "no-tokenizer"),
        (["no-words", *QUICK], 1, "no-words: tokenizers cannot load the checkpoint"),
        (["extended", "--baseline", "other-words", *QUICK], 1, "the tokenizer does not match extended"),
    ],
)
def test_bad_input_gets_a_sentence(folder: Path, arguments: list[str], code: int, message: str) -> None:
    (folder / "blob").write_bytes(b"a\0b")
    (folder / "short.txt").write_text("a few words")
    if not (folder / "no-tokenizer").exists():
        shutil.copytree(folder / "model", folder / "no-tokenizer", ignore=shutil.ignore_patterns("tokenizer*"))
        shutil.copytree(folder / "model", folder / "other-words")
        path = folder / "other-words" / "tokenizer.json"
        data = json.loads(path.read_text(encoding="utf-8"))
        vocab = data["model"]["vocab"]
        vocab["Ġthe"], vocab["Ġof"] = vocab["Ġof"], vocab["Ġthe"]
        path.write_text(json.dumps(data), encoding="utf-8")
        shutil.copytree(folder / "model", folder / "no-words")
        (folder / "no-words" / "tokenizer.json").write_text(path.read_text().replace('"\\u0120the"', '"gone"', 1))
    found = run("verify", *arguments)
    assert found.code == code
    assert message in found.err
    assert found.out == ""


def harness_logs(folder: Path, target: list[int], baseline: list[int]) -> None:
    for role, values in (("target", target), ("baseline", baseline)):
        (folder / role / "model").mkdir(parents=True, exist_ok=True)
        lines = [{"doc_id": n, "filter": "none", "metrics": ["acc"], "acc": value} for n, value in enumerate(values)]
        path = folder / role / "model" / "samples_gsm8k_2026-11-23T01-02-03.456789.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_logs_of_lm_eval_are_asked_for_and_gate(folder: Path) -> None:
    found = run("verify", "extended", "--lm-eval", "logs")
    assert found.code == 1
    assert [line.split()[:2] for line in found.out.splitlines()] == [["lm_eval", "run"]] * 5
    assert "max_length=512" in found.out
    assert "does not contain logs yet" in found.err
    assert not (folder / "logs").exists()

    harness_logs(folder / "logs", [1] * 60 + [0] * 40, [1] * 60 + [0] * 40)
    options = ["--measure", "last-segment", "--segments", "8", "--lengths", "256,512", "--grade", "research", "--json"]
    found = run("verify", "extended", "--lm-eval", "logs", *options)
    result = json.loads(found.out)
    (check,) = (check for check in result["checks"] if check["name"] == "lm-eval")
    assert (found.code, check["verdict"]) == (0, "pass"), found.err
    assert result["lm_eval"]["scores"][0]["samples"] == 100

    harness_logs(folder / "logs", [0] * 100, [1] * 60 + [0] * 40)
    found = run("verify", "extended", "--lm-eval", "logs", *options[:-1])
    assert found.code == 3
    assert "Tasks of lm-evaluation-harness" in found.out
    assert "gsm8k" in found.out

    (folder / "logs" / "target" / "model" / "samples_gsm8k_2026-11-23T01-02-03.456789.jsonl").write_text("{}\n")
    found = run("verify", "extended", "--lm-eval", "logs", *options)
    assert found.code != 0
    assert "the line has no doc_id" in found.err
    assert "Traceback" not in found.err
    assert run("verify", "model", "--lm-eval", "empty").err.count("--baseline SOURCE") == 1
