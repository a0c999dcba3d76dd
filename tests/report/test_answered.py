"""The words of a default verification: one sentence for each verdict, the three questions, and the page."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import sample

from ropetool.report.answered import curve_charts, next_step, questions_section
from ropetool.report.terminal import terminal_text
from ropetool.report.verdict import summary
from ropetool.report.verified import verify_text
from ropetool.verification.results import FAIL, NOT_ASKED, PASS, Check, VerifyResult
from ropetool.verification.verdict.answers import Answers, CurvePoint, Question, TextAnswer
from ropetool.verification.verdict.bounds import BROKEN, COSTS, KEEP, MEASURED, WORKS
from ropetool.verification.verdict.checkpoint import checks_of

TEXT = TextAnswer("rust-book.txt.xz", "reference", 1000, 16384, 0.02, 0.003, 0.04, 0.01, False, False)


def answers(verdict: str, short: Question | None, long: Question | None, **changes: object) -> Answers:
    curve = tuple(CurvePoint(512 * index, 3.0 - 0.01 * index, 2) for index in range(1, 33))
    made = Answers(
        verdict, 8192, 16384, 16384, short, long, (TEXT, replace(TEXT, document="emma.txt", kind="prose")), curve, 0, False,
        9.5, None, None, "decided",
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def question(length: int, ratio: float, lower: float | None, upper: float | None, texts: int = 6) -> Question:
    return Question(length, ratio, lower, upper, texts)


def result(found: Answers) -> VerifyResult:
    checks = (Check("tables", 0.0, 1e-6, PASS, "llama.cpp: the plan's tables, context 16384"), *checks_of(found))
    return replace(
        sample.full(), target="smol.gguf", baseline="small.gguf", against=None, lengths=(), measures={},
        divergence=None, bands=None, checks=checks, answers=found, suite="default", grade="research",
        yardsticks=(),
    )  # fmt: skip


SHORT, LONG = question(2048, 1.025, 1.01, 1.04), question(16384, 1.034, 1.01, 1.06)
CASES = {
    KEEP: (
        answers(KEEP, SHORT, LONG, texts=(TEXT,) * 6),
        "keep: smol.gguf: perplexity +2.5 % on short texts (at most +4.0 %), +3.4 % at 16,384 tokens (at most +6.0 %), in 6 texts.",
        0,
    ),
    WORKS: (
        answers(
            WORKS, replace(SHORT, texts=3), question(16384, 0.98, 0.9, 1.126, 3), texts=(TEXT,) * 3, more_texts=1,
            more_minutes=4.2, ended="time",
        ),
        "works: smol.gguf: perplexity +2.5 % on short texts (+1.0 % to +4.0 %), -2.0 % at 16,384 tokens (-10 % to +13 %), in 3 "
        "texts; a cost above 10 % is still possible; 1 more text can decide, in about 5 minutes: repeat the command with "
        "`--resume --budget 7`.",
        0,
    ),
    COSTS: (
        answers(COSTS, SHORT, question(16384, 1.2, 1.12, 1.29), texts=(TEXT,) * 6),
        "costs: smol.gguf: perplexity +2.5 % on short texts (+1.0 % to +4.0 %), +20 % at 16,384 tokens (+12 % to +29 %), in 6 texts.",
        0,
    ),
    BROKEN: (
        answers(
            BROKEN, SHORT, question(14336, 17.2, None, None, 2), length=14336,
            texts=(replace(TEXT, length=14336, long=2.8, cut=True, broken=True),) * 2,
        ),
        "broken: smol.gguf: at 14,336 tokens and more its perplexity is 17.2 times the perplexity of small.gguf, in 2 of 2 texts.",
        3,
    ),
    MEASURED: (
        answers(
            MEASURED, question(2048, 1.003, None, None, 2), question(12288, 1.039, None, None, 2), length=12288,
            more_texts=3, more_minutes=13.0, ended="time",
        ),
        "right as far as measured: smol.gguf: perplexity +0.3 % on short texts (-0.1 % to +0.7 % for these tokens only), +3.9 % "
        "at 12,288 tokens (+2.4 % to +5.4 % for these tokens only), in 2 texts; a verdict needs 3 texts; the run did not reach "
        "16,384 tokens; 3 more texts can decide, in about 13 minutes: repeat the command with `--resume --budget 17`.",
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("verdict", CASES)
def test_a_verdict_is_one_sentence(verdict: str) -> None:
    found, sentence, code = CASES[verdict]
    assert summary(result(found)) == sentence
    assert result(found).exit_code == code


@pytest.mark.parametrize("verdict", CASES)
@pytest.mark.parametrize("width", [80, 120])
def test_the_answer_fits_one_screen(verdict: str, width: int) -> None:
    lines = verify_text(result(CASES[verdict][0]), width=width).splitlines()
    assert len(lines) <= 45
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith(f"{verdict}: ")
    assert sum("?" in line for line in lines) == 3


def test_a_file_that_is_not_what_it_says_is_told_with_its_remedy() -> None:
    found = answers(BROKEN, None, None, texts=(), curve=(), length=0, ended="file")
    wrong = replace(result(found), checks=(Check("tables", 0.2, 1e-6, FAIL, "layer 0 rotates otherwise"),))
    assert summary(wrong).startswith("broken: smol.gguf: its positions differ from its record or its method")
    assert wrong.exit_code == 3
    (row,) = questions_section(wrong).table.rows
    assert row[1].text == "no"


USED = Check("retrieval, keys", 0.12, 0.3, NOT_ASKED, "3 of 25 right at 16384 tokens, 20 at 8192")


def test_what_is_lost_of_far_text_is_named() -> None:
    why = f"fewer questions about distant text are answered: {USED.detail}"
    lowered = result(answers(WORKS, SHORT, LONG, texts=(TEXT,) * 6, lost=(why,)))
    lowered = replace(lowered, checks=(*lowered.checks, USED))
    assert summary(lowered) == (
        "works: smol.gguf: perplexity +2.5 % on short texts (+1.0 % to +4.0 %), +3.4 % at 16,384 tokens (+1.0 % to +6.0 %), in 6 "
        "texts; "
        f"but {why}."
    )
    assert lowered.exit_code == 0
    file, *_, far = questions_section(lowered).table.rows
    assert (file[2].text, far[1].text) == ("tables: llama.cpp: the plan's tables, context 16384", "less")
    assert USED.detail in far[2].text


@pytest.mark.parametrize(
    ("name", "verdict", "answer"),
    [("copies", PASS, "no loss found"), ("copies", NOT_ASKED, "not known"), ("position", PASS, "not known")],
)
def test_no_loss_is_found_only_where_something_was_shown(name: str, verdict: str, answer: str) -> None:
    kept = result(CASES[KEEP][0])
    kept = replace(kept, checks=(*kept.checks, Check(name, 0.1, 0.0, verdict, "told")))
    assert questions_section(kept).table.rows[-1][1].text == answer


def test_short_texts_may_be_more_than_long_ones() -> None:
    found = answers(
        MEASURED, question(2048, 1.02, 1.01, 1.04, 5), question(12288, 1.04, None, None, 1), length=12288, ended="time"
    )
    assert "perplexity +2.0 % on short texts (+1.0 % to +4.0 %) in 5 texts, +4.0 % at 12,288 tokens (" in summary(
        result(found)
    )


def test_texts_that_ran_out_ask_for_texts() -> None:
    assert next_step(answers(WORKS, SHORT, LONG, ended="texts", more_texts=4, more_minutes=1.0)) == (
        "4 more texts can decide; pass documents with --text"
    )
    assert next_step(answers(MEASURED, SHORT, LONG, ended="time", more_texts=5, more_minutes=1702.0)) == (
        "5 more texts can decide, in about 28 hours: repeat the command with `--resume --budget 2044`"
    )
    assert "give no verdict" in next_step(answers(WORKS, SHORT, LONG, ended="time"))


def test_a_curve_needs_points() -> None:
    assert list(curve_charts(answers(KEEP, SHORT, LONG, curve=()))) == []
    assert terminal_text(curve_charts(answers(KEEP, SHORT, LONG)), 80).count("●") >= 10


def test_the_page_has_the_verdict_the_questions_and_the_texts() -> None:
    page = sample.render(result(CASES[KEEP][0]))["index.html"].decode()
    assert "<title>keep: smol.gguf" in page
    assert page.index("Three questions") < page.index("Text by text") < page.index("Gate")
    assert "rust-book.txt.xz" in page


def test_what_is_infinite_is_told_without_a_figure() -> None:
    lone = answers(
        MEASURED, None, question(512, 1.2, None, None, 1), texts=(replace(TEXT, long_error=math.inf),), length=512
    )
    assert "for these tokens only" in summary(result(lone))
